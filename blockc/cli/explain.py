"""blockc explain: what a code means, with a wrong and a right example."""

from __future__ import annotations

from typing import Annotated

import typer

from blockc.cli.common import app


@app.command()
def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE", help="A code, such as BLC012; by default the list of all codes.", show_default=False
        ),
    ] = None,
) -> None:
    """Explain the code of a finding, with an example that gives it and one that does not."""
    from blockc import api

    print(api.explain(code))
