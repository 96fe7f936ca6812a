"""What weights cost: packing 2 GB of synthetic shards, and linking a checkpoint of SmolLM2's size.

python benchmarks/weights.py        makes its shards in a temporary folder, and removes them
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from blockc import api
from blockc.weights import group_sizes, layout, rules, write_safetensors

SMALL = "smollm2-135m"
LARGE = """\
blockc: 1
name: large
vocab: 32000
width: 2048
depth: 16
context: 1024
attention: {heads: 16, kv_heads: 8, rope: {theta: 10000, pairing: half}}
mlp: {type: swiglu, width: 2560}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: false}
checkpoint: llama
"""
MEASURED = """
import sys, time
from blockc.cli import app, guarded
start = time.perf_counter()
code = guarded(lambda: app(sys.argv[1:], standalone_mode=False))
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.perf_counter() - start, time.process_time(), int(peak) * 1024)
sys.exit(code)
"""


def shards(folder: Path, spec: str | Path, count: int) -> int:
    """Random float32 tensors of the spec's layout, in that many files. (Their bytes.)"""
    model = api.compile(spec)
    each = list(rules(layout("llama"), model.function, group_sizes(model.function)))
    random, placed, total = np.random.default_rng(0), dict[str, str](), 0
    for i in range(count):
        name = f"model-{i + 1:05}-of-{count:05}.safetensors"
        held = {rule.name: random.standard_normal(rule.shape, np.float32) for rule in each[i::count]}
        write_safetensors(folder / name, held)
        placed |= dict.fromkeys(held, name)
        total += sum(array.nbytes for array in held.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return total


def measured(what: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True, check=True)
    seconds, computing, peak = map(float, done.stdout.split()[-3:])
    print(f"{what:48} {seconds:6.2f} s, of the processor {computing:5.2f} s, peak {peak / 1e6:4.0f} MB", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "large.yaml").write_text(LARGE)
        for case, spec in (("large", folder / "large.yaml"), ("small", api.bundled()[SMALL])):
            (folder / case).mkdir()
            total = shards(folder / case, spec, 8 if case == "large" else 1)
            where = ("build", str(spec), "--no-verify", "--weights", str(folder / case), "--out", str(folder / "out"))
            if case == "large":
                for dtype in ("fp32", "fp16"):
                    measured(f"{total / 1e9:.2f} GB packed as {dtype}", *where, "--pack", "--dtype", dtype)
            measured(f"{total / 1e9:.2f} GB linked", *where)
            measured(f"{total / 1e9:.2f} GB linked, the provider's own operators", *where, "--ep", "cpu")


if __name__ == "__main__":
    main()
