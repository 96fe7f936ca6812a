"""What all formats share: a file, its findings, and whether they make it wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from blockc.diagnostics import SEVERITIES
from blockc.source import PATH_SHOWN, Finding, Place, escape_text

STDIN = "<stdin>"  # the file name for standard input


@dataclass(frozen=True)
class Checked:
    """One file and its findings; with `strict`, warnings make it wrong too."""

    file: str
    findings: tuple[Finding, ...]
    strict: bool = False

    def __repr__(self) -> str:
        counts = Counter(finding.severity for finding in self.findings)
        said = ", ".join(f"{n} {severity}{'s' * (n != 1)}" for severity, n in counts.items())
        return f"<Checked {relative_path(self.file)}: {said or 'clean'}>"

    @property
    def wrong(self) -> bool:
        return any(self.counts(each) for each in self.findings)

    def counts(self, finding: Finding) -> bool:
        return finding.severity == "error" or (self.strict and finding.severity == "warning")


def by_severity(checked: Sequence[Checked]) -> Iterator[Finding]:
    """The findings by severity, errors first, else in order."""
    every = [finding for each in checked for finding in each.findings]
    yield from (finding for severity in SEVERITIES for finding in every if finding.severity == severity)


def totals(checked: Sequence[Checked]) -> dict[str, int]:
    """The numbers of files, errors, warnings and notes."""
    counts = Counter(finding.severity for each in checked for finding in each.findings)
    return {"files": len(checked), **{f"{severity}s": counts[severity] for severity in SEVERITIES}}


def path_of(place: Place) -> str:
    """The file relative to the working folder, with forward slashes, so that no path of the machine is stored."""
    return relative_path(place.file)


def relative_path(file: str) -> str:
    if file == STDIN:
        return STDIN.strip("<>")
    if not os.path.isabs(file):
        return escape_text(file.replace(os.sep, "/"), PATH_SHOWN)
    try:
        return escape_text(os.path.relpath(file).replace(os.sep, "/"), PATH_SHOWN)
    except ValueError:  # on another drive
        return escape_text(os.path.basename(file), PATH_SHOWN)


def path_in_repository(place: Place) -> str:
    """The file relative to the repository's root, as services name it, whatever the working folder is.

    The root is GITHUB_WORKSPACE, else the next folder up with .git. A file outside it is relative to the working
    folder.
    """
    if place.file == STDIN:
        return relative_path(STDIN)
    file = os.path.abspath(place.file)
    for root in _roots(os.getcwd(), os.environ.get("GITHUB_WORKSPACE", "")):
        for at, top in ((file, root), (_real(file), os.path.realpath(root))):
            if at.startswith(os.path.join(top, "")):
                return escape_text(os.path.relpath(at, top).replace(os.sep, "/"), PATH_SHOWN)
    return path_of(place)


@cache
def _roots(here: str, workspace: str) -> tuple[str, ...]:
    folders = (here, *map(str, Path(here).parents))
    above = next((folder for folder in folders if os.path.lexists(os.path.join(folder, ".git"))), "")
    return tuple(os.path.abspath(root) for root in (workspace, above) if root)


def _real(file: str) -> str:
    """The path with the links of its folder resolved; the file itself may be a link in the repository."""
    return os.path.join(os.path.realpath(os.path.dirname(file)), os.path.basename(file))


def relocate(finding: Finding) -> Finding:
    """The finding with its files relative to the working folder."""
    others = tuple((label, replace(place, file=path_of(place))) for label, place in finding.others)
    return replace(finding, place=replace(finding.place, file=path_of(finding.place)), others=others)


def full_message(finding: Finding) -> str:
    """The message, then expected, got and hint on a line each."""
    parts = (("expected", finding.expected), ("got", finding.got), ("hint", finding.hint))
    return "\n".join(
        (escape_text(finding.message), *(f"{label}: {escape_text(said)}" for label, said in parts if said))
    )
