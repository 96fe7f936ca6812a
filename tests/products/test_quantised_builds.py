"""Quantised builds in another runtime, and with an adapter: the codes are those of the merged weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blockc import api
from blockc.graph.quant import parse_quant
from blockc.graph.target import Target
from blockc.runtime import Session
from blockc.weights.plan import DATA
from tests.checkpoints import save, tensors, twin
from tests.products.test_genai import FIRST, NEW, SAYS, generated
from tests.weights.test_adapter import adapted, base


def test_genai_generates_what_a_session_does(tmp_path: Path) -> None:
    """From the same codes, by the same kernels."""
    save(tmp_path / "in" / "model.safetensors", tensors(twin("llama3-8b")))
    (tmp_path / "in" / "generation_config.json").write_bytes(SAYS["generation_config.json"])
    for word in ("int4", "int8"):
        target, out = Target("cpu", logits="last", quant=parse_quant(word)), tmp_path / word
        api.build(twin("llama3-8b"), out, target=target, proof=False, weights=tmp_path / "in", products=["genai"])
        ours = [token for (token,) in Session(out).generate([FIRST], NEW)]
        assert generated(out, [FIRST]) == [[*FIRST, *ours]] and len(set(ours)) > 2


def test_an_adapter_is_merged_before_codes_are_made(tmp_path: Path) -> None:
    model, outside = base("llama3-8b", tmp_path / "base")
    merged = adapted(outside, tmp_path / "adapter").merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    target, codes = Target("cpu", quant=parse_quant("int8")), list[np.ndarray]()
    for weights, adapters in (("base", ["adapter"]), ("merged", []), ("base", [])):
        out = tmp_path / f"{weights}{len(adapters)}"
        api.build(model, out, target=target, weights=tmp_path / weights, adapters=[tmp_path / a for a in adapters],
                  proof=False, deep=True)  # fmt: skip
        codes.append(np.fromfile(out / DATA, np.uint8))
    ours, theirs, without = codes
    assert np.mean(ours != theirs) < 1e-3 < 0.3 < np.mean(ours != without)
