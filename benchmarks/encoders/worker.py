"""A model of sentences, as a worker: worker.py onnx FOLDER | eager CHECKPOINT | sdpa CHECKPOINT | modules CHECKPOINT

    {"do": "load", "threads": N}                               {"seconds": s, "memory": {...}}
    {"do": "vectors", "batches": [[[ids], ...], ...]}          {"vectors": [[D numbers], ...]}   of length 1
    {"do": "time", "batches": ..., "calls": R}                 {"ms": [R numbers]}   all batches; one call more before

A batch is padded on the right to its longest text. What is timed begins with arrays in memory, and ends with what the
model gives, in memory: a graph of blockc and sentence-transformers give vectors, the others hidden states, whose means
are taken by `vectors` alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from protocol import memory, serve

Batch = dict[str, Any]  # input_ids, attention_mask, token_type_ids: (B, S) int64
Run = Callable[[Batch], Any]  # vectors (B, D), or hidden states (B, S, W)


def padded(rows: list[list[int]]) -> Batch:
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def onnx(folder: str, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    path = str(Path(folder) / "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given, made = ({value.name for value in each} for each in (session.get_inputs(), session.get_outputs()))
    output = next(name for name in ("pooled", "last_hidden_state") if name in made)
    return lambda batch: session.run([output], {name: batch[name] for name in given})[0]


def transformers(attention: str) -> Callable[[str, int], Run]:
    def opened(folder: str, threads: int) -> Run:
        import torch
        import transformers

        torch.set_num_threads(threads)
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=attention).eval()

        def run(batch: Batch) -> Any:
            with torch.inference_mode():
                return model(**{name: torch.from_numpy(array) for name, array in batch.items()}).last_hidden_state

        return run

    return opened


def modules(folder: str, threads: int) -> Run:
    import sentence_transformers
    import torch

    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(folder, device="cpu").eval()

    def run(batch: Batch) -> Any:
        with torch.inference_mode():
            return model({name: torch.from_numpy(array) for name, array in batch.items()})["sentence_embedding"]

    return run


KINDS = {"onnx": onnx, "eager": transformers("eager"), "sdpa": transformers("sdpa"), "modules": modules}


class Worker:
    def __init__(self, kind: str, folder: str) -> None:
        self.kind, self.folder = kind, folder
        self.run: Any = None

    def load(self, threads: int) -> dict[str, Any]:
        start = time.perf_counter()
        self.run = KINDS[self.kind](self.folder, threads)
        seconds = time.perf_counter() - start
        self.run(padded([[101, 102]]))
        return {"seconds": seconds, "memory": memory()}

    def vectors(self, batches: list[list[list[int]]]) -> dict[str, Any]:
        found = [self._unit(batch, np.asarray(self.run(batch))) for batch in map(padded, batches)]
        return {"vectors": np.concatenate(found).tolist()}

    def _unit(self, batch: Batch, made: Any) -> Any:
        if made.ndim == 3:
            real = batch["attention_mask"][:, :, None]
            made = (made * real).sum(1) / real.sum(1)
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    def time(self, batches: list[list[list[int]]], calls: int) -> dict[str, Any]:
        given = list(map(padded, batches))
        taken: list[float] = []
        for _ in range(calls + 1):
            start = time.perf_counter()
            for batch in given:
                self.run(batch)
            taken.append(1000 * (time.perf_counter() - start))
        return {"ms": taken[1:]}


if __name__ == "__main__":
    worker = Worker(*sys.argv[1:])
    serve({"load": worker.load, "vectors": worker.vectors, "time": worker.time})
