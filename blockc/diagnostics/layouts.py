"""BLC6xx: the files of checkpoint layouts, which come with blockc."""

from __future__ import annotations

from blockc.diagnostics.code import error

LAYOUT_VERSION = error(
    "BLC601",
    "no version of the layout format, or an unknown one",
    "A layout file says layout: 1.",
    bad="layout: 2\n",
    good="layout: 1\ntensors: {wte.weight: embed.weight}\n",
    alone=True,
)
LAYOUT = error(
    "BLC602",
    "a layout file that says something else than names",
    "A layout holds names of tensors and the few words that say how they are packed; whatever else stands there is "
    "refused.",
    bad="layout: 1\ntensors: {wte.weight: embed weight}\n",
    good="layout: 1\ntensors: {wte.weight: embed.weight}\n",
    alone=True,
)
