"""The whole pipeline for one spec: spec -> algebra -> graph -> passes -> texts. No file is read or written here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import blockc
from blockc.basics.floats import FloatType
from blockc.diagnostics.graph import GRAPH
from blockc.diagnostics.words import OUT_OF_RANGE
from blockc.graph.build import build_graph
from blockc.graph.contract import LOGITS, Contract, contract_of
from blockc.graph.quant import Quant
from blockc.graph.target import Target
from blockc.ir import Array, Function, GraphError, Node, Param, Sides, functions_of, parameters_of, render_function
from blockc.ir.derive import Derivations, Pass, PassResult, SkippedNode, add_derived
from blockc.language.algebra import Decoder, elaborate, find_term_faults
from blockc.language.parts.numbers import LARGEST_INT
from blockc.language.spec import Spec, SpecFaults, from_tree, resolve_to_yaml
from blockc.ops import Embed
from blockc.ort.ops import BlockEmbed
from blockc.ort.quantise import QuantiseMatrices, find_readers
from blockc.passes import verify_graph, with_cache
from blockc.pipeline.recipes import FLAT, apply_pass, recipe_for
from blockc.report.storage import Storage, measure_storage
from blockc.source import Finding, MappingNode, SpecError, finding, key_place

if TYPE_CHECKING:
    from onnx import TensorProto

PORTABLE = Target()


@dataclass(frozen=True)
class Compiled:
    """A spec, its graph, and every form that is emitted from it."""

    spec: Spec
    decoder: Decoder
    function: Function  # without a cache: the reference
    warnings: tuple[Finding, ...] = ()  # of the import, where the spec comes from a config.json

    def __repr__(self) -> str:
        return f"<Compiled {self.spec.name}: {self._shape}, {self.parameters:,} parameters>"

    @cached_property
    def served(self) -> Function:
        """The function with a cache; without one if the model attends both ways."""
        return ensure_valid(with_cache(self.function)) if self.function.causal else self.function

    @cached_property
    def graph(self) -> Function:
        """The inlined function of the portable ONNX graph, with logits of every token."""
        return self._run(FLAT).function

    def flatten(self, target: Target) -> Function:
        """The inlined function from which a target's ONNX graph is lowered."""
        return self.run_recipe(target).function

    def derivations(self, target: Target) -> Derivations:
        """How the target's function derives the parameters that are not the model's own."""
        return self.run_recipe(target).derived

    def run_recipe(self, target: Target) -> PassResult:
        """Runs the passes of the target's recipe on the served function."""
        return self._run(recipe_for(target))

    def _run(self, steps: tuple[Pass, ...]) -> PassResult:
        """Runs passes; recipes that begin with the same passes share their results."""
        if not steps:
            return PassResult(self.served)
        if steps not in self._known:
            self._known[steps] = apply_pass(self._run(steps[:-1]), steps[-1])
        return self._known[steps]

    @cached_property
    def _known(self) -> dict[tuple[Pass, ...], PassResult]:
        return {}

    def unfused(self, target: Target) -> tuple[SkippedNode, ...]:
        """The nodes that the target's passes left unfused, and why."""
        return self.run_recipe(target).skipped

    def storage(self, quant: Quant, dtype: FloatType) -> Storage:
        """The bytes of the weights by a recipe, what stays in floats being in `dtype`."""
        made = self._run((*FLAT, QuantiseMatrices(quant)))
        return measure_storage(quant.name, self.served, made, dtype, lambda n: isinstance(n.op, Embed | BlockEmbed))

    @property
    def readers(self) -> Mapping[str, Sequence[str]]:
        """The names of the nodes that read a matrix, by its path: of matrices that a recipe can quantise."""
        return find_readers(self.graph)

    def refuses(self, target: Target, copied: bool | None = None) -> str:
        """Why the model has no graph of a target; empty if it has. `copied`: whether its weights are copied."""
        from blockc.pipeline.refusal import why_refused

        return why_refused(self, target, copied)

    def contract(self, target: Target) -> Contract:
        """The inputs, outputs and states of a target's graph."""
        if target not in self._contracts:
            self._contracts[target] = contract_of(self.flatten(target))
        return self._contracts[target]

    @cached_property
    def _contracts(self) -> dict[Target, Contract]:
        return {}

    @cached_property
    def sides(self) -> tuple[Sides, ...]:
        """The sides of call lengths between which rope differs; empty where it never does."""
        return contract_of(self.function).sides

    @property
    def by_token(self) -> bool:
        """Whether the model gives logits of each token."""
        given = dict(self.function.outputs).get(LOGITS)
        return given is not None and len(given.type.shape) == 3

    @property
    def parameters(self) -> int:
        return sum(param.learned for param in parameters_of(self.function).values())

    @property
    def metadata(self) -> dict[str, str]:
        return {
            "blockc.version": blockc.__version__,
            "blockc.semantic_hash": self.decoder.semantic_hash,
            "blockc.parameters": str(self.parameters),
        }

    @property
    def summary(self) -> str:
        return f"{self._shape}, over {self.spec.top.vocab} tokens."

    @property
    def _shape(self) -> str:
        top = self.spec.top
        sight = "a causal decoder" if self.function.causal else "an encoder"
        return f"{sight} of {_count(top.depth, 'layer')}, {top.width} wide"

    def model_py(self) -> str:
        from blockc.emit.loading import plan_loading
        from blockc.emit.torch import emit_torch

        std = self.spec.top.init.std if self.spec.top.init else 0.02
        load = plan_loading(self.spec.top.checkpoint, self.function)
        return emit_torch(self.served, name=self.spec.name, summary=self.summary, load=load, init=std)

    def graph_txt(self) -> str:
        return render_function(self.served)

    def resolved_yaml(self) -> str:
        return resolve_to_yaml(self.spec)

    def count_nodes(self, target: Target) -> dict[str, Any]:
        """Counts the operators of a target's graph: all, the distinct counts per layer, and those outside of layers."""
        from blockc.emit.onnx import count_operators
        from blockc.ort.lowering import swaps_for

        layers: Counter[str] = Counter()
        counted = count_operators(self.flatten(target), target.dtype, swaps_for(target), target.opset)
        for name, count in counted.items():
            path = name.split(".")
            layers[path[1] if path[0] == "layers" else ""] += count
        outside = layers.pop("", 0)
        return {"all": outside + layers.total(), "per_layer": sorted(set(layers.values())), "outside": outside}

    def onnx(
        self,
        target: Target = PORTABLE,
        weights: Mapping[str, Array] | None = None,
        dtype: FloatType | None = None,
    ) -> bytes:
        """model.onnx as bytes, with its parameters as graph inputs, or with these arrays inside it.

        `dtype` makes a target's graph in another float type, node for node, to prove one that cannot run here.
        """
        from blockc.emit.onnx import embed_arrays

        if weights is not None:
            weights = add_derived(weights, self.derivations(target))
        tensors = None if weights is None else embed_arrays(weights, dtype or target.dtype)
        return self.lower(target, tensors, dtype)

    def lower(self, target: Target, tensors: Mapping[str, TensorProto] | None, dtype: FloatType | None = None) -> bytes:
        """model.onnx as bytes, with these tensors as initialisers, inside it or in a file beside it."""
        from blockc.emit.onnx import emit_onnx, serialise
        from blockc.ort.lowering import swaps_for

        made = emit_onnx(
            self.flatten(target), self.metadata, tensors, dtype or target.dtype, swaps_for(target), target.opset
        )
        return serialise(made)


