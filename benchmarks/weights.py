"""What weights cost: packing 2 GB of synthetic shards, and linking a checkpoint of SmolLM2's size.

python -m benchmarks.weights                 makes its shards in a temporary folder, and removes them
python -m benchmarks.weights llama3-8b       a spec in bfloat16, linked and packed; TMPDIR holds three times its bytes
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from blockc import api
from blockc.ir import Array
from blockc.layouts import load_layout
from blockc.weights.rules import group_sizes, rules
from blockc.weights.safetensors import write_safetensors

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
from blockc.cli import app, run_guarded
start = time.perf_counter()
code = run_guarded(lambda: app(sys.argv[1:], standalone_mode=False))
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.perf_counter() - start, time.process_time(), int(peak) * 1024)
sys.exit(code)
"""


def shards(folder: Path, spec: str | Path, count: int) -> int:
    """Random float32 tensors of the spec's layout, in that many files. (Their bytes.)"""
    model = api.compile(spec)
    each = list(rules(load_layout("llama"), model.function, group_sizes(model.function)))
    random, placed, total = np.random.default_rng(0), dict[str, str](), 0
    for i in range(count):
        name = f"model-{i + 1:05}-of-{count:05}.safetensors"
        held = {rule.name: random.standard_normal(rule.shape, np.float32) for rule in each[i::count]}
        write_safetensors(folder / name, held)
        placed |= dict.fromkeys(held, name)
        total += sum(array.nbytes for array in held.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return total


def bf16_shards(folder: Path, spec: str | Path, count: int) -> int:
    """The same in bfloat16, which NumPy has not: one block of random bits, again and again. (Their bytes.)"""
    model = api.compile(spec)
    layout_ = load_layout(model.spec.top.checkpoint or "llama")
    each = [(rule.name, rule.shape) for rule in rules(layout_, model.function, group_sizes(model.function))]
    block = (np.random.default_rng(0).standard_normal(1 << 24, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for i in range(count):
        header, end = dict[str, object](), 0
        for name, shape in each[i::count]:
            start, end = end, end + 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / f"model-{i + 1:05}-of-{count:05}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for piece in _repeated(block, end // 2):
                file.write(piece.tobytes())
    names = {name: f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count) for name, _ in each[i::count]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return sum(2 * math.prod(shape) for _, shape in each)


def _repeated(block: Array, total: int) -> Iterator[Array]:
    for start in range(0, total, block.size):
        yield block[: total - start]


def measured(what: str, *arguments: str) -> float:
    done = subprocess.run([sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True, check=True)
    seconds, computing, peak = map(float, done.stdout.split()[-3:])
    print(f"{what:48} {seconds:6.2f} s, of the processor {computing:5.2f} s, peak {peak / 1e6:4.0f} MB", flush=True)
    return seconds


def full_size(spec: str) -> None:
    """A checkpoint in bfloat16 through all ways; what one wrote is removed before the next."""
    with tempfile.TemporaryDirectory() as name:
        held, out = Path(name) / "checkpoint", Path(name) / "out"
        held.mkdir()
        total = bf16_shards(held, spec, 8)
        start = time.perf_counter()
        shutil.copytree(held, out)
        taken = time.perf_counter() - start
        print(f"{total / 1e9:.2f} GB copied: {taken:.2f} s, {total / taken / 1e9:.2f} GB/s written", flush=True)
        where = ("build", spec, "--no-verify", "--weights", str(held), "--out", str(out), "--logits", "last")
        ways = {
            "linked, for CUDA in bf16": ("--ep", "cuda", "--dtype", "bf16", "--weights-mode", "link"),
            "linked, for the CPU with casts": ("--ep", "cpu", "--weights-mode", "link"),
            "packed to fp32, for the CPU": ("--ep", "cpu", "--weights-mode", "pack"),
        }
        for what, chosen in ways.items():
            shutil.rmtree(out)
            taken = measured(f"{total / 1e9:.2f} GB {what}", *where, *chosen)
            written = sum(file.stat().st_size for file in out.rglob("*") if file.stat().st_nlink == 1)
            print(f"    {written / 1e9:.2f} GB written, {written / taken / 1e9:.2f} GB/s", flush=True)


def main(specs: Sequence[str]) -> None:
    for spec in specs:
        full_size(str(api.bundled()[spec]))
    if specs:
        return
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
    main(sys.argv[1:])
