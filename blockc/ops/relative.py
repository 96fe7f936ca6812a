"""Learned numbers by how far a key is: one for each head and bucket of distances, added to its score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np

from blockc.ir import Array, Arrays, Fact, OnnxBuilder, OnnxValue, Op, Param, Sample, TokenAxes, Type, dim, expect
from blockc.ir.reach import Reach
from blockc.ops.position import FAR, Visible, VisibleBothWays


@dataclass(frozen=True)
class RelativeBias(Op):
    """y = weight[bucket(k - q), head] where a key is seen, -inf elsewhere: (B, S), (B, T) -> (B, heads, S, T)

    Half of the buckets are for keys up to the query's place, half for those ahead; where the attention is causal, all
    are for the first. Of n buckets, distances below n/2 have one each; beyond, buckets grow with the logarithm, up to
    max_distance.
    Source: Raffel et al. 2020; with both sides, Song et al. 2020 (MPNet).
    """

    heads: int
    buckets: int
    max_distance: int
    seen: Visible | VisibleBothWays
    output_names = ("bias",)

    @property
    def causal(self) -> bool:
        return isinstance(self.seen, Visible)

    @property
    def of_distance(self) -> Array:
        """The bucket of a key at each distance k - q from -max_distance to max_distance."""
        side = self.buckets if self.causal else self.buckets // 2
        exact = side // 2
        far = np.maximum(np.arange(self.max_distance + 1), 1)
        grown = exact + np.floor(np.log(far / exact) / log(self.max_distance / exact) * (side - exact)).astype(np.int64)
        behind = np.where(np.arange(self.max_distance + 1) < exact, np.arange(len(far)), np.minimum(grown, side - 1))
        ahead = np.zeros(self.max_distance, np.int64) if self.causal else side + behind[1:]
        return np.concatenate((behind[::-1], ahead))

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].dtype == args[1].dtype == "int", "positions", "int", args)
        return (Type("float", (args[0].shape[0], dim(self.heads), args[0].shape[1], args[1].shape[1])),)

    def params(self) -> tuple[Param, ...]:
        return (Param("weight", (self.buckets, self.heads), "table"),)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        yield from self.seen.figures(*args)
        yield from (("attention.relative_bias.buckets", self.buckets),)
        yield "attention.relative_bias.max_distance", self.max_distance

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        distance = args[1][:, None, :] - args[0][:, :, None]
        at = np.clip(distance, -self.max_distance, self.max_distance) + self.max_distance
        bias = params[0][self.of_distance[at]].transpose(0, 3, 1, 2)
        return (np.where(self.seen.numpy(args, ())[0], bias, -inf),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return (*self.seen.helpers, "bucketed_bias")

    def declares(self) -> str | None:
        causal = ", causal=True" if self.causal else ""
        return f"RelativeBias({self.heads}, buckets={self.buckets}, max_distance={self.max_distance}{causal})"

    def torch(self, me: str, *args: str) -> str:
        return f"{me}({self.seen.torch('', *args)}, {', '.join(args)})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """The row of each distance once, and then of each pair of query and key."""
        query, key = (g.op("Unsqueeze", x, g.constant(axes)) for x, axes in zip(args, ([2], [1]), strict=True))
        most = g.constant(np.array(self.max_distance))
        near = g.op("Max", g.op("Min", g.op("Sub", key, query), most), g.constant(np.array(-self.max_distance)))
        rows = g.op("Transpose", g.op("Gather", params[0], g.constant(self.of_distance), axis=0), perm=[1, 0])
        bias = g.op("Transpose", g.op("Gather", rows, g.op("Add", near, most), axis=1), perm=[1, 0, 2, 3])
        return [g.op("Where", *self.seen.onnx(g, args, ()), bias, g.real(-inf))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return self.seen.tokenwise(*args)

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return self.seen.reach(types, reaches)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        query, key = np.arange(12)[None].repeat(2, axis=0), np.arange(12)[None].repeat(2, axis=0)
        key[1, :3] = FAR
        both, past = VisibleBothWays(), Visible()
        return (
            Sample(RelativeBias(3, 8, 8, both), (query, key)),
            Sample(RelativeBias(2, 8, 8, past), (query, key)),
            Sample(RelativeBias(2, 32, 128, VisibleBothWays(4)), (query, key)),
        )
