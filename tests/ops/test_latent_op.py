"""Latent attention by its definition, and its two orders: which is taken, and that both are the same function."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from blockc.emit.onnx import emit_onnx, serialise
from blockc.ir import Array, Arrays, B, GraphError, S, T, tensor
from blockc.ir.reach import Allows, Constant, Leaks, Tokens
from blockc.ops import LatentAttention
from tests.ops.test_ops import alone, changed, in_onnx, in_torch, module, moved, types

OP = LatentAttention(3, 8, 3, 4, 5, 0.4)
LENGTHS = [(tokens, keys) for keys in (1, 2, 5, 9, 33) for tokens in (1, 2, 4, 5, 8, 20, 33) if tokens <= keys]


def operands(tokens: int, keys: int, op: LatentAttention = OP) -> Arrays:
    """Of two rows, new tokens behind old ones."""
    random = np.random.RandomState(tokens + 100 * keys)
    seen = np.tril(np.ones((tokens, keys), bool), keys - tokens)[None, None].repeat(2, axis=0)
    shapes = (2, keys, op.rank), (2, 1, keys, op.rope), (2, op.heads, tokens, op.nope), (2, op.heads, tokens, op.rope)
    return (*(random.standard_normal(shape) for shape in shapes), seen)


def cost(tokens: int, keys: int, op: LatentAttention = OP) -> tuple[int, int]:
    """Products of a head, expanded and absorbed, as the docstring has them."""
    made = op.nope + op.v_dim
    expanded = keys * op.rank * made + tokens * keys * (made + op.rope)
    return expanded, tokens * op.rank * made + tokens * keys * (2 * op.rank + op.rope)


def drawn(op: LatentAttention = OP) -> dict[str, Array]:
    """Of numbers that fp32 holds, since a module is made in it."""
    random = np.random.RandomState(7)
    drawn = ((param.name, random.standard_normal(param.shape).astype(np.float32)) for param in op.params())
    return {f"subject.{name}": array.astype(np.float64) for name, array in drawn}


def test_it_is_a_sum_over_visible_keys_of_what_each_head_makes_of_a_latent() -> None:
    for sample in LatentAttention.samples():
        op, (c, k_r, q_n, q_r, mask) = sample.op, sample.args
        assert isinstance(op, LatentAttention)
        k_up, v_up = params = tuple(drawn(op).values())
        wanted = np.zeros((*q_n.shape[:3], op.v_dim))
        for b, h, i in np.ndindex(*q_n.shape[:3]):
            rows, values = k_up[h * op.nope : (h + 1) * op.nope], v_up[h * op.v_dim : (h + 1) * op.v_dim]
            weights = np.zeros(c.shape[1])
            for j in np.flatnonzero(mask[b, 0, i]):
                score = q_n[b, h, i] @ (rows @ c[b, j]) + q_r[b, h, i] @ k_r[b, 0, j]
                weights[j] = np.exp(op.scale * score)
            if weights.sum():
                wanted[b, h, i] = values @ (weights @ c[b]) / weights.sum()
        np.testing.assert_allclose(op.numpy(sample.args, params)[0], wanted, atol=1e-12)


@pytest.mark.parametrize(("tokens", "keys"), LENGTHS)
def test_the_order_that_multiplies_less_is_taken(tokens: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch and in ONNX; both orders are the definition."""
    args, params = operands(tokens, keys), drawn()
    (wanted,) = OP.numpy(args, tuple(params.values()))
    expanded, absorbed = cost(tokens, keys)
    made = module(OP, 5, params, torch.float64).subject
    taken: list[str] = []
    for name in ("expanded", "absorbed"):
        inner = getattr(made, name)
        monkeypatch.setattr(made, name, lambda *a, name=name, inner=inner: (taken.append(name), inner(*a))[1])
    given = [torch.from_numpy(a) for a in args]
    with torch.no_grad():
        y = made(*given)  # type: ignore[operator]
    assert taken == ["absorbed" if absorbed < expanded else "expanded"]
    np.testing.assert_allclose(y.numpy(), wanted, atol=1e-12)
    assert _condition(args) == (absorbed < expanded)
    (got,) = in_onnx(alone(OP, *types(args)), {f"x{i}": a for i, a in enumerate(args)}, params)
    np.testing.assert_allclose(got, wanted, atol=1e-5 * wanted.std())


