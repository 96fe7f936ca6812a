"""Which spec a word on the command line means: a file, or the name of a spec that comes with blockc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from blockc.cli.common import USAGE, plain, stop


def named(word: str) -> Path | None:
    """The spec of this name, from the working folder where it lies below that; a file of the name goes before it."""
    from blockc.distribution import specs

    if os.path.lexists(word) and not os.path.isdir(word):
        return None
    found = specs().get(word)
    return None if found is None else _near(found)


def _near(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def spec_file(path: Path) -> Path:
    """A spec's file; a name alone is that of a spec that comes with blockc."""
    if (found := named(str(path))) is not None:
        return found
    if path.is_dir():
        stop(USAGE, f"{plain(str(path))}: is a folder, and one spec is wanted")
    if not path.exists():
        stop(USAGE, no_such(str(path)))
    return path


def model_file(path: Path) -> Path:
    """A spec's file as above, or what is imported: a config.json or a folder with one."""
    from blockc.importing import config_file

    return path if config_file(path) is not None and path.exists() else spec_file(path)


def no_such(word: str) -> str:
    """That there is no such file, and what may have been meant."""
    from blockc.distribution import specs
    from blockc.source import suggest

    folder, name = os.path.split(word)
    if folder or name.endswith((".yaml", ".yml")):
        near = suggest(name, _beside(folder or "."))
        near = os.path.join(folder, near) if near else None
        more = ""
    else:
        near, more = suggest(name, specs()), "; `blockc list` names the specs that come with blockc"
    return f"{plain(word)}: no such file or folder" + (f"; did you mean {plain(near)}?" if near else more)


def _beside(folder: str) -> Iterable[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.name.endswith((".yaml", ".yml"))]
    except OSError:
        return []
