"""How codes are chosen: by scales that cost no more than plain ones, and by what transformers' own model multiplies."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockc.ir import Array, Blocks
from blockc.weights.calibration import calibrate, draw_tokens
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.data import calibrate_plan
from blockc.weights.plan import plan_weights
from blockc.weights.quantise import PIECE, fit_scales, quantise_rows, whole_rows
from tests.checkpoints import rules_of, save
from tests.reference.models import OUTSIDE, twin


def costs(x: Array, blocks: Blocks, scales: Array, h: Array) -> Array:
    """What the nearest codes of these scales leave out, weighted, by block, in float64."""
    numbers, scales = x.astype(np.float64), scales.astype(np.float64)
    codes = np.rint(numbers / np.where(scales == 0, 1, scales)[..., None])
    codes = np.clip(codes, -blocks.middle, blocks.middle - 1)
    return (blocks.split(h) * (numbers - codes * scales[..., None]) ** 2).sum(-1)


@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.parametrize("tails", [False, True], ids=["normal", "heavy tails"])
def test_fitted_scales_cost_no_more_than_plain_ones(size: int, tails: bool) -> None:
    """In no block, and much less in all together, also where the last block is cut short."""
    random, blocks = np.random.RandomState(size), Blocks(4, size)
    w = (random.standard_t(3, (40, 200)) if tails else random.randn(40, 200)).astype(np.float32)
    h = random.rand(200) ** 4
    x = blocks.split(w)
    plain = np.minimum(*(costs(x, blocks, s * blocks.scales(x)[0], h) for s in (1, -1)))
    found = costs(x, blocks, fit_scales(x, blocks, h), h)
    assert (found <= plain * (1 + 1e-4) + 1e-9).all()
    assert found.sum() < 0.85 * plain.sum()


@pytest.mark.parametrize("h", [np.zeros(64), np.full(64, 1e-38), np.full(64, 1e30), np.eye(1, 64)[0]], ids=str)
def test_any_importance_gives_scales(h: Array) -> None:
    """Columns that no token used are stored too: within a step, but where they are beyond the codes."""
    w = np.random.RandomState(0).randn(8, 64).astype(np.float32)
    w[0], w[1] = 0, 2.5
    blocks = Blocks(4, 32)
    codes, scales, _ = quantise_rows(w, blocks, h)
    found = blocks.restore(codes, scales, None, 64)
    assert np.isfinite(scales).all() and (found[0] == 0).all()
    np.testing.assert_allclose(found[1], 2.5, rtol=1e-5)
    assert np.abs(found - w)[:, 32:].mean() < 0.15


def test_pieces_of_any_shape_become_whole_rows() -> None:
    numbers = np.arange(10 * 7, dtype=np.float32)
    pieces = [numbers[:3], numbers[3:40].reshape(-1, 1), numbers[40:]]
    np.testing.assert_array_equal(np.concatenate([*whole_rows(iter(pieces), 7)]), numbers.reshape(10, 7))
    (wide,) = whole_rows(iter([np.zeros(PIECE + 5, np.float32)]), PIECE + 5)
    assert wide.shape == (1, PIECE + 5)


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2", "gemma3-1b"])
def test_importance_is_the_mean_square_of_what_transformers_multiplies(name: str, tmp_path: Path) -> None:
    """Of every matrix but the embedding, by hooks on transformers' own model, for two rows of tokens."""
    model = twin(name)
    save(tmp_path / "model.safetensors", {n: np.asarray(a, np.float32) for n, a in OUTSIDE[name].packed(model).items()})
    opened, top = open_checkpoint(tmp_path), model.spec.top
    plan = plan_weights(model.function, opened, top.checkpoint, "pack", "fp32")
    rows = [draw_tokens(top.vocab, 24), draw_tokens(top.vocab, 9)[:, ::-1]]
    found = calibrate_plan(plan, model.function, rows).importance
    theirs = mean_squares(OUTSIDE[name].model(model), rows)
    paths = {rule.name: rule.targets for rule in rules_of(model)}
    compared = {path for weight in theirs for path in paths.get(weight, ()) if path in found}
    for weight, wanted in theirs.items():
        for path in paths.get(weight, ()):
            np.testing.assert_allclose(found[path], wanted, rtol=1e-4, err_msg=path)
    assert found.keys() - compared <= {"embedding.weight"}, "a tied head is no module with a weight of its own name"
    assert len(compared) >= 4 * top.depth


def mean_squares(model: Any, rows: list[Array]) -> dict[str, Array]:
    """By the name of each matrix, of what it multiplies."""
    sums: dict[str, Any] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for name, module in model.named_modules():
        if type(module).__name__ in ("Linear", "Conv1D"):

            def hook(_: Any, given: Any, weight: str = f"{name}.weight") -> None:
                x = given[0].reshape(-1, given[0].shape[-1]).double()
                sums[weight] += (x * x).sum(0).numpy()
                counts[weight] += len(x)

            module.register_forward_pre_hook(hook)
    with torch.no_grad():
        for row in rows:
            model(input_ids=torch.from_numpy(row.copy()))
    return {weight: each / counts[weight] for weight, each in sums.items()}


def test_tokens_are_drawn_by_a_seed_within_the_context() -> None:
    a, b = draw_tokens(50_000, 2048), draw_tokens(50_000, 2048)
    assert a.shape == (1, 512) and (a == b).all() and len(np.unique(a)) > 400
    assert draw_tokens(100, 64).shape == (1, 64)


def test_a_model_that_overflows_is_said_to_be_uncalibrated(tmp_path: Path) -> None:
    model = twin("llama3-8b")
    held = {n: np.asarray(a, np.float32) for n, a in OUTSIDE["llama3-8b"].packed(model).items()}
    held["model.layers.0.mlp.up_proj.weight"] *= 1e38
    save(tmp_path / "model.safetensors", held)
    plan = plan_weights(model.function, open_checkpoint(tmp_path), model.spec.top.checkpoint, "pack", "fp32")
    with np.errstate(all="ignore"):
        made = calibrate_plan(plan, model.function, [draw_tokens(model.spec.top.vocab, 16)])
    assert all(np.isfinite(each).all() for each in made.importance.values()) and made.importance
    assert any("not calibrated" in note and "mlp.down" in note for note in made.notes)


def test_calibration_needs_no_table_in_memory(tmp_path: Path) -> None:
    """Of a table of tokens only the rows that are read are held; `read` is never asked for it."""
    model = twin("llama3-8b")
    save(
        tmp_path / "model.safetensors",
        {n: np.asarray(a, np.float32) for n, a in OUTSIDE["llama3-8b"].packed(model).items()},
    )
    plan = plan_weights(model.function, open_checkpoint(tmp_path), model.spec.top.checkpoint, "pack", "fp32")
    asked: list[str] = []

    def read(path: str) -> Array:
        asked.append(path)
        return plan.sources[path].read()

    tokens = [draw_tokens(model.spec.top.vocab, 8)]
    whole = calibrate(model.function, lambda path: plan.sources[path].pieces(), read, tokens)
    cut = calibrate(
        model.function, lambda path: iter(np.array_split(plan.sources[path].read().reshape(-1), 13)), read, tokens
    )
    assert whole.keys() == cut.keys() and all((whole[path] == cut[path]).all() for path in whole)
    assert "embedding.weight" not in asked and "layers.0.mlp.down.weight" in asked
