"""Probes of the kernel that runs experts by codes: as in probes.py, and what down reads is rounded too.

A number there that lies between two codes would take either, so inputs are drawn until none does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from blockc.ir import Array, Blocks, Function, Input, Node, node, tensor
from blockc.ir.nodes import Param
from blockc.ort.ops import BlockExperts
from blockc.proof.probes import COUNTS, SEED, draw_rows, round_blocks, run_function

EXPERTS, ACTIVE = 5, 2
BLOCKS = 4  # of a row, at most
NEAR = 1e-3  # of a code: two kernels differ by less


@dataclass(frozen=True)
class ExpertProbe:
    """One kind of experts, with so many rows of x."""

    op: BlockExperts
    count: int

    @property
    def name(self) -> str:
        bias = ", bias" if self.op.routed.experts.bias else ""
        act = type(self.op.routed.experts.act).__name__
        return f"experts in {self.op.into}, {act}{bias}, {self.count} row{'s' if self.count > 1 else ''}"

    def run(self) -> tuple[float, float]:
        """(The largest difference over the output's root mean square; how many rows have the same largest output)."""
        given, params, wanted = next(draw for seed in count(SEED) if (draw := _draw(self.op, self.count, seed)))
        x, logits = (Node(Input(tensor("float", *a.shape)), (), name)[0] for name, a in given.items())
        made = node(self.op, x, logits, name="experts")
        function = Function("Experts", (x.node, logits.node), (("y", made[0]),))
        arrays = {param.name: array for param, array in zip(made.params, params.values(), strict=True)}
        found = run_function(function, arrays, given)
        error = float(np.abs(wanted - found).max() / np.sqrt(np.mean(wanted**2)))
        return error, float(np.mean(wanted.argmax(-1) == found.argmax(-1)))


def expert_probes_of(function: Function) -> list[ExpertProbe]:
    """Those of a graph: one for each form of blocks, activation and bias."""
    known: dict[BlockExperts, None] = {}
    for n in function.nodes:
        if isinstance(op := n.op, BlockExperts) and op.level == 4 and not op.why_no_kernel:
            known[_shrink(op)] = None
    return [ExpertProbe(op, rows) for op in known for rows in COUNTS]


def _shrink(op: BlockExperts) -> BlockExperts:
    """The same kernel with a few experts and short rows."""
    assert op.into is not None
    experts, most = op.routed.experts, BLOCKS * op.into.size
    few = replace(experts, count=EXPERTS, inputs=min(experts.inputs, most), width=min(experts.width, most))
    return replace(op, routed=replace(op.routed, experts=few, active=ACTIVE, normalise=True, scale=1.0))


def _draw(op: BlockExperts, rows: int, seed: int) -> tuple[dict[str, Array], dict[str, Array], Array] | None:
    """(x and logits; the kernel's tensors; what it gives by its definition), where nothing lies between two codes."""
    assert op.into is not None
    random = np.random.RandomState(seed)
    x = draw_rows(op.routed.experts.inputs, op.into.size, rows, random)
    logits = (random.randn(1, rows, EXPERTS) * 2).astype(np.float32)
    params = {param.name: _draw_param(param, op.into, random) for param in op.params()}
    wanted, between = _run_by_hand(op, x, logits, params)
    return None if between else ({"x": x, "logits": logits}, params, wanted)


def _draw_param(param: Param, blocks: Blocks, random: np.random.RandomState) -> Array:
    """Codes of the whole range and scales of either sign, so that what comes between matrices is about 1."""
    if param.dtype == "uint8":
        return random.randint(0, 256, param.shape).astype(np.uint8)
    if not param.name.endswith("_scales"):
        return random.randn(*param.shape).astype(np.float32)
    size = random.choice([-1, 1], param.shape) * random.uniform(0.5, 1.5, param.shape)
    return (size / blocks.middle / np.sqrt(param.shape[-1] * blocks.size)).astype(np.float32)


def _run_by_hand(op: BlockExperts, x: Array, logits: Array, params: dict[str, Array]) -> tuple[Array, bool]:
    """(The sum of the chosen experts, in float64; whether a number inside of one lies between two codes.)"""
    assert op.into is not None
    experts, size, between = op.routed.experts, op.into.size, False
    y = np.zeros(x.shape)
    for t in range(x.shape[1]):
        chosen = np.argsort(-logits[0, t])[:ACTIVE]
        powers = np.exp(logits[0, t, chosen].astype(np.float64))
        for e, weight in zip(chosen, powers / powers.sum(), strict=True):
            inner = _product(op, op.routed.first, round_blocks(x[:, t].astype(np.float64), size), e, params)
            pair = (inner[:, ::2], inner[:, 1::2]) if experts.gated else (inner,)
            inside = experts.activate(*pair)
            between = between or _is_between(inside, size)
            y[:, t] += weight * _product(op, "down", round_blocks(inside, size), e, params)
    return y, between


def _product(op: BlockExperts, name: str, x: Array, e: int, params: dict[str, Array]) -> Array:
    assert op.into is not None
    codes, scales = params[f"{name}_codes"][e], params[f"{name}_scales"][e].astype(np.float64)
    packed = codes.reshape(*scales.shape, op.into.bytes)
    y = x @ op.into.restore(packed, scales, None, x.shape[-1]).T
    return y + params[f"{name}_bias"][e] if f"{name}_bias" in params else y


def _is_between(x: Array, size: int) -> bool:
    blocks = x.reshape(*x.shape[:-1], -1, size)
    steps = np.abs(blocks).max(-1, keepdims=True) / 127
    codes = blocks / np.where(steps, steps, 1)
    return bool((np.abs(codes - np.rint(codes)) > 0.5 - NEAR).any())
