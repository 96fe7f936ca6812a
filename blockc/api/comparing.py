"""What changed between two specs, or since a revision of git."""

from __future__ import annotations

from pathlib import Path

from blockc.api.models import compile  # noqa: A004
from blockc.authoring.specfiles import spec_file
from blockc.basics.errors import UsageError
from blockc.checks.checking import find_misses
from blockc.diff import Diff, Side
from blockc.diff import diff as _diff
from blockc.diff.revision import at_revision
from blockc.pipeline.compiled import compile_tree
from blockc.products.manifest import MANIFEST, SPEC, read_manifest
from blockc.source import MAX_BYTES, SpecError, escape_text, parse, read_bytes


def diff(old: Path | str, new: Path | str | None = None, *, against: str | None = None) -> Diff:
    """What changed from one spec or build's folder to another, by what it breaks; `text()` has a line for each change.

    With `against`, such as "git:HEAD", give one spec, which is compared with its file at that revision. Raises
    RevisionError if git does not have it.
    """
    if (new is None) is (against is None):
        raise UsageError("expected two specs, or one with against=git:REF")
    if against is None:
        assert new is not None
        return _diff(_side_of(old), _side_of(new))
    file = spec_file(old)
    return _diff(_side_at(file, against), _side_of(file))


def _side_of(path: Path | str) -> Side:
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        file = spec_file(path)
        return Side(str(file), read_bytes(file), compile(file))
    spec = folder / SPEC
    return Side(str(folder), read_bytes(spec), compile(spec), read_manifest(folder).target)


def _side_at(path: Path, against: str) -> Side:
    """The spec at a revision. Its `expect` is not compared again."""
    kind, _, ref = against.partition(":")
    if kind != "git" or not ref:
        raise UsageError(f"{escape_text(against)}: expected git:REF, such as git:HEAD")
    text = at_revision(path, ref, MAX_BYTES + 1)
    file = f"{against}:{path}"
    model = compile_tree(parse(text, file))
    if found := find_misses(model, expectations=False):
        raise SpecError(found)
    return Side(file, text, model)
