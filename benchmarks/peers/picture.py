"""Bars in SVG: the smallest at the top, and a line for what the machine allows; and points in two figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from html import escape
from math import log

ROW, TOP, LEFT, WIDE, RIGHT = 20, 34, 190, 420, 80  # pixels
OURS, OTHERS, LINE = "#2f6fbf", "#b8bec6", "#c0392b"


def bars(
    title: str, values: Mapping[str, float], floor: float | None, ours: Collection[str], shown: Callable[[float], str]
) -> str:
    order = sorted(values.items(), key=lambda pair: pair[1])
    scale = WIDE / max([*values.values(), floor or 0.0])
    height = TOP + ROW * len(order) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDE + RIGHT}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for i, (name, value) in enumerate(order):
        y, long = TOP + ROW * i, max(1.0, value * scale)
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="bar" x="{LEFT}" y="{y + 2}" width="{long:.1f}" height="{ROW - 6}" '
            f'fill="{OURS if name in ours else OTHERS}"/>',
            f'<text x="{LEFT + long + 5:.1f}" y="{y + 13}">{shown(value)}</text>',
        ]
    if floor is not None:
        x = LEFT + floor * scale
        lines += [
            f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - 8}" stroke="{LINE}" '
            'stroke-dasharray="4 3"/>',
            f'<text x="{x + 4:.1f}" y="{TOP - 4}" fill="{LINE}" font-size="10">floor {shown(floor)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def points(title: str, across: str, up: str, values: Mapping[str, tuple[float, float]]) -> str:
    """Points in two figures of which less is better, both on scales of powers; a line joins those that none beats."""
    xs, ys = ([pair[i] for pair in values.values()] for i in (0, 1))
    width, height = LEFT + WIDE, 300
    left, right, top, bottom = 70, width - 140, TOP + 36, height - 44
    at_x, at_y = _scale(xs, left, right), _scale(ys, bottom, top)
    best = [pair for pair in values.values() if not any(_beats(other, pair) for other in values.values())]
    line = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in sorted(best))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<path d="M{left - 20},{top - 12} V{bottom + 16} H{right + 20}" fill="none" stroke="{OTHERS}"/>',
        f'<text x="{right + 20}" y="{bottom + 32}" text-anchor="end">{escape(across)}</text>',
        f'<text x="{left - 16}" y="{top - 20}">{escape(up)}</text>',
        f'<polyline points="{line}" fill="none" stroke="{OURS}" stroke-dasharray="4 3"/>',
    ]
    for name, (x, y) in values.items():
        place = f'x="{at_x(x) + 8:.1f}" y="{at_y(y) - 6:.1f}"'
        lines += [
            f'<circle class="point" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="4" fill="{OURS}"/>',
            f"<text {place}>{escape(name)}: {x:.3g}, {y:.2g}</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


def _scale(values: list[float], first: float, last: float) -> Callable[[float], float]:
    low, high = log(min(values)), log(max(values))
    return lambda value: first + (last - first) * ((log(value) - low) / (high - low) if high > low else 0.5)


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]
