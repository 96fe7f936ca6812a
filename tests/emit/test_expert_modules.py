"""Experts in model.py: gradients, one graph when compiled, the selection bias, and the loss of docs/experts.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from blockc.graph.shrink import shrink
from blockc.language.spec import load
from blockc.pipeline.compiled import compile_spec
from blockc.proof.runners import load_module
from tests.paths import ROOT

torch.set_num_threads(1)
NAMES = ("mixtral-8x7b", "gpt-oss-20b", "deepseek-v3")  # grouped; biases, sinks and odd sizes; groups and a bias


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@cache
def made(name: str, folder: Path) -> Any:
    path = folder / f"{name}.py"
    path.write_text(compile_spec(shrink(load(ROOT / "specs" / f"{name}.yaml"))).model_py())
    return load_module(path)


def model(name: str, folder: Path) -> Any:
    torch.manual_seed(3)
    built = made(name, folder).Model()
    built.init_weights(std=0.1)
    return built


def tokens() -> torch.Tensor:
    return torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(1))


def gradients(built: Any) -> dict[str, torch.Tensor]:
    ids = tokens().to(next(built.parameters()).device)
    built(ids, labels=ids).loss.backward()
    return {name: parameter.grad for name, parameter in built.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_float64(name: str, folder: Path) -> None:
    """The grouped product of fp32 beside the loop of fp64, which gradcheck compares with differences below."""
    single, double = gradients(model(name, folder)), gradients(model(name, folder).double())
    for path, wanted in double.items():
        assert wanted.abs().max() > 0, path
        spread = float(wanted.std()) if wanted.numel() > 1 else float(wanted.abs())
        assert float((single[path].double() - wanted).abs().max()) <= 3e-4 * spread, path


@pytest.mark.parametrize("name", NAMES[:2])
def test_the_gradient_of_experts_is_that_of_differences(name: str, folder: Path) -> None:
    experts = next(m for p, m in model(name, folder).double().named_modules() if p.endswith("mlp.experts"))
    width = experts.gate.shape[2]
    x = torch.randn(1, 4, width, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 0.1
    chosen = torch.tensor([[[0, 3], [3, 1], [0, 1], [3, 0]]])
    weights = torch.rand(1, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    parameters = [each.detach().clone().requires_grad_() for each in experts.parameters()]
    names = [path for path, _ in experts.named_parameters()]

    def call(x: torch.Tensor, weights: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        own = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(experts, own, (x, chosen, weights))

    given = (x.requires_grad_(), weights.requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(call, given, fast_mode=True)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_experts_are_one_graph_with_the_same_gradients(dtype: torch.dtype, folder: Path) -> None:
    torch.compiler.reset()
    eager, whole = (model("mixtral-8x7b", folder).to(dtype) for _ in range(2))
    compiled = torch.compile(whole, fullgraph=True, backend="aot_eager")
    ids = tokens()
    one, other = (built(ids, labels=ids) for built in (eager, compiled))
    limit = 1e-5 if dtype == torch.float32 else 5e-2
    assert float((one.logits - other.logits).abs().max()) <= limit * float(one.logits.std())
    one.loss.backward()
    other.loss.backward()
    for (path, a), b in zip(eager.named_parameters(), whole.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert float((a.grad - b.grad).abs().max()) <= 4 * limit * float(a.grad.std() + 1e-12), path


def test_the_selection_bias_stays_in_fp32_and_has_no_gradient(folder: Path) -> None:
    """A rounded bias chooses other experts: 10.01 and 10.02 are one number in bf16."""
    built = model("deepseek-v3", folder)
    route = next(m for p, m in built.named_modules() if p.endswith("mlp.route"))
    with torch.no_grad():
        route.selection_bias.copy_(10 + torch.arange(8) / 100)
    kept = route.selection_bias.clone()
    for move in (built.bfloat16, built.half, built.float, built.double):
        move()
        assert route.selection_bias.dtype == torch.float32
        assert torch.equal(route.selection_bias, kept)
    assert "selection_bias" not in {path.rpartition(".")[2] for path, _ in built.named_parameters()}
    assert any(path.endswith("mlp.route.selection_bias") for path in built.state_dict())
    with torch.device("meta"):
        empty = made("deepseek-v3", folder).Model()
    assert next(m for p, m in empty.to_empty(device="cpu").named_modules() if p.endswith("mlp.route"))


def test_experts_of_no_rows_give_no_rows(folder: Path) -> None:
    for dtype in (torch.float32, torch.float64):
        built = model("mixtral-8x7b", folder).to(dtype)
        assert built(torch.zeros(0, 5, dtype=torch.long)).logits.shape == (0, 5, 96)


def test_the_loss_that_balances_experts(folder: Path) -> None:
    """The code of docs/experts.md. Where all experts are chosen equally often it is 1 for each that a token takes."""
    text = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")
    functions, step = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(functions, scope)
    even = torch.eye(8).repeat(5, 1) + torch.eye(8).roll(1, 1).repeat(5, 1)
    assert float(scope["load_balancing_loss"](even * 20, active=2)) == pytest.approx(2)
    uneven = torch.tensor([[5.0, 4.0, 0, 0, 0, 0, 0, 0]]).repeat(16, 1)
    assert float(scope["load_balancing_loss"](uneven, active=2)) > 7
    built = model("mixtral-8x7b", folder)
    scope |= {"model": built, "ids": tokens()}
    exec(step, scope)
    assert [tuple(logits.shape) for logits in scope["seen"]] == [(14, 8)] * 2
    assert all(layer.mlp.router.weight.grad.abs().max() > 0 for layer in built.layers)
