"""The graphs for CUDA on a GPU: right, and how fast beside PyTorch on the same weights. benchmarks/gpu.sh runs this.

python -m benchmarks.gpu                                  everything, into benchmarks/results/
python -m benchmarks.gpu --provider cpu --quick           the same path on the CPU, with twins; writes no file
python -m benchmarks.gpu --experts                        experts and latent attention alone, in under 4 minutes

First the golden matrix: every spec's twin in fp16 and bf16 against the float64 oracle, in sessions that refuse to fall
back to the CPU. Then whole models with random weights: prefill and decode against model.py. The
runtimes are called in turn, A B A B, on the same memory, weights too; a time is the median of single calls. Then the
decode loop: tokens picked on the device or from all logits, CUDA graphs, and onnxruntime-genai.

Exit 1: something is wrong. Exit 3: something that it needs is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("torch", "onnxruntime", "onnx", "numpy", "pydantic", "yaml", "jinja2", "blockc")
RESULTS = Path(__file__).parent / "results"
MODELS = ("smollm2-135m", "llama3.2-1b")
EXPERTS_S = 150  # no further spec with experts is begun later than this
LIMIT_S = 420  # no new program is begun later than this, and none compiled in the last quarter of it


def missing(provider: str) -> list[str]:
    """What this machine lacks."""
    found = [f"the Python package {name}" for name in NEEDED if importlib.util.find_spec(name) is None]
    if found or provider == "cpu":
        return found
    import onnxruntime
    import torch

    from benchmarks.gpu_session import one_node, opened

    if not torch.cuda.is_available():
        found.append("a GPU that torch sees: a build of torch with CUDA, and NVIDIA's driver")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        found.append("onnxruntime-gpu: the onnxruntime that is installed has no CUDA")
    if not found:
        onnxruntime.preload_dlls()  # CUDA and cuDNN as torch brought them
        try:
            opened(one_node(), "cuda", strict=True)
        except Exception as error:  # whatever it is, it is what a user has to read
            found.append(f"an onnxruntime-gpu that loads here: {str(error).splitlines()[0]}")
    return found


def head(provider: str) -> tuple[str, list[str]]:
    """A name for the file, and what was measured on what."""
    import onnxruntime
    import torch

    if provider == "cpu":
        device, cuda = "CPU", ""
    else:
        device, cuda = torch.cuda.get_device_name(0), f", CUDA {torch.version.cuda}"
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    versions = f"onnxruntime {onnxruntime.__version__}, torch {torch.__version__}{cuda}"
    slug = "".join(c if c.isalnum() or c == "." else "-" for c in f"{device}-ort{onnxruntime.__version__}".lower())
    return f"{slug}-torch{torch.__version__.partition('+')[0]}.txt", [device, versions, "TF32 off", ""]


def report(arguments: argparse.Namespace) -> Iterator[tuple[bool, str]]:
    from benchmarks.gpu_loop import loops
    from benchmarks.gpu_matrix import matrix
    from benchmarks.gpu_speed import speed
    from blockc import api

    if arguments.experts:
        yield from experts(arguments.provider, arguments.quick)
        return
    provider, quick, start = arguments.provider, arguments.quick, time.perf_counter()
    names = arguments.spec or (["block-4x4", "gemma2-9b"] if quick else sorted(api.bundled()))
    models = arguments.spec or (list(MODELS[:1]) if quick else list(MODELS))
    dtypes = ["fp16"] if provider == "cpu" else ["fp16", "bf16"]
    if provider == "cpu":
        yield True, "Golden matrix: each spec's twin against the oracle in float64"
        yield True, "bf16: not run, onnxruntime's CPU kernels take none"
    else:
        yield True, "Golden matrix: each spec's twin against the oracle in float64, without fallback to the CPU"
    yield from matrix(names, dtypes, provider)
    yield True, ""
    yield True, "Whole models, random weights in fp16, logits of every token, milliseconds of one call, medians"
    whole, three = start + LIMIT_S, start + 0.75 * LIMIT_S
    for name in models:
        yield from speed(name, False, provider, quick, whole)
    yield True, ""
    yield True, "The decode loop, random weights in fp16: tokens come from the host, and picked ones go back to it"
    for name in models:
        yield from loops(name, False, provider, quick, three)
    yield True, ""
    yield True, "Both with torch.compile"
    for programs in (speed, loops):
        for name in models:
            yield from programs(name, True, provider, quick, three)


def experts(provider: str, quick: bool) -> Iterator[tuple[bool, str]]:
    """The golden matrix of the specs with experts or latent attention, then model.py's experts beside transformers'."""
    from benchmarks.experts_torch import compare_forms
    from benchmarks.gpu_matrix import matrix
    from blockc import api
    from blockc.ops import Experts, LatentAttention

    start = time.perf_counter()
    found = [
        name
        for name, path in sorted(api.bundled().items())
        if any(isinstance(n.op, Experts | LatentAttention) for n in api.twin(api.compile(path)).graph.nodes)
    ]
    yield True, "Golden matrix of experts and latent attention: each spec's twin against the oracle in float64"
    for name in found[:2] if quick else found:
        if time.perf_counter() - start > EXPERTS_S:
            yield False, f"{name}: not reached in {EXPERTS_S} seconds"
            continue
        yield from matrix([name], ["fp16"] if provider == "cpu" else ["fp16", "bf16"], provider, packed=True)
    yield True, ""
    yield True, "Experts of model.py beside transformers' eager and grouped forms, milliseconds of one call, medians"
    for line in compare_forms(3 if quick else 9, provider, quick):
        yield True, line


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="two twins, short sequences, three rounds")
    parser.add_argument("--experts", action="store_true", help="only experts and latent attention, in under 4 minutes")
    parser.add_argument("--spec", action="append", help="only this one; may be given again")
    parser.add_argument("--out", type=Path, help="folder of the result; benchmarks/results unless --quick")
    arguments = parser.parse_args()
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    lacking = missing(arguments.provider)
    if arguments.experts and importlib.util.find_spec("transformers") is None:
        lacking.append("the Python package transformers, which --experts compares with")
    if lacking:
        print("\n".join(f"missing: {what}" for what in lacking), file=sys.stderr)
        return 3
    name, lines = head(arguments.provider)
    name = f"experts-{name}" if arguments.experts else name
    print("\n".join(lines))
    right = True
    for holds, line in report(arguments):
        right = right and holds
        lines.append(line)
        print(line, flush=True)
    lines.append("right" if right else "WRONG, see above")
    print(lines[-1])
    folder = arguments.out or (None if arguments.quick else RESULTS)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
