"""The whole line for one spec: spec -> algebra -> graph -> passes -> texts. No file is touched here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import blockc
from blockc.algebra import Decoder, elaborate
from blockc.build import build
from blockc.ir import Function, GraphError, inline, parameters, render
from blockc.ops import Array
from blockc.passes import Fused, fuse, last_token, verify, with_cache
from blockc.source import SpecError, finding
from blockc.spec import Spec, resolved_text

if TYPE_CHECKING:
    import onnx_ir as ir

Logits = Literal["all", "last"]
Dtype = Literal["fp32", "fp16", "bf16"]
Dialect = Literal["standard", "ort"]


@dataclass(frozen=True)
class Compiled:
    """A spec and every form of it that is emitted."""

    spec: Spec
    decoder: Decoder
    function: Function  # without a cache: the reference
    served: Function  # with a cache, unless the model looks both ways

    @cached_property
    def graph(self) -> Function:
        """The flat form that ONNX is, logits of every token."""
        return verified(inline(self.served))

    @cached_property
    def last(self) -> Function:
        """The flat form with logits of the last token alone."""
        return verified(last_token(self.graph))

    @cached_property
    def fused(self) -> Fused:
        """The flat form in onnxruntime's own ops, and what was left as it is."""
        fused = fuse(self.graph)
        verify(fused.function)
        return fused

    @cached_property
    def fused_last(self) -> Function:
        return verified(last_token(self.fused.function))

    def flat(self, dialect: Dialect, logits: Logits) -> Function:
        """The function that an ONNX graph is lowered from."""
        if dialect == "ort":
            return self.fused.function if logits == "all" else self.fused_last
        return self.graph if logits == "all" else self.last

    @property
    def parameters(self) -> int:
        return sum(param.size for param in parameters(self.function).values())

    @property
    def metadata(self) -> dict[str, str]:
        return {
            "blockc.version": blockc.__version__,
            "blockc.semantic_hash": self.decoder.semantic_hash,
            "blockc.parameters": str(self.parameters),
        }

    @property
    def summary(self) -> str:
        top = self.spec.top
        sight = "a causal decoder" if self.function.causal else "an encoder"
        return f"{sight} of {_count(top.depth, 'layer')}, {top.width} wide, over {top.vocab} tokens."

    def model_py(self) -> str:
        from blockc.emit.loading import loading
        from blockc.emit.torch import emit

        std = self.spec.top.init.std if self.spec.top.init else 0.02
        load = loading(self.spec.top.checkpoint, self.function)
        return emit(self.served, name=self.spec.name, summary=self.summary, load=load, init=std)

    def graph_txt(self) -> str:
        return render(self.served)

    def resolved_yaml(self) -> str:
        return resolved_text(self.spec)

    def onnx(
        self,
        logits: Logits = "all",
        weights: Mapping[str, Array] | None = None,
        dtype: Dtype = "fp32",
        dialect: Dialect = "standard",
    ) -> bytes:
        """The model, its parameters as graph inputs, or these arrays inside it."""
        from blockc.emit.onnx import in_memory

        return self.lowered(None if weights is None else in_memory(weights, dtype), logits, dtype, dialect)

    def lowered(
        self, tensors: Mapping[str, ir.TensorProtocol] | None, logits: Logits, dtype: Dtype, dialect: Dialect
    ) -> bytes:
        """The model with these tensors as its initialisers, wherever they lie."""
        from blockc.emit.onnx import emit, serialised
        from blockc.emit.ort import SWAPS

        swaps = SWAPS if dialect == "ort" else None
        return serialised(emit(self.flat(dialect, logits), self.metadata, tensors, dtype, swaps))


def compiled(spec: Spec) -> Compiled:
    """Raises SpecError where the graph does not stand, at the place in the spec that it comes from."""
    decoder = elaborate(spec)
    try:
        function = verified(build(decoder))
        served = verified(with_cache(function)) if function.causal else function
    except GraphError as error:
        place = error.place or spec.tree.place
        raise SpecError([finding(place, str(error), expected=error.expected, got=error.got)]) from None
    return Compiled(spec, decoder, function, served)


def verified(function: Function) -> Function:
    verify(function)
    return function


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
