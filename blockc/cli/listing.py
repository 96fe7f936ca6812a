"""blockc list: what comes with blockc, by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from blockc.cli.common import app

if TYPE_CHECKING:
    from blockc.api import Listed

WIDE = 110  # columns


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False) -> None:
    """List the specs that come with blockc and their figures, and the layouts and model types that it knows."""
    from blockc import api

    found = api.list()
    if as_json:
        print(json.dumps(found.data(), indent=2))
        return
    print(_table_text(found.specs))
    print(_words_text("Layouts, for `checkpoint` in a spec", found.layouts))
    print(_words_text("Model types, for `blockc import`", found.model_types))


def _table_text(rows: tuple[Listed, ...]) -> str:
    head = ("Specs", "parameters", "width", "depth", "context")
    body = [(row.name, *(f"{n:,}" for n in (row.parameters, row.width, row.depth, row.context))) for row in rows]
    wide = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join(
        "  ".join([line[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(line[1:], wide[1:], strict=True))])
        for line in (head, *body)
    )


def _words_text(title: str, words: tuple[str, ...]) -> str:
    import textwrap

    indented = textwrap.fill(
        ", ".join(words), WIDE, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return f"\n{title}\n{indented}"
