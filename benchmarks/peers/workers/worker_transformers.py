"""transformers, eager, with its growing cache: worker_transformers.py CHECKPOINT float32|bfloat16"""

from __future__ import annotations

import sys

import loop
import torch
import transformers


class Model:
    def __init__(self, folder: str, dtype: str) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.vocab = self.model.config.vocab_size
        self.weights = sum(parameter.nbytes for parameter in self.model.parameters())
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}

    def prefill(self, ids: list[int], room: int) -> torch.Tensor:
        self.cache = transformers.DynamicCache(config=self.model.config)
        return self._run(ids)

    def step(self, token: int) -> torch.Tensor:
        return self._run([token])

    def _run(self, ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            got = self.model(torch.tensor([ids]), past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return got.logits[0, -1]


def opened(threads: int) -> Model:
    torch.set_num_threads(threads)
    return Model(sys.argv[1], sys.argv[2])


loop.run(opened)
