"""blockc show: a drawing and the figures of a spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from blockc.basics.floats import StorageType
from blockc.cli.common import NOTHING, USAGE, Quantised, QuantisedBy, Set, app, complete_spec, read_recipe, stop
from blockc.cli.terminal import adapt_drawing


@app.command()
def show(
    specs: Annotated[
        list[Path],
        typer.Argument(
            metavar="SPEC...",
            help="A spec, or several for a table of them: files, or names of specs that come with blockc.",
            show_default=False,
            autocompletion=complete_spec,
        ),
    ],
    expanded: Annotated[bool, typer.Option("--expanded", help="Print the block algebra of the layers.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Print the graph, function by function.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    context: Annotated[
        int | None, typer.Option(metavar="T", min=1, help="The number of tokens; by default the spec's context.")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="B", min=1, help="The number of sequences.")] = 1,
    dtype: Annotated[
        StorageType | None,
        typer.Option(
            help="The type of weights, cache and activations; by default bf16, with a recipe fp32 as built.",
            show_default=False,
        ),
    ] = None,
    quant: Quantised = None,
    quant_policy: QuantisedBy = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="M", help="The memory of one device, such as 80GB or 80GiB.")
    ] = None,
    assignments: Set = NOTHING,
) -> None:
    """Draw the block, list its matrices, and count parameters, FLOPs, cache and memory."""
    from blockc import api

    if sum((expanded, graph, as_json)) > 1:
        stop(USAGE, "--expanded, --graph and --json exclude each other: choose one")
    models = [api.compile(spec, assignments) for spec in specs]
    recipes = [read_recipe(quant, quant_policy, model) for model in models]
    word = dtype or ("bf16" if recipes[0] is None else "fp32")
    figures = [
        api.figures(model, context=context, batch=batch, dtype=word, device_memory=device_memory, quant=recipe)
        for model, recipe in zip(models, recipes, strict=True)
    ]
    if as_json:
        data = [f.json() for f in figures]
        print(json.dumps(data[0] if len(data) == 1 else data, indent=2))
    elif expanded or graph:
        print("\n".join(api.expanded(m) if expanded else m.graph_txt() for m in models), end="")
    elif len(models) == 1:
        print(adapt_drawing(api.show(models[0], figures[0])))
    else:
        print(api.table(figures))
