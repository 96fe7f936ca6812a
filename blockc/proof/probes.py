"""Probes of the kernels that multiply codes by what they read rounded to 8 bits: each against its definition.

    y = round(x) weight^T + bias    round(x) = s * nearest integer of x / s, block by block    s = max |x| / 127

A whole graph cannot be compared at that level: where another kernel before it differs by 1e-7, a number that lies
between two codes takes the other one. So the twin's graph is proved with exact products, and here each kind of
product that the model has is run by itself, its matrix inside the graph, as in a build.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from blockc.graph.target import Target
from blockc.ir import Array, Function, Input, Node, node, tensor
from blockc.ort.lowering import swaps_for
from blockc.ort.ops import BlockLinear, BlockSums
from blockc.proof.runners import open_session

KERNEL = "onnxruntime, kernel"  # the backend of these runs
TOLERANCE = 1e-5  # of the product's root mean square
COUNTS = (1, 5)  # rows of x: a step has one, and a prompt takes another kernel
OUTPUTS = 32  # and what is left of the matrix's own: kernels take outputs by groups
OUTLIER = 100
SEED = 31
PROCESSORS = ("x86_64", "amd64")
UNKNOWN = "kernels of this processor round in another way, which is not compared"


@dataclass(frozen=True)
class Probe:
    """One kind of product, with so many rows of x."""

    op: BlockLinear
    count: int

    @property
    def name(self) -> str:
        bias = ", bias" if self.op.bias else ""
        return f"{self.op.blocks}, {self.op.inputs} columns{bias}, {self.count} row{'s' if self.count > 1 else ''}"

    def run(self) -> tuple[float, float]:
        """(The largest difference over the product's root mean square; how many rows have the same largest output)."""
        random = np.random.RandomState(SEED)
        x, params = draw_inputs(self.op, self.count, random), draw_params(self.op, random)
        wanted, found = multiply(self.op, x, params), run_kernel(self.op, x, params)
        error = float(np.abs(wanted - found).max() / np.sqrt(np.mean(wanted**2)))
        return error, float(np.mean(wanted.argmax(-1) == found.argmax(-1)))


def probes_of(function: Function) -> Iterator[Probe]:
    """Those of a graph: one for each form of blocks, what is left of the columns by their size, and bias."""
    known: set[object] = set()
    for n in function.nodes:
        if isinstance(op := n.op, BlockLinear) and op.level == 4:
            kind = (op.blocks, op.inputs % op.blocks.size, op.bias)
            if kind not in known:
                known.add(kind)
                few = min(op.outputs, OUTPUTS + op.outputs % OUTPUTS)
                yield from (Probe(replace(op, outputs=few), count) for count in COUNTS)


def why_not_probed(target: Target) -> str:
    """Why the kernels of a target are not run here; empty if they are."""
    if target.provider != "cpu" or target.dtype != "fp32":
        return "runs elsewhere: only the CPU's in fp32 are compared"
    return "" if platform.machine().lower() in PROCESSORS else UNKNOWN


def round_blocks(x: Array, size: int) -> Array:
    """x as a kernel reads it: its blocks along the last axis in 8 bits each, by scales in float32."""
    blocks = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % size)]).reshape(*x.shape[:-1], -1, size)
    scales = np.abs(blocks).max(-1, keepdims=True).astype(np.float32) / np.float32(127)
    codes = np.rint(blocks / np.where(scales == 0, 1, scales).astype(np.float64))
    return (codes * scales).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def multiply(op: BlockLinear, x: Array, params: tuple[Array, ...]) -> Array:
    """The product by its definition, in float64. Lows are multiplied by sums of x itself, which is not rounded."""
    blocks, exact = op.blocks, x.astype(np.float64)
    codes, scales, *others = (each.astype(np.float64) if each.dtype.kind == "f" else each for each in params)
    y = round_blocks(exact, blocks.size) @ blocks.restore(codes, scales, None, op.inputs).T
    if blocks.lows:
        y += blocks.split(exact).sum(-1) @ others[0].T
    return y + others[-1] if op.bias else y


def draw_inputs(op: BlockLinear, count: int, random: np.random.RandomState) -> Array:
    return draw_rows(op.inputs, op.blocks.size, count, random)


def draw_rows(width: int, size: int, count: int, random: np.random.RandomState) -> Array:
    """x (1, count, width), with columns of outliers, a block of zeros, and no number between two codes.

    There kernels may differ by the last bit of a scale.
    """
    x = random.randn(1, count, width)
    x[..., 5::97] *= OUTLIER
    x[0, -1, size : 2 * size] = 0
    for start in range(0, width, size):
        block = x[..., start : start + size]
        steps = np.abs(block).max(-1, keepdims=True) / 127
        codes = block / np.where(steps, steps, 1)
        between = np.abs(codes - np.rint(codes)) > 0.49
        block[...] = np.where(between, np.rint(codes) * steps, block)
    return x.astype(np.float32)


def draw_params(op: BlockLinear, random: np.random.RandomState) -> tuple[Array, ...]:
    """Codes of the whole range and scales of either sign, one of them 0, and lows and bias where the op has them."""
    blocks, shape = op.blocks, (op.outputs, op.blocks.count(op.inputs))
    codes = random.randint(0, 2 * blocks.middle, (op.outputs, op.inputs)).astype(np.uint8) - np.float32(blocks.middle)
    scales = (random.choice([-1, 1], shape) * random.uniform(0.5, 1.5, shape) / blocks.middle).astype(np.float32)
    scales[0, 0] = 0
    packed = blocks.pack(blocks.split(codes) + blocks.middle)
    others = [shape] * blocks.lows + [(op.outputs,)] * op.bias
    return (packed, scales, *(random.randn(*each).astype(np.float32) for each in others))


def run_kernel(op: BlockLinear, x: Array, params: tuple[Array, ...]) -> Array:
    """The product by onnxruntime, in the graph that the op is written as."""
    given = Node(Input(tensor("float", *x.shape)), (), "x")[0]
    sums = [node(BlockSums(op.inputs, op.blocks.size), given, name="sums")[0]] if op.blocks.lows else []
    made = node(op, given, *sums, name="product")
    arrays = {param.name: array for param, array in zip(made.params, params, strict=True)}
    function = Function("Product", (given.node,), (("y", made[0]),))
    return run_function(function, arrays, {"x": x})


def run_function(function: Function, arrays: Mapping[str, Array], given: Mapping[str, Array]) -> Array:
    """y of a function with these parameters, by onnxruntime's own operators."""
    from blockc.emit.onnx import embed_arrays, emit_onnx, serialise

    model = emit_onnx(function, {}, embed_arrays(arrays), swaps=swaps_for(Target("cpu")))
    return open_session(serialise(model)).run(["y"], dict(given))[0]
