#!/usr/bin/env bash
# The graphs for CUDA on a GPU: the golden matrix in fp16 and bf16, then prefill, decode and the loop beside PyTorch.
#
#     benchmarks/gpu.sh              all of it, in under 8 minutes; writes benchmarks/results/GPU-VERSIONS.txt
#     benchmarks/gpu.sh --experts    experts and latent attention alone, in under 4 minutes; needs transformers too
#     PYTHON=python3.12 benchmarks/gpu.sh --spec llama3.2-1b
#
# Nothing is fetched. The machine has to have:
#   - an NVIDIA GPU with 24 GB or more, and a driver for the CUDA that the two packages below were built with
#   - Python 3.11 or later with torch, a build with CUDA
#   - onnxruntime-gpu 1.28 or later, built for the same CUDA as torch, in place of onnxruntime: with both installed the one
#     that was installed last is used. CUDA and cuDNN may be those that came with torch, or onnxruntime-gpu[cuda,cudnn]'s
#   - what blockc itself needs: onnx, numpy, pydantic, pyyaml, jinja2. blockc is this folder
#   - for torch.compile: triton, which comes with torch, and a C compiler
#   - for the decode loop as a CUDA graph: onnxruntime-gpu 1.31.1 or later. An older one is named as wrong
# onnxruntime-genai-cuda takes part in the loop where it is installed, with transformers and tokenizers for its builder; it is
# named where it is not.
# Without pip, unpack the wheels into a folder and name it in PYTHONPATH.
#
# Exit 0: right. 1: something is wrong. 3: something is missing; what, is said.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if ! command -v "$python" > /dev/null; then
	echo "missing: $python, or another Python 3.11 or later named by PYTHON" >&2
	exit 3
fi
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec timeout 475 "$python" -u -m benchmarks.gpu "$@"
