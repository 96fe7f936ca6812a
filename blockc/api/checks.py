"""Checks specs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from blockc.api.listing import spec_files
from blockc.authoring.specfiles import refuse_config, spec_file
from blockc.basics.errors import UsageError
from blockc.checks.checking import check_file
from blockc.checks.checking import check_files as _check_files
from blockc.checks.formats import FORMATS, Checked
from blockc.checks.policy import Policy, load_policy
from blockc.source import Finding, escape_text


def policy(path: Path | str) -> Policy:
    """Reads the bounds in a file, for `check`. Raises SpecError if the file is not a policy."""
    return load_policy(path)


def check(
    path: Path | str, assignments: Sequence[str] = (), policy: Policy | Path | str | None = None
) -> tuple[Finding, ...]:
    """All findings of one spec, errors and warnings, by place; empty if it is clean.

    With a policy, each bound that the spec breaks is an error too.
    """
    refuse_config(str(path))
    return check_file(str(spec_file(path)), assignments, _load_bounds(policy))


def check_files(
    paths: Sequence[Path | str],
    assignments: Sequence[str] = (),
    policy: Policy | Path | str | None = None,
    strict: bool = False,
) -> Iterator[Checked]:
    """Yields the findings of each file; with `strict`, warnings make a file wrong too.

    The files are those of `spec_files`. Many files are checked on all cores at once.
    """
    files, bounds = [str(file) for file in spec_files(*paths)], _load_bounds(policy)
    found = _check_files(files, assignments, bounds)
    return (Checked(file, each, strict) for file, each in zip(files, found, strict=True))


def written(checked: Sequence[Checked], form: str = "text") -> str:
    """The findings as text, json, github, sarif or junit. Raises UsageError for another format."""
    if form not in FORMATS:
        raise UsageError(f"{escape_text(form)} is not a format: expected one of {', '.join(FORMATS)}")
    return FORMATS[form](checked)


def _load_bounds(given: Policy | Path | str | None) -> Policy | None:
    return given if given is None or isinstance(given, Policy) else load_policy(given)