def _condition(args: Arrays) -> bool:
    """What the If of the graph reads."""
    model = emit_onnx(alone(OP, *types(args)), {})
    (chooses,) = (n for n in model.graph.node if n.op_type == "If")
    model.graph.output.append(onnx.ValueInfoProto(name=chooses.input[0]))
    session = onnxruntime.InferenceSession(serialise(model), providers=["CPUExecutionProvider"])
    feeds = {f"x{i}": a.astype(np.float32) if a.dtype.kind == "f" else a for i, a in enumerate(args)}
    wanted = {i.name for i in session.get_inputs()}
    feeds |= {name: a.astype(np.float32) for name, a in drawn().items()}
    return bool(session.run([chooses.input[0]], {k: v for k, v in feeds.items() if k in wanted})[0])  # type: ignore[arg-type]


def test_both_orders_are_among_the_lengths() -> None:
    assert {cost(*lengths)[1] < cost(*lengths)[0] for lengths in LENGTHS} == {True, False}


@pytest.mark.parametrize("lengths", [(2, 9), (1, 33), (5, 5)])
def test_flops_are_those_that_torch_counts(lengths: tuple[int, int]) -> None:
    """Absorbed in a step, expanded where there is no past."""
    args = operands(*lengths)
    made = module(OP, 5, drawn())
    given = [torch.from_numpy(a.astype(np.float32) if a.dtype.kind == "f" else a) for a in args]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        made(*given)
    said = OP.flops(*types(args)).value
    assert counter.get_total_flops() == said == 2 * 2 * OP.heads * min(cost(*lengths))


def test_flops_grow_with_tokens_and_with_pairs() -> None:
    step = (
        tensor("float", B, T, 8), tensor("float", B, 1, T, 4), tensor("float", B, 3, S, 3), tensor("float", B, 3, S, 4),
        tensor("bool", B, 1, S, T),
    )  # fmt: skip
    assert OP.flops(*step) == B * S * (2 * 3 * 8 * 8) + B * S * T * (2 * 3 * (16 + 4))
    assert OP.scratch(*step) == B * S * T * 3


def test_a_later_token_changes_nothing_earlier() -> None:
    c, k_r, q_n, q_r, seen = operands(6, 6)
    params = tuple(drawn().values())
    reach = OP.reach(types((c, k_r, q_n, q_r, seen)), (Tokens(1), Tokens(2), Tokens(2), Tokens(2), Allows(2, 3)))
    assert reach == (Tokens(2),)
    (before,) = OP.numpy((c, k_r, q_n, q_r, seen), params)
    for t in range(6):
        (after,) = OP.numpy((changed(c, 1, t), k_r, q_n, q_r, seen), params)
        assert moved(before.round(12), after.round(12), 2) == set(range(t, 6))


def test_what_leaks_is_refused() -> None:
    given, fine = types(operands(2, 2)), (Tokens(1), Tokens(2), Tokens(2), Tokens(2), Allows(2, 3))
    for i, wrong in ((0, Tokens(2)), (1, Tokens(1)), (2, Tokens(1)), (4, Tokens(2)), (4, Constant())):
        (reach,) = OP.reach(given, (*fine[:i], wrong, *fine[i + 1 :]))
        assert isinstance(reach, Leaks)
    assert OP.reach(given, (Leaks("so"), *fine[1:])) == (Leaks("so"),)


def test_the_sizes_of_operands_are_checked() -> None:
    args = operands(2, 4)
    for i in range(4):
        wrong = list(args)
        wrong[i] = np.concatenate((args[i], args[i]), axis=-1)
        with pytest.raises(GraphError, match="expected"):
            OP.infer(*types(tuple(wrong)))


def test_a_row_that_sees_nothing_is_zero_in_both_orders() -> None:
    for lengths in ((1, 9), (9, 9)):
        *rest, seen = operands(*lengths)
        seen[1, 0, 0] = False
        sample = alone(OP, *types((*rest, seen)))
        outputs = [
            in_torch(OP, (*rest, seen), drawn())[0],
            in_onnx(sample, {f"x{i}": a for i, a in enumerate((*rest, seen))}, drawn())[0],
        ]
        for y in outputs:
            assert np.isfinite(y).all() and not y[1, :, 0].any() and y[0].all()
