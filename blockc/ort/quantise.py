"""quantise: the matrices that a recipe names become codes in blocks, and what reads them multiplies by these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockc.graph.quant import Quant
from blockc.ir import Blocks, Function, Node, Param, Value, expect, node, transform
from blockc.ir.derive import Derivation, PassResult
from blockc.ops import Embed, Linear
from blockc.ops.columns import ColumnEmbed, ColumnLinear, derivations_of
from blockc.ort.ops import BlockEmbed, BlockLinear, BlockSums
from blockc.ort.ops.blocks import tensors_of


@dataclass(frozen=True)
class QuantiseMatrices:
    """Takes any flat function. A matrix that is tied is stored once, by the first rule for any of its readers."""

    quant: Quant
    portable: bool = False  # in standard ONNX, not in a provider's own operators

    def __call__(self, function: Function, /) -> PassResult:
        chosen = {path: self.quant.blocks_for(names) for path, names in find_readers(function).items()}
        derived: dict[str, Derivation] = {}
        sums: dict[tuple[Value, int], Value] = {}

        def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
            if not isinstance(n.op, Embed | Linear) or not (blocks := chosen[n.params[0].name]):
                return None
            weight, *others = n.params
            if self.portable:
                return _in_columns(n, inputs, blocks, derived)
            if isinstance(n.op, Embed):
                op: BlockEmbed | BlockLinear = BlockEmbed(n.op.rows, n.op.width, blocks)
            else:
                op = BlockLinear(n.op.inputs, n.op.outputs, blocks, n.op.bias, self.quant.level)
                inputs = (*inputs, *_share_sums(sums, inputs[0], n.op.inputs, blocks))
            params = _derive_params(op, weight, derived)
            return node(op, *inputs, name=n.name, params=[*params, *others], place=n.place)

        return PassResult(transform(function, rule), derived)


def find_readers(function: Function) -> dict[str, list[str]]:
    """The matrices of a flat function, with the names of the nodes that read each."""
    readers: dict[str, list[str]] = {}
    for n in function.nodes:
        if isinstance(n.op, Embed | Linear):
            readers.setdefault(n.params[0].name, []).append(n.name)
    return readers


def _in_columns(n: Node, inputs: tuple[Value, ...], blocks: Blocks, derived: dict[str, Derivation]) -> Node:
    """The node on codes and scales that standard operators read."""
    expect(not blocks.lows, f"{n.name} without a provider", "blocks without lows", blocks)
    (weight, *others), params = n.params, list[Param]()
    for tensor, derivation in derivations_of(weight, blocks).items():
        param = derivation.param_of(f"{weight.name.rpartition('.')[0]}.{tensor}", {weight.name: weight})
        derived[param.name] = derivation
        params.append(param)
    if isinstance(n.op, Embed):
        op: ColumnEmbed | ColumnLinear = ColumnEmbed(n.op.rows, n.op.width, blocks)
    else:
        assert isinstance(n.op, Linear)
        op = ColumnLinear(n.op.inputs, n.op.outputs, blocks, n.op.bias)
    return node(op, *inputs, name=n.name, params=[*params, *others], place=n.place)


def _derive_params(op: BlockEmbed | BlockLinear, weight: Param, derived: dict[str, Derivation]) -> Sequence[Param]:
    """The tensors of a matrix; `derived` gets what each is made from."""
    stem = weight.name.rpartition(".")[0]
    made: list[Param] = []
    for each in tensors_of(weight, op.blocks):
        codes = isinstance(op, BlockEmbed) and each.tensor == "codes"
        derivation: Derivation = op.flatten(each) if codes and isinstance(op, BlockEmbed) else each
        param = derivation.param_of(f"{stem}.{'rows' if codes else each.tensor}", {weight.name: weight})
        derived[param.name] = derivation
        made.append(param)
    return made


def _share_sums(sums: dict[tuple[Value, int], Value], x: Value, width: int, blocks: Blocks) -> tuple[Value, ...]:
    """The sums of x by blocks, made once for all that read them; nothing without lows."""
    if not blocks.lows:
        return ()
    key = (x, blocks.size)
    if key not in sums:
        sums[key] = node(BlockSums(width, blocks.size), x, name=f"{x.name}.sums.{blocks.size}")[0]
    return (sums[key],)
