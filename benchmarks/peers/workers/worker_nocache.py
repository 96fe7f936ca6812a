"""A model.onnx without a cache, which computes all tokens again for each new one: worker_nocache.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import loop
import numpy as np
import onnxruntime


class Model:
    def __init__(self, folder: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, ["CPUExecutionProvider"])
        self.vocab = self.session.get_outputs()[0].shape[2]
        self.weights = sum(file.stat().st_size for file in Path(folder).glob("*.data"))
        self.versions = {"onnxruntime": onnxruntime.__version__}

    def prefill(self, ids: list[int], room: int) -> np.ndarray:
        self.ids = ids
        return self.session.run(["logits"], {"input_ids": np.array([ids])})[0][0, -1]

    def step(self, token: int) -> np.ndarray:
        return self.prefill([*self.ids, token], 0)


loop.run(lambda threads: Model(sys.argv[1], threads))
