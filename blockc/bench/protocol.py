"""What a worker speaks: one JSON object a line comes in, one goes out. Whatever else it prints goes to standard error.

    {"do": "load", "threads": 2}                 {"seconds": s, "memory": {...}, "weights": bytes, "versions": {...}}
    {"do": "prefill", "tokens": N, "repeat": R}  {"ms": [R numbers]}   an empty cache to the last token's logits
    {"do": "decode", "context": N, "steps": K}   {"ms": [K numbers]}   one token each, after N others
    {"do": "memory"}                             {"rss": bytes, "private": bytes, "peak": bytes}
    {"do": "quit"}                               {}

Of prefills and steps one more is made first and not counted. An answer of {"error": text} says what went wrong; with
"environment": true it is the machine that lacks something. `memory` and `weights` may be null. `context`, the most
tokens of a row, may be said too when a model is loaded. Logits end in the memory of the host.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Handler = Callable[..., dict[str, Any]]


class UnableError(Exception):
    """What a worker answers instead of figures; `environment`: the machine lacks something.

    A worker runs where its peer is installed, and blockc need not be: this file imports nothing of it.
    """

    def __init__(self, message: str, environment: bool = False) -> None:
        super().__init__(message)
        self.environment = environment


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answers requests until one says quit, or until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        answer = {} if do == "quit" else _answer(handlers, do, request)
        print(json.dumps(answer), file=answers, flush=True)
        if do == "quit":
            return


def _answer(handlers: Mapping[str, Handler], do: str, request: Mapping[str, Any]) -> dict[str, Any]:
    if do not in handlers:
        return {"error": f"no request is called {do}"}
    try:
        return handlers[do](**request)
    except UnableError as error:
        return {"error": str(error), "environment": error.environment}
    except ModuleNotFoundError as error:
        return {"error": f"the package {error.name} is missing", "missing": error.name, "environment": True}
    except Exception as error:  # a worker that goes on can say what happened
        said = str(error).splitlines() or [""]
        return {"error": f"{type(error).__name__}: {said[0][:300]}"}


def memory() -> dict[str, int] | None:
    """Bytes of this process: resident, those of them that are no file's, and the most that were resident so far.

    A file's pages, such as those of weights that are mapped, can be dropped and are shared with whoever maps them too.
    None where the system does not say.
    """
    try:
        now = _kilobytes(Path("/proc/self/smaps_rollup"))
        peak = _kilobytes(Path("/proc/self/status"))["VmHWM"]
    except (OSError, KeyError):
        return None
    return {"rss": now["Rss"] * 1024, "private": now["Anonymous"] * 1024, "peak": peak * 1024}


def _kilobytes(path: Path) -> dict[str, int]:
    lines = (line.partition(":") for line in path.read_text(encoding="ascii").splitlines())
    return {name: int(said.split()[0]) for name, _, said in lines if said.endswith(" kB")}


def draw_tokens(count: int, vocab: int) -> list[int]:
    """Token ids, the same for every candidate of a vocabulary."""
    return random.Random(0).choices(range(vocab), k=count)
