"""Writes NAME.json anew for every spec, from the other libraries: python -m tests.golden.renew [NAME ...]

spec, semantic_hash   whose twin this is; where the twin has changed the file must be made again
library, version      who computed the outputs, in float64
seed                  of random_parameters
tokens                one sequence
first                 the token from which outputs of tokens are stored
lengths               of the texts whose outputs are stored, which begin with the first token; where there are such
logits, hidden        one row a token, to seven significant digits
logits, pooled        one row a text
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from blockc.ir import Array
from tests.reference.models import OUTSIDE, twin

FOLDER = Path(__file__).parent
TOKENS, FIRST = 12, 6  # the rows stored lie beyond Gemma's window
LENGTHS = (3, 7, 10, 12)
OUTPUTS = ("logits", "last_hidden_state", "pooled")


def golden(name: str) -> dict[str, Any]:
    outside, model = OUTSIDE[name], twin(name)
    tokens = np.random.RandomState(outside.seed).randint(0, model.spec.top.vocab, TOKENS)
    run = outside.outputs(model)
    whole = run(tokens[None])
    texts = [run(tokens[None, :length]) for length in LENGTHS]
    rows = {key: array[0, FIRST:] for key, array in whole.items() if array.ndim == 3}
    of_texts = {key: np.concatenate([text[key] for text in texts]) for key in whole if key not in rows}
    return {
        "spec": name,
        "semantic_hash": model.decoder.semantic_hash,
        "library": outside.library,
        "version": outside.version,
        "seed": outside.seed,
        "tokens": tokens.tolist(),
        "first": FIRST,
        **({"lengths": LENGTHS} if of_texts else {}),
        **{key: rounded(array) for key, array in (rows | of_texts).items()},
    }


def rounded(rows: Array) -> list[list[float]]:
    return [[float(f"{x:.7g}") for x in row] for row in rows.tolist()]


def text(stored: dict[str, Any]) -> str:
    """JSON with one line a key and one line a row of an output."""
    lines = [f'  "{key}": {json.dumps(value)}' for key, value in stored.items() if key not in OUTPUTS]
    for key in (key for key in OUTPUTS if key in stored):
        rows = ",\n    ".join(json.dumps(row, separators=(",", ":")) for row in stored[key])
        lines.append(f'  "{key}": [\n    {rows}\n  ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or OUTSIDE:
        (FOLDER / f"{name}.json").write_text(text(golden(name)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
