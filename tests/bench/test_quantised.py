"""The page of recipes: its picture, and its table laid between the marks; nothing is measured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import quantised
from benchmarks.peers.picture import points
from tests.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def test_a_line_joins_the_points_that_none_beats() -> None:
    values = {"a": (1.0, 8.0), "b": (2.0, 4.0), "c": (4.0, 4.0), "d": (8.0, 1.0)}
    drawn = ElementTree.fromstring(points("a < b", "ms", "KL", values))
    at = [(float(each.get("cx", "")), float(each.get("cy", ""))) for each in drawn.iter(f"{SVG}circle")]
    assert len(at) == 4
    (line,) = drawn.iter(f"{SVG}polyline")
    joined = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
    assert joined == [at[0], at[1], at[3]], "c takes longer than b for the same"
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = at
    assert abs((bx - ax) - (dx - cx)) < 0.11 and by == cy and ay < by < dy, "powers of two are as far from each other"


def test_the_page_is_laid_from_results(tmp_path: Path) -> None:
    def interval(value: float) -> dict[str, float]:
        return {"value": value, "low": 0.9 * value, "high": 1.1 * value}

    quality = {name: interval(0.5) for name in ("kl", "kl_median", "same", "ratio")}
    found: dict[str, dict[str, Any]] = {
        "fp32": {"bytes": 4e6, "ms": {"decode at 128": 20.0}},
        "int4": {"bytes": 1e6, "ms": {"decode at 128": 5.0}, "quality": quality},
    }
    shutil.copy(ROOT / "docs" / "quantisation.md", tmp_path)
    quantised.page(found, tmp_path)
    page = (tmp_path / "quantisation.md").read_text(encoding="utf-8")
    assert "| int4 | 1 | 0.5 (0.45 to 0.55) | 0.5 | 0.500 (± 0.050) | x 0.500 (± 0.050) | 5.00 (0.25) |" in page
    assert "int4: 5, 0.5" in (tmp_path / "quantisation.svg").read_text(encoding="utf-8")
