"""The text of an imported spec, as a person would write it, with its computed figures."""

from __future__ import annotations

from blockc.authoring.newspec import format_key
from blockc.checks.advice import is_beyond_scaling
from blockc.importing import CONFIG, ImportResult
from blockc.language.fmt import format_spec
from blockc.pipeline.compiled import Compiled
from blockc.report.expect import known_figures
from blockc.report.graph import Graph
from blockc.source import to_plain


def imported_spec_text(imported: ImportResult, model: Compiled, weighed: bool) -> str:
    """The spec with its computed figures. `weighed`: a checkpoint's tensors were compared with them."""
    data = {key: _shorten(to_plain(entry.value)) for key, entry in imported.tree.entries.items()}
    kinds, graph = model.spec.kinds, Graph(model.function, model.decoder.kinds)
    expect: dict[str, object] = {key: figure for key, figure in known_figures(graph).items() if figure}
    expect |= {"context": model.spec.top.context} if is_beyond_scaling(model) else {}
    data["expect"] = {**expect, **({"layers": kinds} if len(kinds) > 1 else {})}
    by = "as the checkpoint's tensors have them" if weighed else "as computed from these sizes"
    written: list[str] = []
    for key, value in data.items():
        written += [f"# parameters: {by}"] if key == "expect" else ()
        written += _block_lines(key, value)
    written[0] += f"  # imported from a {CONFIG} of model_type {imported.model_type}"
    return format_spec("\n".join([*written, ""]).encode(), "spec").decode()


def _block_lines(key: str, value: object) -> list[str]:
    """A key's lines; layers and their kinds one below the other."""
    if key != "layers" or not isinstance(value, dict):
        return format_key(key, value, "")
    kinds = value["kinds"]
    listed = [line for word in value if word != "kinds" for line in format_key(word, value[word], "  ")]
    return ["layers:", *listed, "  kinds:", *(line for kind in kinds for line in format_key(kind, kinds[kind], "    "))]


def _shorten(value: object) -> object:
    """8.0 as 8, which mean the same in a spec."""
    match value:
        case dict():
            return {key: _shorten(inner) for key, inner in value.items()}
        case list():
            return [_shorten(inner) for inner in value]
        case float() if value.is_integer() and abs(value) < 1e15:
            return int(value)
        case _:
            return value
