"""Which files of an output folder a build may replace or remove, so that no user's file is lost.

Names that no build writes are never touched. Another file may be replaced if a build's manifest owns it, which means
that it lists its name and digest, or if the new bytes are the same. Any other file needs `force`. The last name of a
file of weights is never removed, because its other names may have been deleted.
"""

from __future__ import annotations

import errno
import filecmp
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from blockc.basics.errors import shorten
from blockc.products.manifest import (
    MANIFEST,
    FolderError,
    Manifest,
    digest_of,
    earlier_digests,
    is_linked_file,
    is_weights,
    other_format,
    read_manifest,
    writable,
)

Coming = Mapping[
    str, bytes | Path | None
]  # by name: its bytes, or the file it will link to; None where the content is not known yet
Identity = tuple[int, int, int]


def identity_of(path: Path) -> Identity:
    """Inode, size and time of a file or of a link itself, which tell it from one that replaces it."""
    status = path.lstat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def refuse_detour(folder: Path, name: str) -> None:
    """Raises FolderError where a file's own folder, such as 1_Pooling, is a link or a file: it would lie elsewhere."""
    parent = (folder / name).parent
    if parent != folder and os.path.lexists(parent) and not stat.S_ISDIR(parent.lstat().st_mode):
        raise FolderError(f"{parent}: not a folder, and {name} is written there: move it, or choose another with --out")


@dataclass(frozen=True)
class OutputFolder:
    """The folder to which a build is written. `digests` caches sha256 by device, inode, size and mtime."""

    folder: Path
    coming: Coming
    force: bool = False
    digests: dict[tuple[int, ...], str] = field(default_factory=dict[tuple[int, ...], str])

    def refuse(self) -> None:
        """Raises FolderError if a file would be lost, IsADirectoryError if a folder has a file's name."""
        there = _FolderContents(self)
        for name in self.coming:
            if not writable(name):
                raise FolderError(f"{self.folder / name}: a name that no build writes")
            refuse_detour(self.folder, name)
            if (self.folder / name).is_dir() and not (self.folder / name).is_symlink():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.folder / name))
        if weights := [name for name in self.coming if is_weights(name) and there.is_last(name)]:
            why = "weights that have no other name, and are not those of this build: move them, or build elsewhere"
            raise FolderError(f"{self.folder / weights[0]}: {why}")
        lost = [] if self.force else [name for name in (*self.coming, *there.changed) if there.is_lossy(name)]
        if lost:
            why = f"{self.folder}: files that are not as a build left them would be lost; nothing was written"
            advice = "move them, choose another folder with --out, or give --force to replace them"
            other = other_format(self.folder / MANIFEST)
            told = [f"{name}: {other}" if other and name == MANIFEST else name for name in lost]
            raise FolderError("\n  ".join([f"{why}:", *shorten(told), advice]))

    def gone(self) -> list[str]:
        """The files that an earlier build wrote and this one does not."""
        there = _FolderContents(self)
        return [*there.surplus, *(there.changed if self.force else ())]


@dataclass(frozen=True)
class _FolderContents:
    """The files that are in the folder now."""

    output: OutputFolder

    @cached_property
    def manifest(self) -> Manifest | None:
        try:
            return read_manifest(self.output.folder)
        except (FolderError, OSError):  # such as a link that leads to itself
            return None

    @cached_property
    def listed(self) -> Mapping[str, str]:
        """The digests that the manifest lists, by name."""
        if self.manifest is None:
            return earlier_digests(self.output.folder) if self.output.force else {}
        data = self.manifest.data
        return self.manifest.files | ({data.name: data.sha256} if data else {})

    @property
    def left(self) -> list[str]:
        """Listed files that exist and will not be written."""
        names = self.manifest.names if self.manifest else tuple(self.listed)
        return [name for name in names if name not in self.output.coming and _is_file(self.output.folder / name)]

    @cached_property
    def surplus(self) -> list[str]:
        return [name for name in self.left if self.owns(name) and not (is_weights(name) and self.is_last(name))]

    @cached_property
    def changed(self) -> list[str]:
        """Surplus files that changed since a build. Weights of another origin are not surplus; they stay."""
        return [name for name in self.left if self.manifest and not is_weights(name) and not self.owns(name)]

    def owns(self, name: str) -> bool:
        path = self.output.folder / name
        if not is_weights(name):
            return name in self.listed and self.digest(path) == self.listed[name]
        sources = self.manifest.sources if self.manifest else ()
        return any(source.name == name and is_linked_file(self.output.folder, source) for source in sources)

    def is_lossy(self, name: str) -> bool:
        """Whether a file would be lost that no build wrote."""
        path = self.output.folder / name
        if not os.path.lexists(path):
            return False
        if name == MANIFEST:
            return self.manifest is None
        return not self.owns(name) and not self.is_same(name)

    def is_last(self, name: str) -> bool:
        """Whether the file has no other known name, and differs from the file that will replace it."""
        path = self.output.folder / name
        return _is_file(path) and not path.is_symlink() and path.lstat().st_nlink == 1 and not self.is_same(name)

    def is_same(self, name: str) -> bool:
        path, coming = self.output.folder / name, self.output.coming.get(name)
        if coming is None or not path.is_file():
            return False
        if isinstance(coming, bytes):
            return path.stat().st_size == len(coming) and path.read_bytes() == coming
        return coming.is_file() and (path.samefile(coming) or filecmp.cmp(path, coming, shallow=False))

    def digest(self, path: Path) -> str:
        """The cached sha256 of a regular file, or of the file that a link leads to; else empty."""
        if not path.is_file():
            return ""
        status = path.stat()
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if key not in self.output.digests:
            self.output.digests[key] = digest_of(path)
        return self.output.digests[key]


def _is_file(path: Path) -> bool:
    """Whether it is a file, or a link to anything."""
    return os.path.lexists(path) and not stat.S_ISDIR(path.lstat().st_mode)
