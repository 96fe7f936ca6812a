"""onnxruntime's optimizer of transformers on another's export: optimize.py EXPORT OUT [raw]

Its graph counts the tokens of a row from the left, and is wrong for other padding; with `raw` it reads the mask.
"""

import sys
from pathlib import Path

from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model

source, out = (Path(word) for word in sys.argv[1:3])
options = FusionOptions("bert")
options.use_raw_attention_mask("raw" in sys.argv[3:])
made = optimize_model(
    str(source / "model.onnx"), model_type="bert", num_heads=12, hidden_size=384, optimization_options=options
)
out.mkdir(parents=True, exist_ok=True)
made.save_model_to_file(str(out / "model.onnx"))
