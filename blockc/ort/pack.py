"""PackAttentions: an attention without a cache takes the matrices of its queries, keys and values into its kernel.

It runs after matrices have become codes, which the kernel does not take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blockc.graph.target import Target
from blockc.ir import Function, Node, Param, Value, node, transform
from blockc.ir.derive import Derivation, Join, PassResult, Transpose
from blockc.ops import KeyPositions, Linear, VisibleBothWays
from blockc.ort.join import find_projections, readers_of
from blockc.ort.kernels import has_kernel
from blockc.ort.ops import FlatAttention, MaskBias, PackedAttention, RealKeys


@dataclass(frozen=True)
class PackAttentions:
    """Takes a fused function. With `packed` weights the joined matrix is computed before they are written."""

    target: Target

    def __call__(self, function: Function, /) -> PassResult:
        if not has_kernel(self.target, PackedAttention.kernel):
            return PassResult(function)
        readers, derived = readers_of(function), dict[str, Derivation]()
        masks = dict[Value, Node]()

        def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
            if not isinstance(n.op, FlatAttention) or n.op.kv_heads != n.op.heads or n.op.softcap is not None:
                return None
            linears = find_projections(n, readers)
            first = linears[0].op if linears else None
            if not isinstance(first, Linear):
                return None
            op = PackedAttention(
                first.inputs, n.op.heads, n.op.head_dim, n.op.scale, first.bias, apart=not self.target.packed
            )
            seen = inputs[3]
            if (mask := _find_mask(seen)) is not None:
                op = replace(op, by_keys=True)
                made = masks[mask] = masks.get(mask) or node(RealKeys(), mask, name=f"{mask.node.name}.int32")
                seen = made[0]
            x, params = inputs[0].node.inputs, list(zip(*(linear.params for linear in linears), strict=True))
            held = [param for each in params for param in each] if op.apart else _join(linears[0].name, params, derived)
            return node(op, *x, seen, name=n.name, params=held, place=n.place)

        return PassResult(transform(function, rule), derived)


def _find_mask(bias: Value) -> Value | None:
    """The attention mask that this is the bias of, if all queries see the same keys."""
    seen = bias.node.inputs[0].node if isinstance(bias.node.op, MaskBias) else None
    if seen is None or seen.op != VisibleBothWays():
        return None
    keys = seen.inputs[1].node
    return keys.inputs[0] if isinstance(keys.op, KeyPositions) else None


def _join(name: str, params: list[tuple[Param, ...]], derived: dict[str, Derivation]) -> list[Param]:
    """The joined and transposed matrix, and the joined bias; `derived` gets what they are made from."""
    made: list[Param] = []
    for each in params:
        path = f"{name.rpartition('.')[0]}.qkv.{each[0].name.rpartition('.')[2]}"
        joined = Join(tuple(param.name for param in each))
        derived[path] = joined if len(each[0].shape) == 1 else Transpose((joined,))
        made.append(derived[path].param_of(path, {param.name: param for param in each}))
    return made
