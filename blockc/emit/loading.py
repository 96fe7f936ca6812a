"""How model.py reads a checkpoint: the spec's layout as the tables that a template prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blockc.ir import Function
from blockc.spec import Spec
from blockc.weights import Pattern, Patterns, group_sizes, layout, patterns


@dataclass(frozen=True)
class Loading:
    """`template` prints the loading method, `table` what stands above the model for it."""

    template: str
    table: str
    helpers: tuple[str, ...]
    of: str
    names: tuple[Pattern, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    layers: int = 1

    @property
    def unprefixed(self) -> tuple[str, ...]:
        """The names that never bear the prefix."""
        return tuple(n for n in (*(p.name for p in self.names), *dict(self.tied)) if not n.startswith(self.prefixes))


def loading(spec: Spec, function: Function) -> Loading:
    """Raises LayoutError where the spec's layout does not fit its parameters."""
    common = ("open_tensors", "check_names", "fitting")
    if spec.top.checkpoint is None:
        return Loading("torch/load_own.j2", "torch/no_table.j2", (*common, "copy_own"), "under the names of its parameters")
    held = patterns(layout(spec.top.checkpoint), function, group_sizes(function))
    packed = any(len(p.targets) > 1 or p.groups > 1 or p.transpose for p in held)
    prefixes = tuple(prefix for prefix in held.prefixes if prefix)
    word = "packed" if packed else "renamed"
    helpers = (*common, f"copy_{word}", *(["without_ignored"] if held.ignored else []), *(["with_prefix"] if prefixes else []))
    return Loading(
        f"torch/load_{word}.j2",
        f"torch/table_{word}.j2",
        helpers,
        f"in the layout of {spec.top.checkpoint}",
        tuple(_rows(held, spec.top.depth)),
        tuple(held.tied.items()),
        tuple(held.ignored),
        prefixes,
        spec.top.depth,
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
