"""The floor of a model's times on a machine, from its graph and two figures of the machine.

decode at context N     (bytes of the weights that a step reads + bytes of keys and values at N) / bandwidth
prefill of N            the larger of the same at N, and FLOPs / the rate of the machine's best matrix product
encode B x N            the larger of bytes of the weights / bandwidth, and FLOPs of the B texts / that rate

A decoder's logits are those of the last token, so work for them is counted once. Rows that are looked up in tables are
not counted; the matrix of a tied head is, like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from blockc.basics.floats import FloatType, format_of
from blockc.graph.quant import Quant
from blockc.graph.target import Target
from blockc.ir import Function, Node
from blockc.ops import Embed, Linear
from blockc.pipeline.compiled import Compiled
from blockc.report import make_report
from blockc.report.graph import flops_of, holds_scores, own_flops_of, scores_of

Shape = tuple[int, int]
_TIMED = 4  # distinct matrices whose products are timed


@dataclass(frozen=True)
class Work:
    """The work of a model for one row: bytes that a step reads, FLOPs of a prompt."""

    model: Compiled
    dtype: FloatType
    quant: Quant | None = None

    @property
    def weights(self) -> int:
        """Bytes of the parameters that a step reads completely; of quantised ones those of codes, scales and lows."""
        if self.quant is not None:
            return self.model.storage(self.quant, self.dtype).read
        read = {param for n in self._served.nodes if not isinstance(n.op, Embed) for param in n.params}
        return sum(format_of(param.dtype, self.dtype).size(param.size) for param in read)

    def cache(self, context: int) -> int:
        """Bytes of keys and values that a step reads after `context` tokens, or within its window."""
        model = self.model
        figures = make_report(model.spec, model.decoder, model.function, context=context, dtype=self.dtype)
        return figures.kv_cache.bytes.ring_buffer

    def flops(self, tokens: int) -> int:
        return sum(_flops(n, tokens) for n in self._served.nodes)

    def decode(self, context: int, bytes_s: float) -> float:
        """Milliseconds."""
        return 1000 * (self.weights + self.cache(context)) / bytes_s

    def prefill(self, tokens: int, bytes_s: float, flops_s: float) -> float:
        """Milliseconds."""
        return max(self.decode(tokens, bytes_s), 1000 * self.flops(tokens) / flops_s)

    def encode(self, rows: int, tokens: int, bytes_s: float, flops_s: float | None) -> float:
        """Milliseconds."""
        computing = rows * self.flops(tokens) / flops_s if flops_s else 0.0
        return 1000 * max(self.weights / bytes_s, computing)

    def products(self) -> list[Shape]:
        """(K, M) of the largest matrices that all tokens of a prompt are multiplied with."""
        whole = [n.op for n in self._served.nodes if isinstance(n.op, Linear) and n.types[0].shape[1].value is None]
        shapes = {(op.inputs, op.outputs) for op in whole}
        return sorted(shapes, key=lambda shape: (-shape[0] * shape[1], shape))[:_TIMED]

    @cached_property
    def _served(self) -> Function:
        """With a cache, and logits of the last token alone, where the model has both."""
        return self.model.flatten(Target(logits="last" if self.model.served.causal and self.model.by_token else "all"))


def _flops(n: Node, tokens: int) -> int:
    """FLOPs of a node; in causal attention, masked pairs are not counted."""
    sizes = {"B": 1, "S": tokens, "P": 0}
    if not holds_scores(n):
        return flops_of(n, sizes)
    seen, queries = scores_of(n, ""), n.types[0].shape[2].at(sizes)
    pairs = seen.whole_flops * seen.pairs(tokens) if queries == tokens else seen.pair_flops * seen.keys(tokens)
    return queries * own_flops_of(n) + pairs
