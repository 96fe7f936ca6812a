"""How model.py reads a checkpoint: the spec's layout as the tables that a template prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from blockc.ir import Function, is_call, parameters
from blockc.layouts import layout
from blockc.weights.rules import Pattern, Patterns, group_sizes, patterns


@dataclass(frozen=True)
class Loading:
    """`template` prints the loading method, `table` what stands above the model for it."""

    template: str
    table: str
    helpers: tuple[str, ...]
    of: str
    names: tuple[Pattern, ...] = ()
    tied: dict[str, str] = field(default_factory=dict[str, str])
    ignored: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    layers: int = 1
    buffers: tuple[Pattern, ...] = ()  # what is held and not learned

    @property
    def single(self) -> tuple[Pattern, ...]:
        return tuple(row for row in self.names if len(row.targets) == 1)

    @property
    def joined(self) -> tuple[Pattern, ...]:
        return tuple(row for row in self.names if len(row.targets) > 1)

    @property
    def unprefixed(self) -> tuple[str, ...]:
        """The names that never bear the prefix."""
        names = (pattern.name for pattern in (*self.names, *self.buffers))
        return tuple(name for name in (*names, *self.tied) if not name.startswith(self.prefixes))


_COPYING = ("check_names", "fitting")


def loading(checkpoint: str | None, function: Function) -> Loading:
    """For the layout named `checkpoint`. Raises LayoutError where that does not fit the function's parameters."""
    kept = {path for path, param in parameters(function).items() if param.buffer}
    common = ("open_tensors", *(["take_buffers"] if kept else []))
    if checkpoint is None:
        return Loading(
            "torch/load_own.j2",
            "torch/no_table.j2",
            (*common, *_COPYING, "copy_own"),
            "under the names of its parameters",
            buffers=tuple(Pattern(path, (path,), 1, 0, False, ()) for path in sorted(kept)),
        )
    depth = sum(is_call(n) for n in function.nodes)
    held = patterns(layout(checkpoint), function, group_sizes(function))
    packed = any(len(p.targets) > 1 or p.groups > 1 or p.transpose for p in held)
    prefixes = tuple(prefix for prefix in held.prefixes if prefix)
    word = "packed" if packed else "renamed"
    naming = (*(["with_prefix"] if prefixes else []), *(["without_ignored"] if held.ignored else []))
    helpers = (*common, *naming, *_COPYING, f"copy_{word}")
    rows = tuple(_rows(held, depth))
    buffers = tuple(row for row in rows if {to.format(i=(row.layers or (0,))[0]) for to in row.targets} <= kept)
    return Loading(
        f"torch/load_{word}.j2",
        f"torch/table_{word}.j2",
        helpers,
        f"in the layout of {checkpoint}",
        tuple(row for row in rows if row not in buffers),
        dict(held.tied),
        tuple(held.ignored),
        prefixes,
        depth,
        buffers,
    )


def _rows(held: Patterns, depth: int) -> Iterator[Pattern]:
    """A pattern that holds for some layers only is printed layer by layer."""
    for p in held:
        if len(p.layers) in (0, depth):
            yield p
        else:
            for i in p.layers:
                targets = tuple(target.format(i=i) for target in p.targets)
                yield Pattern(p.name.format(i=i), targets, p.groups, p.axis, p.transpose, ())
