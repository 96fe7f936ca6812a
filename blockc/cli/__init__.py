"""The command line: a file for each command. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys

from blockc.cli import (
    bench,
    build,
    check,
    diff,
    doctor,
    explain,
    fmt,
    importing,
    listing,
    new,
    run,
    schema,
    show,
    terminal,
    trace,
    verify,
)
from blockc.cli.common import app, guarded

__all__ = [
    "app",
    "bench",
    "build",
    "check",
    "diff",
    "doctor",
    "explain",
    "fmt",
    "guarded",
    "importing",
    "listing",
    "main",
    "new",
    "run",
    "schema",
    "show",
    "trace",
    "verify",
]


def main() -> None:
    """Runs a command; every error becomes a message and an exit code."""
    terminal.prepare()
    sys.exit(guarded(lambda: app(standalone_mode=False)))
