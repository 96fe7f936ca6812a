"""Which files a command reads, and where it writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import USAGE, plain_line, stop

STDIN = "-"


def require_folder(path: Path | None) -> Path | None:
    """Refuses a file to write whose folder does not exist, before any work is done."""
    if path is not None and not path.parent.is_dir():
        stop(
            USAGE,
            f"{plain_line(str(path))}: cannot be written, since there is no folder {plain_line(str(path.parent))}",
        )
    return path


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to a file, whole or not at all.",
        dir_okay=False,
        callback=require_folder,
    ),
]


def spec_files(paths: list[str]) -> list[str]:
    """The spec files at these paths, each once, and - for stdin."""
    from blockc.authoring.specfiles import files_at

    found = {os.path.normpath(file): file for path in paths for file in ([path] if path == STDIN else files_at(path))}
    if not found:
        stop(USAGE, f"no spec files at {', '.join(map(plain_line, paths))}")
    return list(found.values())
