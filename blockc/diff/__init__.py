"""What changed between two specs or builds, and what the changes break.

    CHECKPOINT  a tensor's name, shape, tying or storage: a saved checkpoint no longer fits
    NUMERIC     the function of the tensors that both have
    IO          the graph's inputs and outputs, the shapes of its cache
    COST        parameters, FLOPs per token, cache bytes per token; of builds, bytes of weights
    SOURCE      the text alone

Changes are found in the compiled models; the specs' keys only show where a change was written.
"""

from __future__ import annotations

from blockc.diff.changes import CLASSES, Change, Class, Diff
from blockc.diff.checkpoint import compare_checkpoints, find_renames
from blockc.diff.numeric import compare_numerics
from blockc.diff.rest import compare_cost, compare_io, compare_source, compare_storage
from blockc.diff.side import Side

__all__ = ["CLASSES", "Change", "Class", "Diff", "Side", "diff"]


def diff(a: Side, b: Side) -> Diff:
    """Compares two specs. Raises LayoutError if a checkpoint layout does not fit its spec."""
    renamed = find_renames(a, b)
    changes = [
        *compare_checkpoints(a, b, renamed),
        *compare_numerics(a, b, renamed),
        *compare_io(a, b),
        *compare_cost(a, b),
        *compare_storage(a, b),
    ]
    return Diff(a.file, b.file, tuple(changes or compare_source(a, b)))
