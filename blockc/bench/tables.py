"""Benchmark results as text for a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from blockc.bench.asked import Measure
from blockc.bench.measure import Bench, Candidate, StepProfile
from blockc.bench.writing import Prompt, Writing

VERSION = 1
_PERCENTILES = (50, 90, 99)


def as_text(bench: Bench) -> str:
    parts = [_head(bench), *([_speeds(bench)] if bench.measures else []), _sizes(bench)]
    if any(measure.do == "decode" for measure in bench.measures):
        parts.append(_latencies(bench))
    parts += [_operators(each, measure) for each in bench.candidates for measure in each.profiles]
    if bench.prompt is not None:
        parts.append(_texts(bench, bench.prompt))
    return "\n\n".join("\n".join(lines) for lines in parts)


def _head(bench: Bench) -> list[str]:
    pinned = f", pinned to {_count(len(bench.pinned), 'core')}" if bench.pinned else ", not pinned"
    lines = [f"{bench.provider}, {_count(bench.threads, 'thread')}{pinned}; {_count(bench.turns, 'turn')}, medians"]
    if bench.machine is not None:
        reads = [speed.bytes_s / 1e9 for speed in bench.speeds.values()]
        lines.append(f"the machine reads {_span(reads)} GB/s by {bench.machine['how']}")
        products = [(speed.flops_s / 1e9, speed.by) for speed in bench.speeds.values() if speed.flops_s]
        if products:
            by = " and ".join(sorted({str(by) for _, by in products}))
            lines[-1] += f" and multiplies {_span([flops for flops, _ in products])} GFLOP/s in fp32 by {by}"
    return lines


def _span(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.0f}", f"{max(numbers):.0f}"
    return low if low == high else f"{low} to {high}"


def _speeds(bench: Bench) -> list[str]:
    rows = [["", "", *map(str, bench.measures)]]
    for candidate in bench.candidates:
        ms = [candidate.median(measure) for measure in bench.measures]
        rates = [measure.rate(taken) for measure, taken in zip(bench.measures, ms, strict=True)]
        rows.append([candidate.entry.name, "ms", *(f"{taken:.4g}" for taken in ms)])
        rows.append(["", bench.measures[0].unit, *(f"{rate:.4g}" for rate in rates)])
        if candidate.floor:
            rows.append(["", "x floor", *(f"{of_floor(candidate, measure):.2f}" for measure in bench.measures)])
        if bench.other is not None:
            ratios = (of_other(bench, candidate, measure) for measure in bench.measures)
            rows.append(["", f"x {bench.other.entry.name}", *(f"{ratio:.2f}" for ratio in ratios)])
    return align(rows, 2)


def _sizes(bench: Bench) -> list[str]:
    rows = [["", "load s", "weights", "private", "resident", "peak", "on disk"]]
    for candidate in bench.candidates:
        load, memory = candidate.load, candidate.load["memory"] or {}
        kept = (load["weights"], memory.get("private"), memory.get("rss"), memory.get("peak"), candidate.disk)
        rows.append([candidate.entry.name, f"{load['seconds']:.2f}", *map(_megabytes, kept)])
    return align(rows, 1)


def _latencies(bench: Bench) -> list[str]:
    """Percentiles of single decode steps, and what of a step is outside onnxruntime's run."""
    decodes = [measure for measure in bench.measures if measure.do == "decode"]
    rows = [["", "ms of a step", *(f"p{p}" for p in _PERCENTILES), "loop", "of p50"]]
    for candidate in bench.candidates:
        for measure in decodes:
            name = candidate.entry.name if measure is decodes[0] else ""
            loop, percentiles = candidate.loop_median(measure), (candidate.percentile(measure, p) for p in _PERCENTILES)
            said = ["-", "-"] if loop is None else [f"{loop:.3g}", _percent(loop / candidate.median(measure))]
            rows.append([name, str(measure), *(f"{ms:.4g}" for ms in percentiles), *said])
    return align(rows, 2)


