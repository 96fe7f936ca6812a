"""Benchmark results as a picture: rates of each candidate, and the machine's floor. Needs matplotlib."""

from __future__ import annotations

import io
from typing import Any

from blockc.bench.asked import Measure
from blockc.bench.measure import Bench, Candidate

_WIDE = 0.8  # width of a group of bars, in distances between groups


def draw_plot(bench: Bench, format_: str) -> bytes:
    """Draws the results as SVG or PNG. Raises ModuleNotFoundError without matplotlib."""
    from matplotlib.figure import Figure

    kinds = [do for do in ("prefill", "decode", "encode") if any(measure.do == do for measure in bench.measures)]
    figure: Any = Figure(figsize=(5 * len(kinds), 4), layout="constrained")
    for axes, do in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        _panel(axes, bench, do)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    out = io.BytesIO()
    figure.savefig(out, format=format_)
    return out.getvalue()


def _panel(axes: Any, bench: Bench, do: str) -> None:
    """A group of bars for each measure; a line over a bar is its floor, which no bar should reach."""
    measures = [measure for measure in bench.measures if measure.do == do]
    each = _WIDE / len(bench.candidates)
    for i, candidate in enumerate(bench.candidates):
        left = [j - _WIDE / 2 + (i + 0.5) * each for j in range(len(measures))]
        rates = [measure.rate(candidate.median(measure)) for measure in measures]
        axes.bar(left, rates, each, label=candidate.entry.name)
        if candidate.floor:
            _floors(axes, candidate, do, left, each, i == 0)
    axes.set_title(do)
    axes.set_ylabel("sentences a second" if do == "encode" else "tokens a second")
    axes.set_xticks(range(len(measures)), [_named(measure) for measure in measures])


def _named(measure: Measure) -> str:
    return f"{measure.rows} x {measure.tokens}" if measure.do == "encode" else f"{measure.tokens} tokens"


def _floors(axes: Any, candidate: Candidate, do: str, left: list[float], each: float, first: bool) -> None:
    known = [measure for measure in candidate.floor if measure.do == do]
    rates = [measure.rate(candidate.floor[measure]) for measure in known]
    ends = [x - each / 2 for x in left], [x + each / 2 for x in left]
    axes.hlines(rates, *ends, colors="black", label="what the machine allows" if first else None)
