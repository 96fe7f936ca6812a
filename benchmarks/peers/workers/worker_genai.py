"""onnxruntime-genai by its own API, past and present in one buffer: worker_genai.py FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import loop
import numpy as np
import onnxruntime_genai


class Model:
    def __init__(self, folder: str, threads: int) -> None:
        config = onnxruntime_genai.Config(folder)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self.model = onnxruntime_genai.Model(config)
        self.vocab = json.loads((Path(folder) / "genai_config.json").read_text())["model"]["vocab_size"]
        self.weights = (Path(folder) / "model.onnx.data").stat().st_size
        self.versions = {"onnxruntime-genai": onnxruntime_genai.__version__}

    def prefill(self, ids: list[int], room: int) -> np.ndarray:
        options = onnxruntime_genai.GeneratorParams(self.model)
        options.set_search_options(max_length=len(ids) + room + 1, past_present_share_buffer=True, do_sample=False)
        self.generator = onnxruntime_genai.Generator(self.model, options)
        return self._run(ids)

    def step(self, token: int) -> np.ndarray:
        return self._run([token])

    def _run(self, ids: list[int]) -> np.ndarray:
        self.generator.append_tokens(np.array(ids, np.int32))
        return self.generator.get_logits().reshape(-1)


loop.run(lambda threads: Model(sys.argv[1], threads))
