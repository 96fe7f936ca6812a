"""Writes NAME.json anew for every spec, from the other libraries: python -m tests.golden.renew

spec, semantic_hash   whose twin this is; where the twin has changed the file must be made again
library, version      who computed the logits, in float64
seed                  of random_parameters
tokens                one sequence
first                 the token from which logits are stored
logits                one row a token, to seven significant digits
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.reference.models import OUTSIDE, twin

FOLDER = Path(__file__).parent
TOKENS, FIRST = 12, 6  # the rows stored lie beyond Gemma's window


def golden(name: str) -> dict[str, Any]:
    outside, model = OUTSIDE[name], twin(name)
    tokens = np.random.RandomState(outside.seed).randint(0, model.spec.top.vocab, TOKENS)
    return {
        "spec": name,
        "semantic_hash": model.decoder.semantic_hash,
        "library": outside.library,
        "version": outside.version,
        "seed": outside.seed,
        "tokens": tokens.tolist(),
        "first": FIRST,
        "logits": [[float(f"{x:.7g}") for x in row] for row in outside.logits(model)(tokens[None])[0, FIRST:].tolist()],
    }


def text(stored: dict[str, Any]) -> str:
    """JSON with one line a key and one line a row of logits."""
    rows = ",\n    ".join(json.dumps(row, separators=(",", ":")) for row in stored["logits"])
    lines = [f'  "{key}": {json.dumps(value)}' for key, value in stored.items() if key != "logits"]
    return "{\n" + ",\n".join([*lines, f'  "logits": [\n    {rows}\n  ]']) + "\n}\n"


def main() -> None:
    torch.set_num_threads(1)
    for name in OUTSIDE:
        (FOLDER / f"{name}.json").write_text(text(golden(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
