"""model.py with latent attention: exported and compiled, on a slice of its heads, initialised, formatted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from blockc.proof.runners import load_module
from tests.reference.latents import FAMILIES, params, twin

V3 = twin(FAMILIES["v3"].text)
RUFF = str(Path(sys.executable).with_name("ruff"))  # a tool of these tests, and not of the product
RANK, TURNED = 14, 8  # of the twin
SIZES = ((2, 3, 4), (3, 5, 2), (1, 1, 7), (1, 1, 1), (2, 7, 0), (2, 1, 9))  # batch, new tokens, past


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("emitted") / "model.py"
    path.write_text(V3.model_py(), encoding="utf-8")
    return load_module(path)


@pytest.fixture
def model(module: Any) -> Any:
    made, held = module.Model(), params(V3)
    with torch.no_grad():
        for path, parameter in made.named_parameters():
            parameter.copy_(torch.from_numpy(held[path]))
    return made.eval()


@pytest.fixture
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _inputs(batch: int, tokens: int, past: int) -> dict[str, Any]:
    """After a random past whose first token is padding in the last row."""
    seed = torch.Generator().manual_seed(97 * batch + 11 * tokens + past)
    mask = torch.ones(batch, past + tokens, dtype=torch.long)
    mask[-1, : min(past, 1)] = 0
    shapes = (batch, past, RANK), (batch, 1, past, TURNED)
    return {
        "input_ids": torch.randint(0, 16, (batch, tokens), generator=seed),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0)[:, past:].clone(),
        "past_key_values": tuple(
            tuple(torch.randn(shape, generator=seed) for shape in shapes) for _ in range(V3.spec.top.depth)
        ),
    }


def _assert_same(got: Any, wanted: Any) -> None:
    states = [
        (a, b)
        for each in zip(got.past_key_values, wanted.past_key_values, strict=True)
        for a, b in zip(*each, strict=True)
    ]
    for a, b in ((got.logits, wanted.logits), *states):
        assert a.shape == b.shape and b.std() > 0.1
        assert (a - b).abs().max() < 3e-5 * b.std()


@pytest.mark.costly
def test_one_exported_program_prefills_and_decodes(model: Any) -> None:
    batch, new, past, total = Dim("batch"), Dim("new"), Dim("past"), Dim("total")
    example = _inputs(*SIZES[0])
    shapes = {
        "input_ids": {0: batch, 1: new}, "attention_mask": {0: batch, 1: total}, "position_ids": {0: batch, 1: new},
        "past_key_values": tuple(({0: batch, 1: past}, {0: batch, 2: past}) for _ in example["past_key_values"]),
    }  # fmt: skip
    with torch.no_grad():
        program = torch.export.export(model, (), example, dynamic_shapes=shapes).module()
        for size in SIZES:
            _assert_same(program(**_inputs(*size)), model(**_inputs(*size)))


@pytest.mark.costly
@pytest.mark.usefixtures("_fresh")
def test_it_compiles_whole(model: Any) -> None:
    traced = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for size in SIZES:
            _assert_same(traced(**_inputs(*size)), model(**_inputs(*size)))


@pytest.mark.parametrize("cached", [False, True])
def test_heads_are_counted_by_what_is_given(model: Any, cached: bool) -> None:
    """Half of the rows of q_b, k_up and v_up are half of the heads, in both orders of the products."""
    attention = model.layers[0].attention
    ups, heads = attention.mixed, 4
    q, o = attention.q_b.weight.detach(), attention.o.weight.detach()
    k_up, v_up = ups.k_up.detach(), ups.v_up.detach()
    tokens, past = (1, (torch.randn(1, 9, RANK), torch.randn(1, 1, 9, TURNED))) if cached else (5, None)
    x, cos = torch.randn(1, tokens, o.shape[0]), torch.rand(1, tokens, TURNED // 2)
    mask = torch.ones(1, 1, 1, 10, dtype=torch.bool) if cached else None
    with torch.no_grad():
        whole, _ = attention(x, mask, cos, cos, past, use_cache=False)
        parts: list[torch.Tensor] = []
        for half in range(2):
            rows = [slice(half * n // 2, (half + 1) * n // 2) for n in (len(q), len(k_up), len(v_up))]
            attention.q_b.weight = nn.Parameter(q[rows[0]])
            ups.k_up, ups.v_up = nn.Parameter(k_up[rows[1]]), nn.Parameter(v_up[rows[2]])
            attention.o.weight = nn.Parameter(o[:, rows[2]])
            parts.append(attention(x, mask, cos, cos, past, use_cache=False)[0])
    assert len(k_up) % heads == 0
    assert (sum(parts) - whole).abs().max() < 1e-5 * whole.abs().max()


def test_new_matrices_have_the_given_spread(module: Any) -> None:
    made = module.Model()
    made.init_weights(0.5)
    for name, parameter in made.named_parameters():
        if name.endswith("_up"):
            assert 0.4 < parameter.std() < 0.6, name


def test_a_formatter_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(V3.model_py(), encoding="utf-8")
    given = [RUFF, "format", "--check", "--isolated", "--line-length", "120", str(tmp_path / "model.py")]
    assert subprocess.run(given, capture_output=True, check=False).returncode == 0
