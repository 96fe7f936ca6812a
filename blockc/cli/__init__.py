"""The command line: a module for each command. Slow modules are imported only when a command runs."""

from __future__ import annotations

import gc
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
from blockc.cli.common import app, run_guarded

__all__ = [
    "app",
    "bench",
    "build",
    "check",
    "diff",
    "doctor",
    "explain",
    "fmt",
    "importing",
    "listing",
    "main",
    "new",
    "run",
    "run_guarded",
    "schema",
    "show",
    "trace",
    "verify",
]


def main() -> None:
    """Runs a command; every error becomes a message and an exit code."""
    gc.set_threshold(100_000)  # commands are short, so frequent garbage collection only costs time
    terminal.prepare()
    sys.exit(run_guarded(lambda: app(standalone_mode=False)))
