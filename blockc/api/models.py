"""Compiles a spec, or a config.json that is imported, to a model; and gives its figures, its drawing and its twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from blockc.authoring.specfiles import NoSpecError, model_file
from blockc.basics.errors import CheckpointError, UsageError
from blockc.basics.floats import FLOATS, FloatType
from blockc.checks.checking import find_misses
from blockc.graph.quant import Quant, parse_quant
from blockc.graph.quantpolicy import load_quant_policy
from blockc.graph.shrink import shrink
from blockc.importing import find_config, import_config_file, read_modules
from blockc.layouts import load_layout
from blockc.pipeline.compiled import Compiled, compile_spec, compile_tree
from blockc.report import Report, make_report
from blockc.report.sizes import parse_size
from blockc.source import Finding, MappingNode, SpecError, escape_text, override, read_tree
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.matching import match_tensors, misfit_error
from blockc.weights.rules import group_sizes, rules


def compile(path: Path | str, assignments: Sequence[str] = ()) -> Compiled:  # noqa: A001
    """Compiles the spec at `path`, with its keys set by `key.path=value` assignments, to a verified graph.

    `path` may also be the name of a spec that comes with blockc. A config.json, or a folder with one, is imported.
    Raises SpecError for a wrong spec, also if a figure of `expect` differs or the checkpoint's layout does not fit.
    `expect` describes the spec as written, so it is not compared if there are assignments.
    """
    tree, warnings = _read_tree(model_file(path))
    for assignment in assignments:
        tree = override(tree, assignment)
    model = replace(compile_tree(tree), warnings=warnings)
    if found := find_misses(model, expectations=not assignments):
        raise SpecError(found)
    return model


def _read_tree(path: Path) -> tuple[MappingNode, tuple[Finding, ...]]:
    """(The spec; the warnings of its import, if it is imported.)"""
    config = find_config(path)
    if config is None:
        return read_tree(path), ()
    imported = import_config_file(config, read_modules(path))
    return imported.tree, imported.warnings


@dataclass(frozen=True)
class ImportedSpec:
    """The text of an imported spec, and warnings about keys that are not read as written."""

    text: str
    warnings: tuple[Finding, ...]

    def __repr__(self) -> str:
        return f"<ImportedSpec of {self.text.count(chr(10))} lines, {len(self.warnings)} warnings>"


def import_spec(path: Path | str) -> str:
    """The text of a spec for a config.json, or for the folder of a checkpoint, as a person would write it.

    Raises SpecError naming every key and value of config.json that is not understood, by line and column. The names and
    shapes of the folder's weights are compared with the spec; raises CheckpointError naming all that do not fit.
    """
    return imported_spec(path).text


def imported_spec(path: Path | str) -> ImportedSpec:
    """The same, with the warnings of the import."""
    file = _find_config(Path(path))
    imported = import_config_file(file, read_modules(Path(path)))
    model = compile_tree(imported.tree)
    if found := find_misses(model):
        raise SpecError(found)
    weighed = Path(path).is_dir() and any(file.parent.glob("*.safetensors"))
    if weighed:
        _check_weights(model, file.parent)
    from blockc.authoring.importtext import imported_spec_text  # slow to import

    return ImportedSpec(imported_spec_text(imported, model, weighed), imported.warnings)


def _find_config(path: Path) -> Path:
    if not path.exists():
        raise NoSpecError(f"{escape_text(str(path))}: no such file or folder")
    if (file := find_config(path)) is None:
        raise NoSpecError(f"{escape_text(str(path))}: no config.json, nor a folder with one{_gguf_hint(path)}")
    return file


def _gguf_hint(path: Path) -> str:
    """A hint for a GGUF file, or a folder with one; else empty."""
    if path.suffix != ".gguf" and not any(path.glob("*.gguf")):
        return ""
    return f"; a GGUF file is read as the weights of a spec: `blockc build SPEC --weights {escape_text(str(path))}`"


def _check_weights(model: Compiled, folder: Path) -> None:
    """Raises CheckpointError if the headers of a folder's weights do not fit the model; no tensor is read."""
    if model.spec.top.checkpoint is None:
        raise CheckpointError(f"{folder}: no layout describes the tensors of this model: import config.json alone")
    held = open_checkpoint(folder)
    says = held.find_misfits(model.function, model.spec.top.context)
    named = load_layout(model.spec.top.checkpoint or "")
    match = match_tensors(rules(named, model.function, group_sizes(model.function)), held.tensors)
    if faults := [*says, *match.faults]:
        raise misfit_error(faults)


def figures(
    model: Compiled,
    *,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bf16",
    device_memory: int | str | None = None,
    quant: Quant | str | None = None,
) -> Report:
    """Parameters, FLOPs, cache and memory at a context (of the spec by default), a batch and a dtype.

    `device_memory` is a number of bytes, or a size such as "80GB". `quant` is a recipe of `build`, or its word: weights
    are then counted in codes, scales, and what stays in `dtype`. Raises UsageError for a wrong size, dtype or word.
    """
    memory = _parse_bytes(device_memory) if isinstance(device_memory, str) else device_memory
    recipe = parse_quant(quant) if isinstance(quant, str) else quant
    if recipe is not None and dtype not in FLOATS:
        raise UsageError(f"must be one of {', '.join(FLOATS)} with quant, got {dtype}", "dtype")
    return make_report(
        model.spec,
        model.decoder,
        model.function,
        context=context,
        batch=batch,
        dtype=dtype,
        device_memory=memory,
        storage=None if recipe is None else model.storage(recipe, cast(FloatType, dtype)),
    )


def quant_policy(path: Path | str, model: Compiled) -> Quant:
    """The recipe in a file, for `Target` and `figures`.

    Raises SpecError if the file is no such policy, or if a pattern of it changes nothing of the model.
    """
    return load_quant_policy(path).make_quant(model.readers)


def _parse_bytes(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"{escape_text(text)}: {error}", "device_memory") from None


def show(model: Compiled, figured: Report | None = None) -> str:
    """The block drawn in text, the table of its matrices, and its figures."""
    from blockc.report.show import report_text

    return report_text(model.spec, model.decoder, figured or figures(model))


def expanded(model: Compiled) -> str:
    """The block algebra of the model's layers, as text."""
    from blockc.report.show import expanded_text

    return expanded_text(model.decoder)


def table(figured: Sequence[Report]) -> str:
    """A table with a row for each model."""
    from blockc.report.show import report_rows

    return report_rows(figured)


def twin(model: Compiled) -> Compiled:
    """A model small enough to run: the tiny twin, or the model itself if it is small enough."""
    return compile_spec(shrink(model.spec))
