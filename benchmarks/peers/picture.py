"""Bars in SVG: the smallest at the top, and a line for what the machine allows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from html import escape

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
