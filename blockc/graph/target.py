"""What a graph is made for: whose operators, which float type, which logits, and how it keeps its cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from blockc.basics.errors import UsageError
from blockc.basics.floats import FloatType
from blockc.basics.opsets import OPSETS
from blockc.graph.quant import Quant

Provider = Literal["cpu", "cuda"]
Logits = Literal["all", "last"] | int
CacheKind = Literal["joined", "buffer"]
Padding = Literal["any", "right"]

DEFAULT: dict[Provider | None, FloatType] = {None: "fp32", "cpu": "fp32", "cuda": "fp16"}


@dataclass(frozen=True)
class Target:
    """`provider` names the execution provider of onnxruntime whose own operators are used; None: any runtime's.

    `logits` are returned for all tokens or the last one; a number k: the k highest of the last one, with their tokens.
    `last`, with logits of the last token: of so many last tokens of a call, or of all of them if these are fewer.
    `step`: a graph of one new token of each row, for long pasts: the cache is a buffer, and attention is products of
    one row a head. Its logits are those of the one token, whether all are asked for or the last one's.
    `cache` is how the portable graph keeps keys and values: `joined`, past and new in a new tensor, or `buffer`, new
    ones written into a tensor of fixed length. A provider's own attention takes both. `packed`: the weights are
    copied and may be joined, so that queries, keys and values are one product. `padding` is where a
    batch's rows may be padded: with `right` a provider's attention goes by the rows' lengths and adds no mask, which is
    the only way on CUDA. `opset` is that of ai.onnx whose operators the portable graph uses; None: the usual
    one, or the next that has all operators that the graph needs. `quant` says which matrices are stored in blocks of
    codes; None: no matrix.
    """

    provider: Provider | None = None
    dtype: FloatType = "fp32"
    logits: Logits = "all"
    cache: CacheKind = "joined"
    packed: bool = False
    padding: Padding = "any"
    opset: int | None = None
    quant: Quant | None = None
    last: int = 1
    step: bool = False

    def __post_init__(self) -> None:
        if self.provider is not None and self.cache == "buffer":
            raise UsageError("cache is for the portable graph: a provider's own attention takes a buffer by itself")
        if self.provider is None and self.padding == "right":
            raise UsageError("padding is for a provider's attention: the portable graph takes any")
        if self.provider is not None and self.opset is not None:
            raise UsageError("opset is for the portable graph: leave it out, or the provider")
        if self.opset is not None and self.opset not in OPSETS:
            raise UsageError(f"{self.opset}: expected {OPSETS.start} to {OPSETS[-1]}", "opset")
        if self.logits not in ("all", "last") and (type(self.logits) is not int or self.logits < 1):
            raise UsageError(f"{self.logits!r}: expected all, last, or how many of the highest, 1 or more", "logits")

        if type(self.last) is not int or self.last < 1:
            raise UsageError(f"{self.last!r}: expected a number of tokens, 1 or more", "last")
        if self.last > 1 and self.logits != "last":
            raise UsageError(f"is for logits of the last tokens, and these are {self.logits}", "last")
        if self.step and (self.provider, self.dtype) != ("cpu", "fp32"):
            raise UsageError("is for the CPU's own operators in fp32", "step")
        if self.step and self.last > 1:
            raise UsageError(f"has one new token, and not the last {self.last}", "step")

    @property
    def by_rows(self) -> bool:
        return self.provider == "cuda" or self.padding == "right"

    @property
    def one_token(self) -> Target:
        """The target of the graph of one new token that goes with this one: it shares its weights and its cache."""
        return replace(self, step=True, logits=self.logits if self.top else "all", last=1)

    @property
    def top(self) -> int:
        """How many of the highest logits are given; 0: every one."""
        return self.logits if isinstance(self.logits, int) else 0
