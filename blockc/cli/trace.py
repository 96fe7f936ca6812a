"""blockc trace: the residual stream after each addition."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from blockc.cli.common import NOTHING, USAGE, Set, SpecPath, app, stop


@app.command()
def trace(
    spec: SpecPath,
    tokens: Annotated[str, typer.Option(metavar="IDS", help="Token ids, such as 3,1,4.")],
    seed: Annotated[int, typer.Option(help="The seed of the random parameters.")] = 0,
    assignments: Set = NOTHING,
) -> None:
    """Print the residual stream of the last token after each addition. A large spec is traced on its twin."""
    from blockc import api

    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", tokens):
        stop(USAGE, f"--tokens {tokens}: expected ids such as 3,1,4")
    model = api.twin(api.compile(spec, assignments))
    steps = api.trace(model, [int(t) for t in tokens.split(",")], seed)
    wide = max(len(step.name) for step in steps)
    print(f"{model.spec.name}, width {model.spec.top.width}: the stream of the last token")
    print(f"{'after':{wide}}  {'rms':>8}  {'largest':>8}  first values")
    for step in steps:
        last = step.stream[-1]
        print(
            f"{step.name:{wide}}  {step.rms[-1]:8.4f}  {abs(last).max():8.4f}  "
            + " ".join(f"{v:8.4f}" for v in last[:6])
        )
