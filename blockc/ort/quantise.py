"""quantise: the matrices that a recipe names become codes in blocks, and what reads them multiplies by these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blockc.graph.quant import Quant
from blockc.ir import Blocks, Function, Node, Param, Value, expect, node, transform
from blockc.ir.derive import Derivation, PassResult
from blockc.ops import Embed, Linear
from blockc.ops.columns import ColumnEmbed, ColumnLinear
from blockc.ort.ops import BlockEmbed, BlockLinear, BlockSums

CodeOp = BlockEmbed | BlockLinear | ColumnEmbed | ColumnLinear


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
            op = self._op_for(n.op, blocks, n.name)
            if isinstance(op, BlockLinear):
                inputs = (*inputs, *_share_sums(sums, inputs[0], op.inputs, blocks))
            params = _derive_params(op.derivations(weight), weight, derived)
            return node(op, *inputs, name=n.name, params=[*params, *others], place=n.place)

        return PassResult(transform(function, rule), derived)

    def _op_for(self, op: Embed | Linear, blocks: Blocks, name: str) -> CodeOp:
        """The op that reads the matrix in blocks. Raises GraphError where standard ONNX has none for them."""
        if self.portable:
            expect(not blocks.lows, f"{name} without a provider", "blocks without lows", blocks)
            if isinstance(op, Embed):
                return ColumnEmbed(op.rows, op.width, blocks)
            return ColumnLinear(op.inputs, op.outputs, blocks, op.bias)
        if isinstance(op, Embed):
            return BlockEmbed(op.rows, op.width, blocks)
        return BlockLinear(op.inputs, op.outputs, blocks, op.bias, self.quant.level)


def find_readers(function: Function) -> dict[str, list[str]]:
    """The matrices of a flat function, with the names of the nodes that read each."""
    readers: dict[str, list[str]] = {}
    for n in function.nodes:
        if isinstance(n.op, Embed | Linear):
            readers.setdefault(n.params[0].name, []).append(n.name)
    return readers


def _derive_params(
    derivations: Mapping[str, Derivation], weight: Param, derived: dict[str, Derivation]
) -> Sequence[Param]:
    """The tensors of a matrix, named after it; `derived` gets what each is made from."""
    stem = weight.name.rpartition(".")[0]
    made = [each.param_of(f"{stem}.{name}", {weight.name: weight}) for name, each in derivations.items()]
    derived.update(zip((param.name for param in made), derivations.values(), strict=True))
    return made


def _share_sums(sums: dict[tuple[Value, int], Value], x: Value, width: int, blocks: Blocks) -> tuple[Value, ...]:
    """The sums of x by blocks, made once for all that read them; nothing without lows."""
    if not blocks.lows:
        return ()
    key = (x, blocks.size)
    if key not in sums:
        sums[key] = node(BlockSums(width, blocks.size), x, name=f"{x.name}.sums.{blocks.size}")[0]
    return (sums[key],)
