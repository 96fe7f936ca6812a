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
from blockc.diff.checkpoint import checkpoint, renames
from blockc.diff.numeric import numeric
from blockc.diff.rest import cost, io, source
from blockc.diff.side import Side

__all__ = ["CLASSES", "Change", "Class", "Diff", "Side", "diff"]


def diff(a: Side, b: Side) -> Diff:
    """Raises LayoutError where a spec's checkpoint layout does not fit it."""
    renamed = renames(a, b)
    changes = [*checkpoint(a, b, renamed), *numeric(a, b, renamed), *io(a, b), *cost(a, b)]
    return Diff(a.file, b.file, tuple(changes or source(a, b)))
