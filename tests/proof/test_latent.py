"""Latent attention: on all backends and targets, and what transformers computes for DeepSeek V2 and V3."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from blockc.ir import Array
from blockc.language.spec import resolve_spec
from blockc.pipeline.compiled import PORTABLE, Compiled
from blockc.proof import prove
from blockc.proof.cases import Case
from blockc.proof.comparison import TOLERANCE
from blockc.proof.matrix import TARGETS
from blockc.proof.runners import Onnx, Oracle, Runner, Torch
from blockc.report import make_report
from tests.reference.latents import FAMILIES, compiled, outside, params, twin
from tests.structures import PROVIDERS

LONG, SHORT = 16, 7
# Under a window, with factors for each pair of rope, and a norm of the heads; in one kind of layers alone.
WINDOWED = """\
blockc: 1
name: latent-windowed
vocab: 96
width: 48
depth: 3
context: 64
attention:
  heads: 3
  latent: {q_rank: 20, kv_rank: 12, nope_dim: 6, rope_dim: 16, v_dim: 7, norm: {eps: 1e-6}}
  window: 5
  rope:
    theta: 100
    pairing: half
    scaling: {type: longrope, long: [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5], choose: long, attention_factor: 1.2}
  sub_norm: {weight: true}
mlp: {type: gelu, width: 80}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: true}
layers:
  pattern: [a, b]
  last: [a]
  kinds:
    a: {}
    b: {attention: {latent: none, heads: 4, head_dim: 8, sub_norm: none, rope: {scaling: none}}}
"""
TEXTS = {"windowed": WINDOWED} | {name: family.text for name, family in FAMILIES.items()}
BACKENDS: dict[str, Callable[[Compiled, Path], Runner]] = {
    "oracle": lambda model, folder: Oracle(model.served),
    "torch": lambda model, folder: Torch(_written(model, folder), model.served),
    "onnxruntime": lambda model, folder: Onnx(model.onnx(), model.served),
}


def _written(model: Compiled, folder: Path) -> Path:
    (folder / "model.py").write_text(model.model_py(), encoding="utf-8")
    return folder / "model.py"


@pytest.mark.parametrize("name", TEXTS)
def test_all_backends_and_targets_agree(name: str) -> None:
    """Whole, in chunks, token by token, padded on both sides; a joined cache, one in a buffer, the oldest opset."""
    proof = prove(twin(TEXTS[name]), targets=(*TARGETS, *PROVIDERS))
    assert proof.complete, proof.table()
    assert not proof.inapplicable
    ran = {row.backend for row in proof.rows}
    assert {
        "oracle",
        "torch",
        "onnxruntime",
        "onnxruntime, buffer",
        "onnxruntime, opset 17",
        "onnxruntime, fused",
    } <= ran
    of_caches = {"chunked", "decode", "padded left, decode", "padded right", "padded left", "one token"}
    for backend in ("oracle", "torch", "onnxruntime", "onnxruntime, buffer"):
        assert {row.variant for row in proof.rows if row.backend == backend} >= of_caches, backend


@cache
def _truth(name: str) -> dict[bytes, Array]:
    """transformers' logits of every sequence, each alone."""
    made = twin(FAMILIES[name].text)
    model = outside(FAMILIES[name], made)
    found: dict[bytes, Array] = {}
    for case in _cases(made.spec.top.vocab):
        for row in case.rows:
            with torch.no_grad():
                found[row.tobytes()] = model(input_ids=torch.from_numpy(row[None])).logits[0].numpy()
    return found


def _cases(vocab: int) -> list[Case]:
    random = np.random.RandomState(11)
    a, b, short = (random.randint(0, vocab, length) for length in (LONG, LONG, SHORT))
    left, right = (0, LONG - SHORT), (0, 0)
    return [
        Case("uncached", (a, b), right, (LONG,)),
        Case("chunked", (a, b), right, (1, 6, 2, 7)),
        Case("decoded", (a, b), right, (11, 1, 1, 1, 1, 1)),
        Case("padded left", (a, short), left, (LONG,)),
        Case("padded right", (a, short), right, (LONG,)),
        Case("padded left, chunked", (a, short), left, (5, 6, 1, 1, 3)),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_logits_come_out(name: str, backend: str, tmp_path: Path) -> None:
    """Interleaved rope, yarn with both of its factors, eps of the latents' norms; queries of a rank and without."""
    made = twin(FAMILIES[name].text)
    runner, truth, errors = BACKENDS[backend](made, tmp_path), _truth(name), dict[str, float]()
    for case in _cases(made.spec.top.vocab):
        wanted = [truth[row.tobytes()] for row in case.rows]
        spread = float(np.concatenate(wanted).std())
        assert spread > 0.5
        got = case.real_rows(runner.run(case, params(made)).logits)
        errors[case.name] = max(float(np.abs(w - g).max()) for w, g in zip(wanted, got, strict=True)) / spread
    assert max(errors.values()) < (5e-6 if backend == "oracle" else TOLERANCE["float32"]), errors


@pytest.mark.parametrize("name", FAMILIES)
def test_a_twin_keeps_what_its_model_has(name: str) -> None:
    """Sizes all unlike, the ranks in order, and scores as sharp as in the model."""
    keys, whole = (resolve_spec(made.spec)["attention"] for made in (twin(TEXTS[name]), compiled(TEXTS[name])))
    sizes = {key: size for key, size in keys["latent"].items() if key != "norm"}
    assert sizes.keys() == {key for key in whole["latent"] if key != "norm"}
    others = (keys["heads"], sizes["nope_dim"] + sizes["rope_dim"], resolve_spec(twin(TEXTS[name]).spec)["width"])
    assert len({*sizes.values(), *others}) == len(sizes) + 3
    heads = [sum(each["latent"][key] for key in ("nope_dim", "rope_dim")) for each in (keys, whole)]
    assert keys["scale"] * heads[0] ** 0.5 == pytest.approx(whole["scale"] * heads[1] ** 0.5)


@pytest.mark.parametrize(("name", "kept", "expanded"), [("v3", 35_136, 2_498_560), ("v2", 15_552, 138_240)])
def test_a_cache_holds_a_latent_and_one_key_of_each_layer(name: str, kept: int, expanded: int) -> None:
    made = compiled(TEXTS[name])
    latent, heads = resolve_spec(made.spec)["attention"]["latent"], resolve_spec(made.spec)["attention"]["heads"]
    report = make_report(made.spec, made.decoder, made.function)
    assert report.kv_cache.values_per_token == kept
    assert made.spec.top.depth * heads * (latent["nope_dim"] + latent["rope_dim"] + latent["v_dim"]) == expanded
    shapes = {held.state: held.shape for held in made.contract(PORTABLE).held}
    assert shapes == {"latent": ("B", "P", 512), "key": ("B", 1, "P", 64)}
