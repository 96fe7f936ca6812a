"""What tests/oldest.py has written, run: for each folder how far its logits are, or why it does not run.

Runs by itself, in an environment that has NumPy and onnxruntime and nothing else.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(root: Path) -> None:
    found = {str(told.parent.relative_to(root)): judged(told.parent) for told in sorted(root.rglob("told.json"))}
    print(json.dumps({"onnxruntime": onnxruntime.__version__, "found": found}))


def judged(folder: Path) -> str:
    """Nothing where all is as it must be."""
    told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
        return next(filter(None, (wrong(session, folder, told, case) for case in told["cases"])), "")
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"


def wrong(session, folder: Path, told, case: str) -> str:
    arrays = np.load(folder / f"{case}.npz")
    names = [o.name for o in session.get_outputs()]
    inputs = {i.name for i in session.get_inputs()}
    states = {past: arrays[f"0 {past}"] for past in told["states"]}
    worst = 0.0
    for i in range(told["cases"][case]):
        call = {name.partition(" ")[2]: arrays[name] for name in arrays.files if name.startswith(f"{i} ")}
        given = {name: value for name, value in (call | states).items() if name in inputs}
        outputs = dict(zip(names, session.run(names, given), strict=True))
        states = {past: outputs[present] for past, present in told["states"].items()}
        worst = max(worst, apart(call, outputs))
    return "" if worst <= told["tolerance"] else f"{case}: {worst:.1e} of the logits' spread"


def apart(call, outputs) -> float:
    """Of the tokens that count; infinity where a number is none."""
    wanted, real = call["wanted"], call["real"]
    if "top_logits" in outputs:
        values, tokens = outputs["top_logits"], outputs["top_tokens"]
        difference = np.sort(wanted, axis=-1)[..., : -values.shape[-1] - 1 : -1] - values
        taken = np.take_along_axis(wanted, tokens, axis=-1) - values
        difference = np.maximum(np.abs(difference), np.abs(taken))[real]
    else:
        difference = np.abs(wanted - outputs["logits"].astype(np.float64))[real]
    return float(difference.max()) / float(wanted[real].std()) if np.isfinite(difference).all() else float("inf")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
