"""blockc check: what is wrong with specs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import NOTHING, USAGE, WRONG, Set, app, plain, print_findings, stop, there


@app.command()
def check(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Spec files, or folders of them.", show_default=False)
    ],
    assignments: Set = NOTHING,
) -> None:
    """Read specs and say what is wrong, at file:line:column. Exit code 1 if anything is."""
    from blockc import api

    files = [file for path in paths for file in api.spec_files(there(path))]
    if not files:
        stop(USAGE, f"no spec files below {', '.join(map(str, paths))}")
    wrong = 0
    for file in files:
        findings = api.check(file, assignments)
        wrong += bool(findings)
        print_findings(findings)
        if not findings:
            print(f"{plain(str(file))}: ok")
    if wrong:
        stop(WRONG, f"{wrong} of {len(files)} specs are wrong")
