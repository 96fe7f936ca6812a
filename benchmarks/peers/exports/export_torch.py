"""torch.onnx of transformers' model, without a cache: export_torch.py CHECKPOINT OUT"""

import sys
from pathlib import Path

import torch
import transformers


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, use_cache=False).logits


model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
out = Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
ids = torch.arange(16)[None]
length = torch.export.Dim("length", min=2, max=4096)
with torch.no_grad():
    torch.onnx.export(
        Logits(model), (ids,), out / "model.onnx", dynamo=True, external_data=True, input_names=["input_ids"],
        output_names=["logits"], dynamic_shapes={"input_ids": {1: length}},
    )  # fmt: skip
