"""What changed between two specs, and whom it breaks.

    CHECKPOINT  a tensor's name, shape or tying: a saved checkpoint no longer fits
    NUMERIC     the tensors that both have, and another function of them
    IO          the graph's inputs and outputs, the shapes of its cache
    COST        parameters, FLOPs per token, cache bytes per token
    SOURCE      the text alone

The classes are read off what the specs were built into; their keys only say where a change was written.
"""

from __future__ import annotations

from blockc.diff.changes import CLASSES, Change, Class, Diff
from blockc.diff.checkpoint import compare_checkpoints, find_renames
from blockc.diff.numeric import compare_numerics
from blockc.diff.rest import compare_cost, compare_io, compare_source
from blockc.diff.side import Side

__all__ = ["CLASSES", "Change", "Class", "Diff", "Side", "diff"]


def diff(a: Side, b: Side) -> Diff:
    """Raises LayoutError where a spec's checkpoint layout does not fit it."""
    renamed = find_renames(a, b)
    changes = [
        *compare_checkpoints(a, b, renamed),
        *compare_numerics(a, b, renamed),
        *compare_io(a, b),
        *compare_cost(a, b),
    ]
    return Diff(a.file, b.file, tuple(changes or compare_source(a, b)))
