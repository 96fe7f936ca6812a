"""`show` in text: the block drawn, its matrices, the figures. Plain characters, no colours.

GB is 1e9 bytes, GiB is 2^30. A multiply-add is 2 FLOPs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import yaml

from blockc.language.algebra import Decoder, canonical_form
from blockc.language.spec import Spec
from blockc.report import Block, LayerSizes, Report, Storage
from blockc.report.drawing import draw_block, draw_experts
from blockc.report.expect import count_layers, group_by_size

Row = Sequence[str]

INDENT = "  "
WIDTH = 110  # columns of running text


def report_text(spec: Spec, decoder: Decoder, report: Report) -> str:
    """One model: its blocks, their matrices, then parameters, FLOPs and memory."""
    parts = [_title(spec, report)]
    for block in report.matrices:
        layer = _layer_term(decoder, block)
        drawn = [_indent(each) for each in (draw_block(layer), *draw_experts(layer))]
        parts += [_block_title(block, report), *drawn, _legend_text(block), _matrices_text(block)]
    parts += [_parameters_text(report), _flops_text(report), _memory_text(report)]
    parts += [] if report.storage is None else [_storage_text(report.storage, report)]
    return "\n\n".join(parts) + "\n"


def report_rows(reports: Sequence[Report]) -> str:
    """Several models: a row each."""
    head = ("", "layers", "width", "parameters", "weights", "cache/token", "cache", "FLOPs/token", "share", "equal at")
    body = [
        (
            r.name,
            f"{r.depth:,}",
            f"{r.width:,}",
            f"{r.parameters.total:,}",
            format_size(r.memory.weights),
            f"{r.kv_cache.bytes_per_token:,}",
            format_size(r.memory.kv_cache),
            _unit(r.flops.per_token, "FLOP", 1000),
            f"{r.flops.attention_share:.1%}",
            "never" if r.flops.crossover is None else f"{r.flops.crossover:,}",
        )
        for r in reports
    ]
    return "\n".join([*_table([head, *body], "<>>>>>>>>>"), "", *_notes_text(reports)]) + "\n"


def expanded_text(decoder: Decoder) -> str:
    """The lower storey as YAML: every word replaced by its term, every derived value written out."""
    data = _null_to_none(canonical_form(decoder))
    data["layers"] = [_run_entry(name, len(list(same))) for name, same in groupby(data["layers"])]
    return yaml.safe_dump(data, default_flow_style=None, sort_keys=False, width=100, allow_unicode=True)


def _run_entry(name: str, count: int) -> Any:
    """An entry of a layer list: kind, or {kind: n}."""
    return name if count == 1 else {name: count}


def _null_to_none(value: Any) -> Any:
    """`none` turns a thing off; null is no word of the language."""
    match value:
        case None:
            return "none"
        case dict():
            return {key: _null_to_none(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_null_to_none(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


# The block


def _title(spec: Spec, report: Report) -> str:
    sizes = f"{report.depth} layers, width {report.width:,}, vocabulary {report.vocab:,}, context {spec.top.context:,}"
    lines = [f"{report.name}: {sizes}"]
    if spec.top.description:
        printable = "".join(char if char.isprintable() else " " for char in spec.top.description)
        lines.append(textwrap.fill(printable, WIDTH))
    if report.cut_tile is not None:
        laid = f"{report.cut_tile.laid} of its {report.cut_tile.tile} layers are laid"
        lines.append(f"The last tile of the pattern is cut: {laid}.")
    return "\n".join(lines)


def _block_title(block: Block, report: Report) -> str:
    kinds, count = list(block.kinds), sum(block.kinds.values())
    if len(kinds) > 1:
        each = ", ".join(f"{n:,} {kind}{_windows_text(kind, report)}" for kind, n in block.kinds.items())
        return f"The block of {'every layer' if count == report.depth else count_layers(kinds, report.layers)}: {each}"
    if count == report.depth:
        return f"The block of every layer{_windows_text(kinds[0], report)}"
    return f"The block of {count_layers(kinds, report.layers)}{_windows_text(kinds[0], report)}"


def _windows_text(kind: str, report: Report) -> str:
    windows = report.windows.get(kind, ())
    return f" (window {' and '.join(f'{w:,}' for w in windows)})" if windows else ""


def _layer_term(decoder: Decoder, block: Block) -> Any:
    """The term of the first layer that is this block."""
    return next(term for term, kind in zip(decoder.layers, decoder.kinds, strict=True) if kind in block.kinds)


def _legend_text(block: Block) -> str:
    return _indent("\n".join(_table(list(block.parts.items()), "<<")))


def _matrices_text(block: Block) -> str:
    head = ("matrix", "out x in", "receives", "produces", "parameters", "share")
    body = [
        (m.label, " x ".join(f"{n:,}" for n in m.shape), m.receives, m.produces, f"{m.parameters:,}", f"{m.share:.1%}")
        for m in block.matrices
    ]
    body.append(("", "", "", "", f"{block.parameters:,}", ""))
    if block.idle:
        whole = block.parameters + block.norms + block.biases
        body.append(("", "", "", "idle for a token", f"{block.idle:,}", f"{block.idle / whole:.1%}"))
    return _indent("\n".join(_table([head, *body], "<><<>>")))


# The figures


def _parameters_text(report: Report) -> str:
    p = report.parameters
    lines: list[Row] = [(name, f"{n:,}", "") for name, n in p.before_layers.items()]
    for sizes, kinds in group_by_size(p).items():
        count = sum(report.layers[kind] for kind in kinds)
        each = f"{sizes.total:,} each" if count > 1 else ""
        lines.append((count_layers(kinds, report.layers), f"{count * sizes.total:,}", each))
        lines += _layer_lines(sizes)
    lines += [(name, f"{n:,}", "") for name, n in p.after_layers.items()]
    total = "" if p.active == p.total else f"{p.active:,} active for one token"
    lines.append(("total", f"{p.total:,}", total))
    lines += [("buffers", f"{p.buffers:,}", "held, and not learned")] if p.buffers else []
    return _section("Parameters", lines)


def _layer_lines(sizes: LayerSizes) -> list[Row]:
    named = (("attention", sizes.attention), ("mlp", sizes.mlp))
    lines: list[Row] = [
        (INDENT + name, "", f"{n:,} a layer, {n / sizes.matrices:.1%} of its matrices") for name, n in named if n
    ]
    small = (("norms", sizes.norms), ("biases", sizes.biases))
    lines += [(INDENT + name, "", f"{n:,} a layer, {n / sizes.total:.3%} of it") for name, n in small if n]
    return lines


def _flops_text(report: Report) -> str:
    f, context = report.flops, f"{report.context:,}"
    latents = "" if f.train_per_token == 3 * f.per_token else ", with latents as in a prefill"
    reached = "less at every context" if f.crossover is None else f"as much as they from {f.crossover:,} tokens on"
    lines = [
        ("matmuls", f.matmul_per_token, "2 an entry of each matrix; head in, look-up out"),
        ("attention", f.attention_per_token, f"{f.attention_share:.1%} of the matmuls; {reached}"),
        ("one token", f.per_token, f"the last one of {context}" if report.generates else f"one of {context}"),
        *([("a text's vector", f.matmul_per_text, "the matrices behind the pool")] if f.matmul_per_text else []),
        ("prefill" if report.generates else "a text", f.prefill, f"{context} tokens, each with all that it sees"),
        ("training", f.train_per_token, f"a token, there and back: 3 times{latents}"),
    ]
    shown = [(name, f"{n:,}", _unit(n, "FLOP", 1000), note) for name, n, note in lines]
    return _section(f"FLOPs at a context of {context}", shown, "<>><")


_ANEW = "every layer computes all tokens anew"


def _memory_text(report: Report) -> str:
    m, cache, activations = report.memory, report.kv_cache, report.memory.activations
    each = cache.bytes_per_token_per_layer
    a_layer = f", {each:,} a layer" if each is not None else ""
    kept = f"{cache.bytes_per_token:,} a token{a_layer}; {_ratio_text(m.kv_cache, m.weights)} the weights"
    lines = [
        ("weights", m.weights, _devices_text(report)),
        *([("cache", m.kv_cache, kept if m.kv_cache else _ANEW)] if report.generates else []),
    ]
    if cache.bytes.ring_buffer != cache.bytes.kept_by_graph:
        lines.append(("  in ring buffers", cache.bytes.ring_buffer, "no more than each window; the graph keeps all"))
    given = "of every token of a prefill" if report.generates else "what comes out"
    scores = f"attention not fused: {format_size(activations.scores_materialised)} of scores"
    lines += [
        ("activations", activations.peak, f"attention fused; peak at {activations.peak_at}"),
        ("  with scores", activations.peak_materialised, scores),
        (" and ".join(report.outputs), activations.logits, given),
    ]
    shown = [(name, f"{n:,}", format_size(n), format_binary_size(n), note) for name, n, note in lines]
    title = f"Memory: bytes in {report.dtype} at a context of {report.context:,} and batch {report.batch:,}"
    return _section(title, shown, "<>>><")


def _storage_text(storage: Storage, report: Report) -> str:
    """The weights by how they are stored, and what a decode step reads of them."""
    head = ("", "tensors", "codes", "scales", "lows", "bytes", "", "bits a number")
    body = [
        (each.how, f"{each.tensors:,}", f"{each.codes:,}", f"{each.scales:,}", f"{each.lows:,}", f"{each.bytes:,}",
         format_size(each.bytes), f"{8 * each.bytes / each.numbers:.4g}")
        for each in storage.stored
    ]  # fmt: skip
    numbers, cache = sum(each.numbers for each in storage.stored), report.kv_cache.bytes.ring_buffer
    step = storage.read + cache
    for name, size, note in (
        ("all", storage.bytes, f"{8 * storage.bytes / numbers:.4g}"),
        ("read in a decode step", storage.read, ""),
        ("  with the cache", step, f"at {report.context:,} tokens"),
    ):
        body.append((name, "", "", "", "", f"{size:,}", format_size(size), note))
    return _section(f"Weights by the recipe {storage.recipe}", [head, *body], "<>>>>>>>")


def _devices_text(report: Report) -> str:
    m = report.memory
    if m.devices is None or m.device_memory is None:
        return ""
    return f"{m.devices:,} device{'' if m.devices == 1 else 's'} of {_device_size(m.device_memory)}"


def _device_size(n: int) -> str:
    """192 GiB where it is so many to the byte, else in GB."""
    return f"{n >> 30:,} GiB" if n % 2**30 == 0 else f"{n / 1e9:,g} GB"


def _ratio_text(part: int, whole: int) -> str:
    return f"{part / whole:.2f} x" if part >= whole else f"{part / whole:.1%} of"


def _notes_text(reports: Sequence[Report]) -> list[str]:
    settings = dict.fromkeys(f"{r.dtype} at batch {r.batch:,}" for r in reports)
    contexts = dict.fromkeys(f"{r.context:,}" for r in reports)
    at = f"a context of {next(iter(contexts))}" if len(contexts) == 1 else "each model's own context"
    return [
        f"In {', '.join(settings)} and {at}; cache/token in bytes.",
        "share: attention as a share of the matmuls; equal at: the context from which it is as much as they.",
    ]


# Units and tables


def format_size(n: int) -> str:
    """16.06 GB: powers of 1000."""
    return _unit(n, "B", 1000)


def format_binary_size(n: int) -> str:
    """14.96 GiB: powers of 1024."""
    return _unit(n, "iB", 1024) if n >= 1024 else ""


def _unit(n: int, unit: str, base: int) -> str:
    if n < base:
        return f"{n} {unit}"
    value, power = float(n), 0
    while value >= base and power < 6:
        value, power = value / base, power + 1
    prefix = "kMGTPE"[power - 1] if base == 1000 else "KMGTPE"[power - 1]
    return f"{value:.{2 if value < 100 else 1}f} {prefix}{unit}"


def _section(title: str, lines: Sequence[Row], columns: str = "<><") -> str:
    return f"{title}\n{_indent(chr(10).join(_table(lines, columns)))}"


def _table(lines: Sequence[Row], columns: str) -> list[str]:
    """Columns two blanks apart, to the left (<) or to the right (>)."""
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(columns))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, columns, widths, strict=True)).rstrip()
        for line in lines
    ]


def _indent(block: str) -> str:
    return "\n".join(INDENT + line for line in block.split("\n"))


__all__ = ["expanded_text", "format_binary_size", "format_size", "report_rows", "report_text"]
