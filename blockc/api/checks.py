"""What is wrong with specs."""

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
from blockc.source import Finding, inert


def policy(path: Path | str) -> Policy:
    """The bounds in this file, for `check`. Raises SpecError where they are none."""
    return load_policy(path)


def check(
    path: Path | str, assignments: Sequence[str] = (), policy: Policy | Path | str | None = None
) -> tuple[Finding, ...]:
    """All findings of one spec, errors and warnings, by place; empty where it is clean.

    With a policy also each of its bounds that the spec does not keep.
    """
    refuse_config(str(path))
    return check_file(str(spec_file(path)), assignments, _load_bounds(policy))


def check_files(
    paths: Sequence[Path | str],
    assignments: Sequence[str] = (),
    policy: Policy | Path | str | None = None,
    strict: bool = False,
) -> Iterator[Checked]:
    """The findings of each file that the paths mean, as they come; `strict` holds warnings against a file too.

    Files are those of `spec_files`, and of many as many are checked at once as there are cores.
    """
    files, bounds = [str(file) for file in spec_files(*paths)], _load_bounds(policy)
    found = _check_files(files, assignments, bounds)
    return (Checked(file, each, strict) for file, each in zip(files, found, strict=True))


def written(checked: Sequence[Checked], form: str = "text") -> str:
    """Findings as text, json, github, sarif or junit has them."""
    if form not in FORMATS:
        raise UsageError(f"{inert(form)} is no format: expected one of {', '.join(FORMATS)}")
    return FORMATS[form](checked)


def _load_bounds(given: Policy | Path | str | None) -> Policy | None:
    return given if given is None or isinstance(given, Policy) else load_policy(given)