def _operators(candidate: Candidate, measure: Measure) -> list[str]:
    """What a decode step takes by operator."""
    profile = candidate.profiles[measure]
    rows = [[f"{candidate.entry.name}, {measure}", "nodes", "ms", "share"]]
    for op in (*profile.ops, profile.total):
        rows.append([op.op, str(op.nodes), f"{op.ms:.3f}", _percent(_share(op.ms, profile))])
    return [
        *align(rows, 1),
        f"medians of {_count(len(profile.ms), 'step')} under onnxruntime's profiler, which adds time to each node: "
        f"a step took {profile.median:.4g} ms with it, {candidate.median(measure):.4g} without",
    ]


def _texts(bench: Bench, prompt: Prompt) -> list[str]:
    """What a token takes on the text of one's own, plain and by lookup, and what came of the drafts."""
    rows = [["", "", *(f"lookup {lookup}" if lookup else "plain" for lookup in prompt.lookups)]]
    for candidate in bench.candidates:
        ms = [_token_ms(candidate, lookup) for lookup in prompt.lookups]
        rows.append([candidate.entry.name, "ms", *(_figure(each, ".4g") for each in ms)])
        rows.append(["", "tokens/s", *(_figure(each and 1000 / each, ".4g") for each in ms)])
        if bench.other is not None:
            ratios = (_text_of_other(bench, candidate, lookup) for lookup in prompt.lookups)
            rows.append(["", f"x {bench.other.entry.name}", *(_figure(each, ".2f") for each in ratios)])
    said = (f"{each.entry.name}: {_said_of_text(each.writing, prompt)}" for each in bench.candidates if each.writing)
    return [f"{prompt.name}, a token after the first one", *align(rows, 2), *said]


def _said_of_text(writing: Writing, prompt: Prompt) -> str:
    """How many tokens were read and written, and what drafts came to, in the first turn."""
    read = f"{_count(len(writing.start.ids), 'token')} read, {len(writing.texts[0][0].tokens)} written"
    if writing.lacks:
        return f"{read}; no lookup: {writing.lacks}"
    if not prompt.lookup:
        return read
    made, parts = writing.texts[prompt.lookup][0], writing.parts_at(prompt.lookup)
    text = "same text" if parts is None else f"another text from token {parts} on"
    if parts is not None and writing.rounds:
        text += ", since its products round several tokens otherwise than one"
    return (
        f"{read}; by lookup {writing.ratio(prompt.lookup):.2f} times as fast: {_count(made.steps, 'step')}, "
        f"{made.kept} of {made.drafted} drafted tokens kept, {text}"
    )


def _token_ms(candidate: Candidate, lookup: int) -> float | None:
    return None if candidate.writing is None else candidate.writing.median(lookup)


def _text_of_other(bench: Bench, candidate: Candidate, lookup: int) -> float | None:
    """None where one of the two has no such text."""
    ours, theirs = (each and _token_ms(each, lookup) for each in (candidate, bench.other))
    return ours / theirs if ours and theirs else None


