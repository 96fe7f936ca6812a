"""Formats the text of specs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from blockc.authoring.specfiles import find_bundled, spec_file, write_whole
from blockc.basics.errors import UsageError
from blockc.language.fmt import format_spec
from blockc.source import escape_text, read_bytes


@dataclass(frozen=True)
class Formatted:
    """A spec file before and after formatting."""

    file: str
    before: bytes
    after: bytes

    def __repr__(self) -> str:
        return f"<Formatted {self.file}: {'changed' if self.changed else 'in its form already'}>"

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> list[str]:
        """The changes as lines of a unified diff, without line ends."""
        before, after = (text.decode("utf-8-sig").splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, self.file, f"{self.file} (formatted)")
        return [line.rstrip("\r\n") for line in lines]


def format_text(text: str, file: str = "<text>") -> str:
    """Formats a spec's text: keys in order, numbers at their shortest. Raises SpecError, which names `file`."""
    return format_spec(text.encode(), file).decode()


def fmt(path: Path | str, *, write: bool = True) -> Formatted:
    """Formats a spec file, in place unless `write` is False. Values and comments stay."""
    file = spec_file(path)
    if write and find_bundled(str(path)) is not None:
        raise UsageError(f"{escape_text(str(path))}: comes with blockc, and is not overwritten: give write=False")
    old = read_bytes(file)
    made = Formatted(str(file), old, format_spec(old, str(file)))
    if write and made.changed:
        if file.is_symlink():
            raise UsageError(f"{escape_text(str(file))}: is a link; format the file that it leads to")
        write_whole(file, made.after.decode(), file.stat().st_mode & 0o7777)
    return made
