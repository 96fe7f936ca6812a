"""quantise: the matrices that a recipe names become codes in blocks, and what reads them multiplies by these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blockc.graph.quant import Quant
from blockc.ir import Blocks, Function, Node, Param, Value, expect, node, transform
from blockc.ir.derive import Derivation, PassResult, SkippedNode
from blockc.ops import Embed, Experts, Linear, Route
from blockc.ops.coded import CodedExperts, derive_codes
from blockc.ops.columns import ColumnEmbed, ColumnLinear
from blockc.ort.ops import BlockEmbed, BlockExperts, BlockLinear, BlockSums, RoutedExperts

CodeOp = BlockEmbed | BlockLinear | ColumnEmbed | ColumnLinear
Chosen = Mapping[str, Blocks | None]  # by the path of a matrix
INTO = ("gate", "up", "inner")  # the matrices that an expert begins with: they are stored alike


@dataclass(frozen=True)
class QuantiseMatrices:
    """Takes any flat function. A matrix that is tied is stored once, by the first rule for any of its readers."""

    quant: Quant
    portable: bool = False  # in standard ONNX, not in a provider's own operators

    def __call__(self, function: Function, /) -> PassResult:
        chosen = {path: self.quant.blocks_for(names) for path, names in find_readers(function).items()}
        derived: dict[str, Derivation] = {}
        sums: dict[tuple[Value, int], Value] = {}
        skipped: list[SkippedNode] = []

        def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
            if isinstance(n.op, Experts | RoutedExperts):
                return self._code_experts(n, n.op, inputs, chosen, derived, skipped)
            if not isinstance(n.op, Embed | Linear) or not (blocks := chosen.get(n.params[0].name)):
                return None
            weight, *others = n.params
            op = self._op_for(n.op, blocks, n.name)
            if isinstance(op, BlockLinear):
                inputs = (*inputs, *_share_sums(sums, inputs[0], op.inputs, blocks))
            params = _derive_params(op.derivations(weight), weight, derived)
            return node(op, *inputs, name=n.name, params=[*params, *others], place=n.place)

        made = transform(function, rule)
        return PassResult(made, derived, tuple(skipped))

    def _op_for(self, op: Embed | Linear, blocks: Blocks, name: str) -> CodeOp:
        """The op that reads the matrix in blocks. Raises GraphError where standard ONNX has none for them."""
        if self.portable:
            _refuse_lows(name, blocks)
            if isinstance(op, Embed):
                return ColumnEmbed(op.rows, op.width, blocks)
            return ColumnLinear(op.inputs, op.outputs, blocks, op.bias)
        if isinstance(op, Embed):
            return BlockEmbed(op.rows, op.width, blocks)
        return BlockLinear(op.inputs, op.outputs, blocks, op.bias, self.quant.level)

    def _code_experts(
        self,
        n: Node,
        op: Experts | RoutedExperts,
        inputs: tuple[Value, ...],
        chosen: Chosen,
        derived: dict[str, Derivation],
        skipped: list[SkippedNode],
    ) -> Node | None:
        own = dict(zip((param.name for param in op.params()), n.params, strict=True))
        coding = {name: chosen[param.name] for name, param in own.items() if param.name in chosen}
        into, out = next(coding[name] for name in INTO if name in coding), coding["down"]
        if not into and not out:
            return None
        if isinstance(op, RoutedExperts):
            coded = BlockExperts(op, into, out, self.quant.level)
            skipped += [SkippedNode(n.name, coded.why_no_kernel)] if coded.why_no_kernel else []
        else:
            coded = CodedExperts(op, into, out)
            for blocks in (into, out) if self.portable else ():
                _refuse_lows(n.name, blocks)
        params: list[Param] = []
        for name, param in own.items():
            blocks = coding.get(name)
            params += _derive_params(derive_codes(param, name, blocks), param, derived) if blocks else [param]
        return node(coded, *inputs, name=n.name, params=params, place=n.place)


def _refuse_lows(name: str, blocks: Blocks | None) -> None:
    expect(not blocks or not blocks.lows, f"{name} without a provider", "blocks without lows", blocks)


def find_readers(function: Function) -> dict[str, list[str]]:
    """The matrices of a flat function, with the names of what reads each: of nodes, or of matrices of experts.

    Whoever chooses experts reads a matrix that is not one of them: an error there takes other experts.
    """
    readers: dict[str, list[str]] = {}
    routers = {_logits_of(n).node for n in function.nodes if isinstance(n.op, Route | RoutedExperts)}
    for n in function.nodes:
        for path, names in _matrices_of(n) if n not in routers else ():
            readers.setdefault(path, []).extend(names)
    return readers


def _logits_of(n: Node) -> Value:
    """What experts are chosen by."""
    return n.inputs[0] if isinstance(n.op, Route) else n.inputs[1]


def _matrices_of(n: Node) -> Iterator[tuple[str, list[str]]]:
    """The matrices of a node, each with the names by which a recipe may call it."""
    if isinstance(n.op, Embed | Linear):
        yield n.params[0].name, [n.name]
    if isinstance(n.op, Experts | RoutedExperts):
        experts = n.op if isinstance(n.op, Experts) else n.op.experts
        first = [f"{n.name}.{name}" for name in experts.into]
        for own, param in zip(n.op.params(), n.params, strict=True):
            if own.role == "matrix":
                yield param.name, first if own.name in INTO else [f"{n.name}.{own.name}"]


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
        op = BlockSums(width, blocks.size, pooled=len(x.type.shape) == 2)
        sums[key] = node(op, x, name=f"{x.name}.sums.{blocks.size}")[0]
    return (sums[key],)