def _figure(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


def _share(ms: float, profile: StepProfile) -> float:
    return ms / profile.total.ms if profile.total.ms else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def of_floor(candidate: Candidate, measure: Measure) -> float:
    return candidate.median(measure) / candidate.floor[measure]


def of_other(bench: Bench, candidate: Candidate, measure: Measure) -> float:
    assert bench.other is not None
    return candidate.median(measure) / bench.other.median(measure)


def align(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Rows as lines, columns two spaces apart; the first `left` columns are left-aligned, the others right-aligned."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust] * left + [str.rjust] * (len(wide) - left)
    return ["  ".join(side(cell, w) for side, cell, w in zip(sides, row, wide, strict=True)).rstrip() for row in rows]


def _megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.0f} MB"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def as_data(bench: Bench) -> dict[str, Any]:
    """The results as JSON has them, in milliseconds, bytes, and rates per second."""
    return {
        "bench": VERSION,
        "provider": bench.provider,
        "threads": bench.threads,
        "cores": bench.pinned,
        "turns": bench.turns,
        "against": bench.other and bench.other.entry.name,
        "machine": bench.machine
        and {
            "read_by": bench.machine["how"],
            "buffer": bench.machine["buffer"],
            "speeds": {
                str(measure): {"bytes_s": speed.bytes_s, "flops_s": speed.flops_s, "product_by": speed.by}
                for measure, speed in bench.speeds.items()
            },
        },
        "text": bench.prompt and {"name": bench.prompt.name, "tokens": bench.prompt.new, "lookup": bench.prompt.lookup},
        "candidates": [_candidate(bench, candidate) for candidate in bench.candidates],
    }


def _candidate(bench: Bench, candidate: Candidate) -> dict[str, Any]:
    load = candidate.load
    return {
        "name": candidate.entry.name,
        "folder": str(candidate.entry.folder),
        "shared_cache": candidate.entry.shared,
        "versions": load["versions"],
        "load_seconds": load["seconds"],
        "memory": load["memory"],
        "weights": load["weights"],
        "on_disk": candidate.disk,
        "measures": {str(measure): _measure(bench, candidate, measure) for measure in bench.measures},
        "text": _text(bench, bench.prompt, candidate) if bench.prompt else None,
    }


def _text(bench: Bench, prompt: Prompt, candidate: Candidate) -> dict[str, Any]:
    """The text of one's own: figures of each way to write it, those of drafts in the first turn."""
    assert candidate.writing is not None
    writing, drafted = candidate.writing, bool(prompt.lookup and not candidate.writing.lacks)
    return {
        "read": len(writing.start.ids),
        "tokenizer": str(writing.start.tokenizer),
        "lacks": writing.lacks or None,
        "rounds": writing.rounds,
        "plain": _way(bench, candidate, writing, 0),
        "lookup": {
            **_way(bench, candidate, writing, prompt.lookup),
            "times_as_fast": writing.ratio(prompt.lookup),
            "same_text": writing.parts_at(prompt.lookup) is None,
            "parts_at": writing.parts_at(prompt.lookup),
        }
        if drafted
        else None,
    }


def _way(bench: Bench, candidate: Candidate, writing: Writing, lookup: int) -> dict[str, Any]:
    ms, first = writing.median(lookup), writing.texts[lookup][0]
    return {
        "written": len(first.tokens),
        "token_ms": ms,
        "tokens_s": ms and 1000 / ms,
        "of_against": _text_of_other(bench, candidate, lookup),
        "steps": first.steps,
        "drafted": first.drafted,
        "kept": first.kept,
    }


def _measure(bench: Bench, candidate: Candidate, measure: Measure) -> dict[str, Any]:
    known, loop, profile = measure in candidate.floor, candidate.loop_median(measure), candidate.profiles.get(measure)
    return {
        "do": measure.do,
        "tokens": measure.tokens,
        **({"rows": measure.rows} if measure.do == "encode" else {}),
        "count": len(candidate.ms[measure]),
        **{f"p{p}_ms": candidate.percentile(measure, p) for p in _PERCENTILES},
        **_rates(measure, candidate.median(measure)),
        "floor_ms": candidate.floor[measure] if known else None,
        "of_floor": of_floor(candidate, measure) if known else None,
        "of_against": None if bench.other is None else of_other(bench, candidate, measure),
        "loop_ms": loop,
        "of_loop": None if loop is None else loop / candidate.median(measure),
        "profile": profile and _profile(profile),
    }


def _rates(measure: Measure, ms: float) -> dict[str, float]:
    sentences = {"sentences_s": measure.rate(ms)} if measure.do == "encode" else {}
    return {"tokens_s": measure.tokens_s(ms), **sentences}


def _profile(profile: StepProfile) -> dict[str, Any]:
    """A step's medians by operator, and the step itself, under onnxruntime's profiler."""
    ops = [{"op": op.op, "nodes": op.nodes, "ms": op.ms, "share": _share(op.ms, profile)} for op in profile.ops]
    return {
        "step_ms": profile.median,
        "steps": len(profile.ms),
        "nodes": profile.total.nodes,
        "nodes_ms": profile.total.ms,
        "ops": ops,
    }


def as_json(bench: Bench) -> str:
    return json.dumps(as_data(bench), indent=2)
