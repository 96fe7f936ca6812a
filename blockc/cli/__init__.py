"""The command line: a file for each command. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from blockc.cli import bench, build, check, diff, doctor, explain, fmt, importing, new, run, schema, show, trace, verify
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
    "main",
    "new",
    "run",
    "schema",
    "show",
    "trace",
    "verify",
]


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    context.obj = debug


def main() -> None:
    """Runs a command; every error becomes a message and an exit code."""
    sys.exit(guarded(lambda: app(standalone_mode=False)))
