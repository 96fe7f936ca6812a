"""The Quant of matrices that are stored as a checkpoint has them: a rule for each, or for those of all layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from blockc.basics.blocks import Blocks
from blockc.graph.quant import Quant

NAME = "carried"
Rule = tuple[str, Blocks | None]


def carried_quant(readers: Mapping[str, Sequence[str]], blocks: Mapping[str, Blocks]) -> Quant:
    """`readers` are the names of what reads each matrix, `blocks` how it is stored, both by path; others stay floats.

    Where most layers store a matrix in one way, that is one rule, after a rule for each layer that differs.
    """
    wanted: dict[str, Blocks | None] = {name: blocks.get(path) for path, names in readers.items() for name in names}
    quant = Quant(NAME, _shorten(wanted))
    if all(quant.blocks_for(names) == blocks.get(path) for path, names in readers.items()):
        return quant
    return Quant(NAME, tuple(wanted.items()))


def _shorten(wanted: Mapping[str, Blocks | None]) -> tuple[Rule, ...]:
    alike: dict[str, list[Blocks | None]] = {}
    for name, blocks in wanted.items():
        alike.setdefault(_pattern(name), []).append(blocks)
    usual = {pattern: max(held, key=held.count) for pattern, held in alike.items()}
    apart = ((name, blocks) for name, blocks in wanted.items() if blocks != usual[_pattern(name)])
    return (*apart, *((pattern, blocks) for pattern, blocks in usual.items() if blocks))


def _pattern(name: str) -> str:
    return re.sub(r"^layers\.\d+\.", "layers.*.", name)
