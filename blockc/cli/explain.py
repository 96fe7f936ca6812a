"""blockc explain: what a code means, with an example on either side of it."""

from __future__ import annotations

from typing import Annotated

import typer

from blockc.cli.common import app


@app.command()
def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A code, such as BLC012; by default all are listed.", show_default=False),
    ] = None,
) -> None:
    """Say what the code of a finding means, and show what gives it and what does not."""
    from blockc import api

    print(api.explain(code))
