"""The protocol of workers: a line with a JSON object in, one out. Whatever else a worker prints goes to standard error.

    {"do": "load", "threads": 2}                 {"seconds": s, "memory": {...}, "weights": bytes, "versions": {...}}
    {"do": "prefill", "tokens": N, "repeat": R}  {"ms": [R numbers]}   an empty cache to the last token's logits
    {"do": "decode", "context": N, "steps": K}   {"ms": [K numbers]}   one token each, after N others
    {"do": "encode", "tokens": N, "rows": B, "repeat": R, "vocab": V}
                                                 {"ms": [R numbers]}   a batch of texts to all outputs
    {"do": "ops", "context": N, "steps": K}      {"ms": [K numbers], "ops": [[operator, nodes, ms], ...]}
    {"do": "drafts", "most": N}                  {"lacks": text, "rounds": bool}
    {"do": "write", "ids": [tokens], "new": N, "stop": [tokens], "lookup": N}
                                                 {"tokens": [1 to N], "ms": number, "drafts": [steps, drafted, kept]}
    {"do": "memory"}                             {"rss": bytes, "private": bytes, "peak": bytes}
    {"do": "quit"}                               {}

Prefills, steps and batches are preceded by one that is not counted. An answer {"error": text} says what went wrong;
with "environment": true the machine lacks something. `memory` and `weights` may be null. The answer to "load" may also
have `context`, the largest number of tokens in a row. Logits must end in host memory.

The answer to "decode" may also have `loop_ms`: of each step, what the worker's own code takes around the run of the
model. The worker of a model without a cache answers "encode" in place of "prefill" and "decode": texts of tokens below
V, without padding. Only blockc's worker answers three of the requests:

"ops": steps under onnxruntime's profiler, and what a step's nodes take of each operator, medians of the steps, the most
costly operator first.

"drafts": why the model cannot check a draft of N tokens in one step, empty if it can; and whether several tokens of a
step are rounded otherwise than one.

"write": the likeliest tokens after a prompt, N at most, up to one of `stop`, by drafts of at most `lookup` tokens, or
without any for 0; the milliseconds of all tokens after the first one; the model's steps after the prompt, the tokens
drafted for them, and how many of these were right.
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
    """Why a worker has no figures; `environment`: the machine lacks something.

    Workers of other tools run in environments without blockc, so this file imports nothing of it.
    """

    def __init__(self, message: str, environment: bool = False) -> None:
        super().__init__(message)
        self.environment = environment


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answers requests until "quit", or until there are no more."""
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
    except Exception as error:  # the worker answers with the error and goes on
        said = str(error).splitlines() or [""]
        return {"error": f"{type(error).__name__}: {said[0][:300]}"}


def memory() -> dict[str, int] | None:
    """Bytes of this process: resident, those of them that belong to no file, and the peak; None if not known.

    Pages of files, such as mapped weights, can be dropped, and are shared with other processes that map them.
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
    """Random token ids, the same for every candidate with this vocabulary."""
    return random.Random(0).choices(range(vocab), k=count)
