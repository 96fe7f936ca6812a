"""llama.cpp by way of llama-cpp-python, as it comes but for the length of its context: worker_llamacpp.py FILE.gguf"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp
import loop
import numpy as np

CONTEXT = 2048  # tokens; its cache is made at the start


class Model:
    def __init__(self, file: str, threads: int) -> None:
        self.model = llama_cpp.Llama(
            file, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False
        )  # fmt: skip
        self.vocab = self.model.n_vocab()
        self.weights = Path(file).stat().st_size
        self.versions = {"llama-cpp-python": llama_cpp.__version__}

    def prefill(self, ids: list[int], room: int) -> np.ndarray:
        self.model.reset()
        return self._run(ids)

    def step(self, token: int) -> np.ndarray:
        return self._run([token])

    def _run(self, ids: list[int]) -> np.ndarray:
        self.model.eval(ids)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.model.ctx, -1), (self.vocab,))


loop.run(lambda threads: Model(sys.argv[1], threads))
