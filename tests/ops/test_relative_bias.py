"""Buckets of distances against transformers' own, with both sides and one."""

from __future__ import annotations

import numpy as np
import pytest

from blockc.ops import RelativeBias, Visible, VisibleBothWays

pytest.importorskip("transformers")


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 8), (8, 20), (64, 100), (32, 40)])
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_t5(buckets: int, most: int, causal: bool) -> None:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    op = RelativeBias(1, buckets, most, Visible() if causal else VisibleBothWays())
    distance = np.arange(-300, 301)
    wanted = T5Attention._relative_position_bucket(
        torch.from_numpy(distance), bidirectional=not causal, num_buckets=buckets, max_distance=most
    )
    at = np.clip(distance, -most, most) + most
    assert op.of_distance[at].tolist() == wanted.tolist()
    assert len(set(op.of_distance.tolist())) == buckets - (0 if causal else 1)  # ahead there is no distance 0


def test_buckets_are_those_of_mpnet() -> None:
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distance = np.arange(-300, 301)
    wanted = MPNetEncoder.relative_position_bucket(torch.from_numpy(distance), num_buckets=32, max_distance=128)
    op = RelativeBias(1, 32, 128, VisibleBothWays())
    assert op.of_distance[np.clip(distance, -128, 128) + 128].tolist() == wanted.tolist()
