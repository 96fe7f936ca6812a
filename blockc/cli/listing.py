"""blockc list: what comes with blockc, by name."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from blockc.cli.common import app

FORMAT = 1  # of the JSON
WIDE = 110  # columns


@dataclass(frozen=True)
class Row:
    """A spec and its figures."""

    name: str
    parameters: int
    width: int
    depth: int
    context: int


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False) -> None:
    """List the specs that come with blockc, with their figures, and the layouts and model types that it knows."""
    from blockc.distribution import layout_names, model_types, specs

    rows = [_row(name, path) for name, path in specs().items()]
    if as_json:
        made = {"format": FORMAT, "specs": [asdict(row) for row in rows]}
        print(json.dumps({**made, "layouts": layout_names(), "model_types": model_types()}, indent=2))
        return
    print(_table(rows))
    print(_words("Layouts, for `checkpoint` in a spec", layout_names()))
    print(_words("Model types, for `blockc import`", model_types()))


def _row(name: str, path: Path) -> Row:
    """The count is that of `expect`, which every spec that comes with blockc has, and is tested for."""
    from blockc.source import plain, read

    keys: Any = plain(read(path))
    return Row(name, keys["expect"]["parameters"], keys["width"], keys["depth"], keys["context"])


def _table(rows: list[Row]) -> str:
    head = ("Specs", "parameters", "width", "depth", "context")
    body = [(row.name, *(f"{n:,}" for n in (row.parameters, row.width, row.depth, row.context))) for row in rows]
    wide = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return "\n".join(
        "  ".join([line[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(line[1:], wide[1:], strict=True))])
        for line in (head, *body)
    )


def _words(title: str, words: tuple[str, ...]) -> str:
    import textwrap

    indented = textwrap.fill(
        ", ".join(words), WIDE, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return f"\n{title}\n{indented}"