def compile_tree(tree: MappingNode) -> Compiled:
    """Compiles a spec's tree of keys. Raises SpecError with all wrong keys and terms at once."""
    try:
        spec = from_tree(tree)
    except SpecFaults as error:
        found = dict.fromkeys([*error.findings, *find_term_faults(error)])
        raise SpecError(sorted(found, key=lambda each: (each.place.line, each.place.column))) from None
    return compile_spec(spec)


def compile_spec(spec: Spec) -> Compiled:
    """Compiles a spec. Raises SpecError where the graph is not valid, at the place in the spec that causes it."""
    decoder = elaborate(spec)
    try:
        function = ensure_valid(build_graph(decoder))
    except GraphError as error:
        place = error.place or spec.tree.place
        raise SpecError([finding(GRAPH, place, str(error), expected=error.expected, got=error.got)]) from None
    if oversized := [
        _oversized_finding(n, param, spec) for n, param in _params(function) if 4 * param.size > LARGEST_INT
    ]:
        raise SpecError(dict.fromkeys(oversized))
    return Compiled(spec, decoder, function)


def _params(function: Function) -> Iterator[tuple[Node, Param]]:
    return ((n, param) for each in functions_of(function) for n in each.nodes for param in n.params)


def _oversized_finding(n: Node, param: Param, spec: Spec) -> Finding:
    """The finding, at the part with the parameter; for tables at the key vocab or, for learned positions, context."""
    place = n.place or key_place(spec.tree, ("context" if n.name == "positions" else "vocab",))
    message = f"{param.name} has more bytes than int64 counts"
    return finding(
        OUT_OF_RANGE, place, message, expected="at most 2^63 - 1 in fp32", got=" x ".join(map(str, param.shape))
    )


def ensure_valid(function: Function) -> Function:
    verify_graph(function)
    return function


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
