"""blockc explain: what a code means, with an example on either side of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from blockc.cli.common import USAGE, app, plain, stop


@app.command()
def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A code, such as BLC012; by default all are listed.", show_default=False),
    ] = None,
) -> None:
    """Say what the code of a finding means, and show what gives it and what does not."""
    from blockc.diagnostics import CODES
    from blockc.diagnostics.pages import entry, listed

    if code is None:
        print(listed())
        return
    name = code.upper()
    if name not in CODES:
        near = _near(name, CODES)
        stop(USAGE, f"{plain(code)} is no code" + (f"; did you mean {near}?" if near else ""))
    print(entry(CODES[name]))


def _near(name: str, known: Iterable[str]) -> str | None:
    """The code of the same digits, as in BLC12 or 012, or the one that looks most like it."""
    from blockc.source import suggest

    digits = name.removeprefix("BLC")
    same = f"BLC{digits:0>3}"
    return same if digits.isdecimal() and same in known else suggest(name, known)
