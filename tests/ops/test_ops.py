"""Every op on every sample: shape rule = NumPy = torch = onnxruntime, and the rules beside the meaning hold too."""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes  # pyright: ignore[reportPrivateUsage]
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from blockc.emit.onnx import emit_onnx, serialise
from blockc.graph import interp
from blockc.ir import Array, B, Dtype, Function, Input, Node, Op, S, Sample, T, Type, dim, node, tensor
from blockc.ir.reach import Allows, Clock, Constant, Leaks, Tokens
from blockc.ops import (
    ALL,
    FAR,
    Add,
    Alibi,
    Attention,
    Embed,
    Extend,
    Gelu,
    GeluTanh,
    KeyPositions,
    LastIndex,
    LayerNorm,
    Linear,
    Llama3Scaling,
    QueryPositions,
    QuickGelu,
    RmsNorm,
    Rotary,
    RotaryInterleaved,
    RotaryTable,
    Silu,
    Sinusoidal,
    TakeToken,
    Visible,
    VisibleBothWays,
)
from blockc.ops.base import Activation, Elementwise
from blockc.ops.buffer import BUFFER
from blockc.ops.columns import COLUMNS
from blockc.ort.ops import FUSED
from blockc.weights.rules import random_parameters
from tests.paths import ROOT

TOLERANCE = 1e-5  # of the spread of what is compared
HELPERS = ROOT / "templates" / "helpers"
SAMPLES = [pytest.param(s, id=f"{s.op.name}-{i}") for op in ALL for i, s in enumerate(op.samples())]


def types(args: tuple[Array, ...]) -> tuple[Type, ...]:
    names: dict[str, Dtype] = {"f": "float", "i": "int", "b": "bool"}
    return tuple(tensor(names[a.dtype.kind], *a.shape) for a in args)


TOKENWISE = [p for p in SAMPLES if p.values[0].op.tokenwise(*types(p.values[0].args))]


def alone(op: Op, *given: Type) -> Function:
    """A function of this one node, which is called subject."""
    inputs = tuple(Node(Input(t), (), f"x{i}") for i, t in enumerate(given))
    made = node(op, *(n[0] for n in inputs), name="subject")
    outputs = tuple((f"y{i}", made[i]) for i in range(len(made.types)))
    return Function("Alone", inputs, outputs)


def of(sample: Sample) -> tuple[Function, dict[str, Array], dict[str, Array], list[Array]]:
    """The sample's function, its inputs, random parameters, and the oracle's outputs."""
    function = alone(sample.op, *types(sample.args))
    inputs = {f"x{i}": a for i, a in enumerate(sample.args)}
    params = random_parameters(function, seed=3)
    return function, inputs, params, list(interp.interpret(function, inputs, params).values())


@cache
def source(op: Op, count: int) -> type[nn.Module]:
    """The op's own texts, with the helper files that it names and no others, as a module."""
    bodies = [(HELPERS / f"{name}.py").read_text() for name in op.helpers]
    helpers = "\n".join(line for body in bodies for line in body.splitlines() if not line.startswith("from ."))
    kept = op.constant()
    made = kept[1] if kept else op.declares()
    declared = f"self.subject = {made}" if made else "pass"
    names = ", ".join(f"x{i}" for i in range(count))
    text = op.torch("self.subject", *names.split(", "))
    namespace: dict[str, Any] = {"torch": torch, "F": F, "nn": nn, "Tensor": Tensor, "partial": partial}
    exec(
        f"{helpers}\n\nclass Subject(nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n        {declared}\n"
        f"    def forward(self, {names}):\n        return {text}\n",
        namespace,
    )
    return namespace["Subject"]


def module(op: Op, count: int, params: dict[str, Array], dtype: torch.dtype = torch.float32) -> nn.Module:
    made = source(op, count)()
    own = {**dict(made.named_parameters()), **dict(made.named_buffers())}
    assert {name: tuple(p.shape) for name, p in own.items()} == {name: a.shape for name, a in params.items()}
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(torch.from_numpy(params[name]))
    return made.to(dtype)


def in_torch(op: Op, args: tuple[Array, ...], params: dict[str, Array]) -> list[Array]:
    given = [torch.from_numpy(np.ascontiguousarray(a)) for a in args]
    with torch.no_grad():
        result = module(op, len(args), params)(*(x.float() if x.is_floating_point() else x for x in given))
    return [y.detach().numpy() for y in (result if isinstance(result, tuple) else (result,))]


def in_onnx(function: Function, inputs: dict[str, Array], params: dict[str, Array]) -> list[Array]:
    model = serialise(emit_onnx(function, {}))
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    feeds = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in (inputs | params).items() if n in wanted}
    return session.run(list(function.output_names), feeds)


def assert_same(got: list[Array], wanted: list[Array], tolerance: float = TOLERANCE) -> None:
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert g.shape == w.shape
        assert g.dtype.kind == w.dtype.kind
        if w.dtype.kind == "f":
            finite = np.isfinite(w)  # of a mask: -inf where nothing is seen
            np.testing.assert_array_equal(np.isneginf(g), ~finite)
            assert np.abs(g[finite] - w[finite]).max() <= tolerance * w[finite].std()
        else:
            np.testing.assert_array_equal(g, w)


# One meaning


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_shape_rule_says_what_numpy_gives(sample: Sample) -> None:
    function, _, _, outputs = of(sample)
    said = tuple(Type("float", t.shape) if t.dtype == "float32" else t for t in function.nodes[0].types)
    assert types(tuple(outputs)) == said
    assert len(sample.op.output_names) == len(outputs)


@pytest.mark.parametrize("sample", SAMPLES)
def test_torch_means_what_numpy_means(sample: Sample) -> None:
    _, _, params, outputs = of(sample)
    assert_same(in_torch(sample.op, sample.args, params), outputs)


@pytest.mark.parametrize("sample", [s for s in Attention.samples() if s.op.softcap is None])  # type: ignore[attr-defined]
def test_no_kernel_of_torch_gives_nan_where_nothing_is_seen(sample: Sample) -> None:
    _, _, params, outputs = of(sample)
    with sdpa_kernel(SDPBackend.MATH):
        assert_same(in_torch(sample.op, sample.args, params), outputs)


@pytest.mark.parametrize("sample", SAMPLES)
def test_onnxruntime_means_what_numpy_means(sample: Sample) -> None:
    function, inputs, params, outputs = of(sample)
    assert_same(in_onnx(function, inputs, params), outputs)


def test_every_op_is_listed_with_samples_of_its_own() -> None:
    def below(cls: type[Op]) -> set[type[Op]]:
        return {cls}.union(*(below(c) for c in cls.__subclasses__()))

    defined = {op for op in below(Op) if op.__module__.startswith(("blockc.ops", "blockc.ort"))}
    assert defined - {Elementwise, Activation} == {*ALL, *FUSED, *BUFFER, *COLUMNS}
    assert len(ALL) == len(set(ALL))
    for op in (*ALL, *FUSED, *BUFFER, *COLUMNS):
        assert op.samples()
        assert all(type(sample.op) is op for sample in op.samples())


@pytest.mark.parametrize("op", [*ALL, *FUSED, *BUFFER, *COLUMNS], ids=lambda op: op.__name__)
def test_an_op_says_its_mathematics_first_and_depends_on_few_things(op: type[Op]) -> None:
    first = (op.__doc__ or "").splitlines()[0]
    assert not first.startswith(f"{op.__name__}("), "the docstring is the one that dataclass writes"
    assert "=" in first or "->" in first
    assert len(dataclasses.fields(op)) <= 8
    assert op.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize("sample", SAMPLES)
def test_an_op_names_existing_helpers_and_declares_where_it_has_parameters(sample: Sample) -> None:
    assert all((HELPERS / f"{name}.py").is_file() for name in sample.op.helpers)
    assert (sample.op.declares() is not None) == bool(sample.op.params())


# The oracle against definitions written out


def test_attention_is_the_sum_over_visible_keys() -> None:
    for sample in Attention.samples():
        op, (q, k, v, mask) = sample.op, sample.args
        assert isinstance(op, Attention)
        wanted = np.zeros_like(q)
        for b, h, i in np.ndindex(*q.shape[:3]):
            of_key = h // (op.heads // op.kv_heads)
            weights = np.zeros(k.shape[2])
            for j in range(k.shape[2]):
                score = op.scale * float(q[b, h, i] @ k[b, of_key, j])
                score = op.softcap * np.tanh(score / op.softcap) if op.softcap else score
                seen = mask[b, h if op.biased else 0, i, j]
                weights[j] = np.exp(score + seen) if op.biased else np.exp(score) * seen
            if weights.sum():
                wanted[b, h, i] = weights @ v[b, of_key] / weights.sum()
        assert (mask == (-np.inf if op.biased else False)).all(axis=-1).any()
        np.testing.assert_allclose(op.numpy(sample.args, ())[0], wanted, atol=1e-12)


def test_attention_survives_scores_beyond_exp() -> None:
    q, k, v, mask = Attention(4, 4, 0.4).samples()[0].args
    op = Attention(4, 4, 1000.0)
    (y,) = op.numpy((q, k, v, mask), ())
    assert np.isfinite(y).all()
    assert_same(in_torch(op, (q, k, v, mask), {}), [y])
    assert_same(in_onnx(alone(op, *types((q, k, v, mask))), {"x0": q, "x1": k, "x2": v, "x3": mask}, {}), [y])


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 71])
def test_alibi_falls_by_the_slopes_of_its_families(heads: int) -> None:
    """BLOOM computes the slopes of heads that are no power of two from two series, MPT from one."""
    positions = np.arange(5)[None]
    (bias,) = Alibi(heads, 8.0).numpy((positions, positions), ())
    _assert_falls(bias, _get_alibi_slopes(heads, torch.device("cpu")).double().numpy())
    _assert_falls(bias, -build_mpt_alibi_tensor(heads, 2).double().numpy()[:, 0, 0])
    (other,) = Alibi(heads, 5.0).numpy((positions, positions), ())
    _assert_falls(other, -build_mpt_alibi_tensor(heads, 2, 5).double().numpy()[:, 0, 0])


def _assert_falls(bias: Array, slopes: Array) -> None:
    assert bias.shape == (1, len(slopes), 5, 5)
    for i, j in np.ndindex(5, 5):
        wanted = -slopes * (i - j) if j <= i else np.full(len(slopes), -np.inf)
        np.testing.assert_allclose(bias[0, :, i, j], wanted, rtol=1e-6)


@pytest.mark.parametrize("width", [16, 4])
def test_rotary_is_a_product_of_complex_numbers(width: int) -> None:
    x, angle = np.random.RandomState(0).randn(2, 5, 3, 16), np.random.RandomState(1).randn(2, 3, width // 2)
    (y,) = Rotary(width, 16).numpy((x, np.cos(angle), np.sin(angle)), ())
    half = width // 2
    turned = (x[..., :half] + 1j * x[..., half:width]) * np.exp(1j * angle)[:, None]
    np.testing.assert_allclose(y, np.concatenate((turned.real, turned.imag, x[..., width:]), axis=-1), atol=1e-12)


@pytest.mark.parametrize("width", [16, 4])
def test_neighbours_turn_as_complex_numbers_do(width: int) -> None:
    x, angle = np.random.RandomState(0).randn(2, 5, 3, 16), np.random.RandomState(1).randn(2, 3, width // 2)
    (y,) = RotaryInterleaved(width, 16).numpy((x, np.cos(angle), np.sin(angle)), ())
    turned = (x[..., :width:2] + 1j * x[..., 1:width:2]) * np.exp(1j * angle)[:, None]
    np.testing.assert_allclose(y[..., :width:2], turned.real, atol=1e-12)
    np.testing.assert_allclose(y[..., 1:width:2], turned.imag, atol=1e-12)
    np.testing.assert_array_equal(y[..., width:], x[..., width:])


def test_rotary_tables_count_from_theta_and_stand_still_where_told() -> None:
    op = RotaryTable(10000.0, 2, 8, 2)
    cos, sin = op.numpy((np.array([[0, 3]]),), ())
    for i, wavelength in enumerate((1.0, 10000.0 ** (-2 / 8))):
        assert cos[0, 1, i] == pytest.approx(np.cos(3 * wavelength))
        assert sin[0, 1, i] == pytest.approx(np.sin(3 * wavelength))
    np.testing.assert_array_equal(cos[0, :, 2:], 1)
    np.testing.assert_array_equal(sin[0, :, 2:], 0)


def test_llama3_scaling_has_three_bands() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 32)
    short, middle, long = 2 * np.pi / np.array([7.0, 16.0, 33.0])  # wavelengths below 32/4, between, above 32/1
    kept, blended, stretched = scaling.numpy(np.array([short, middle, long]))
    assert kept == pytest.approx(short)
    assert stretched == pytest.approx(long / 8)
    smooth = (32 / 16 - 1) / (4 - 1)
    assert blended == pytest.approx((1 - smooth) * middle / 8 + smooth * middle)


def test_sinusoidal_interleaves_sines_and_cosines() -> None:
    (y,) = Sinusoidal(6).numpy((np.array([[5]]), np.zeros((1, 1, 6))), ())
    angles = [5 / 10000 ** (2 * i / 6) for i in range(3)]
    np.testing.assert_allclose(y[0, 0], [f(a) for a in angles for f in (np.sin, np.cos)])


def test_positions_and_masks_by_hand() -> None:
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 0, 1, 0]])
    (keys,) = KeyPositions().numpy((mask,), ())
    np.testing.assert_array_equal(keys, [[FAR, FAR, 0, 1, 2], [0, 1, FAR, 2, FAR]])
    (queries,) = QueryPositions().numpy((mask, np.zeros((2, 2))), ())
    np.testing.assert_array_equal(queries, [[1, 2], [2, 2]])
    (seen,) = Visible(2).numpy((queries, keys), ())
    np.testing.assert_array_equal(seen[0, 0], [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]])
    (all_seen,) = Visible().numpy((queries, keys), ())
    np.testing.assert_array_equal(all_seen[0, 0], [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1]])


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms_by_hand(offset: float) -> None:
    x, w = np.array([[[3.0, -4.0, 0.0, 12.0]]]), np.array([0.5, 2.0, -1.0, 0.25])
    (y,) = RmsNorm(4, 0.25, offset).numpy((x,), (w,))
    np.testing.assert_allclose(y, x / np.sqrt(169 / 4 + 0.25) * (offset + w))
    (z,) = LayerNorm(4, 0.25, True, offset=offset).numpy((x,), (w, w))
    np.testing.assert_allclose(z, (x - 2.75) / np.sqrt(np.var(x) + 0.25) * (offset + w) + w)


def test_activations_are_told_apart() -> None:
    """Gelu and its tanh form differ by 5e-4 at most, and no tolerance here hides that."""
    x = np.linspace(-5, 5, 2001).reshape(1, 3, 667)
    gelu, gelu_tanh, quick, silu = (op.numpy((x,), ())[0] for op in (Gelu(), GeluTanh(), QuickGelu(), Silu()))
    difference = np.abs(gelu - gelu_tanh).max()
    assert 4e-4 < difference < 6e-4
    assert difference > 10 * TOLERANCE * gelu.std()
    assert 0.02 < np.abs(gelu - quick).max() < 0.021
    assert np.abs(gelu - silu).max() > 0.1
    for op, y in ((Gelu(), gelu), (GeluTanh(), gelu_tanh), (QuickGelu(), quick), (Silu(), silu)):
        assert_same(in_torch(op, (x,), {}), [y], 1e-6)
        assert_same(in_onnx(alone(op, *types((x,))), {"x0": x}, {}), [y], 1e-6)


# FLOPs


def test_flops_of_linear_and_attention() -> None:
    assert Linear(8, 5).flops(tensor("float", B, S, 8)) == B * S * (2 * 8 * 5)
    assert Linear(8, 5, bias=True).flops(tensor("float", B, S, 8)) == B * S * (2 * 8 * 5)
    k = tensor("float", B, 2, T, 16)
    given = tensor("float", B, 8, S, 16), k, k, tensor("bool", B, 1, S, T)
    assert Attention(8, 2, 0.25).flops(*given) == B * S * T * (2 * 8 * (16 + 16))
    assert Attention(8, 2, 0.25).scratch(*given) == B * S * T * 8
    assert Embed(100, 8).flops(tensor("int", B, S)) == dim(0)


@pytest.mark.parametrize("sample", [s for op in (Linear, Attention, Embed, RmsNorm, Silu) for s in op.samples()],
                         ids=lambda s: s.op.name)  # fmt: skip
def test_flops_are_those_that_torch_counts(sample: Sample) -> None:
    _, _, params, _ = of(sample)
    made = module(sample.op, len(sample.args), params)
    args = [torch.from_numpy(a.astype(np.float32) if a.dtype.kind == "f" else a) for a in sample.args]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # others go uncounted on a CPU
        made(*args)
    assert counter.get_total_flops() == sample.op.flops(*types(sample.args)).value


# Tokens and time


def changed(a: Array, axis: int, t: int) -> Array:
    """The same array but for everything at token t."""
    at = [slice(None)] * a.ndim
    at[axis] = slice(t, t + 1)
    b = a.copy()
    old = a[tuple(at)]
    if a.dtype.kind == "f":
        seen = np.where(np.isfinite(old), old, 0)
        b[tuple(at)] = seen + 3 + seen**2
    else:
        b[tuple(at)] = ~old if a.dtype.kind == "b" else (old + 4) % 7
    return b


def moved(before: Array, after: Array, axis: int) -> set[int]:
    """The tokens at which two arrays differ by more than the rounding of a product with more rows or fewer."""
    others = tuple(i for i in range(before.ndim) if i != axis)
    unlike = ~np.isclose(before, after, rtol=1e-13, atol=1e-13)
    return set(np.flatnonzero(unlike.any(axis=others)).tolist())


@pytest.mark.parametrize("sample", TOKENWISE)
def test_a_tokenwise_op_changes_no_other_token(sample: Sample) -> None:
    _, _, params, before = of(sample)
    axes = sample.op.tokenwise(*types(sample.args))
    assert axes is not None
    assert len(axes.inputs) == len(sample.args)
    assert len(axes.outputs) == len(before)
    seen: set[int] = set()
    for i, axis in enumerate(axes.inputs):
        if axis is None:
            continue
        for t in range(sample.args[i].shape[axis]):
            args = (*sample.args[:i], changed(sample.args[i], axis, t), *sample.args[i + 1 :])
            after = sample.op.numpy(args, tuple(params.values()))
            for y, z, out in zip(before, after, axes.outputs, strict=True):
                assert y.shape[out] == sample.args[i].shape[axis]
                assert moved(y, z, out) <= {t}
                seen |= moved(y, z, out)
    # A test that changes nothing shows nothing; of what an encoder sees, the query says only how many rows there are.
    everything = set(range(before[0].shape[axes.outputs[0]]))
    assert seen == (set() if sample.op == VisibleBothWays() else everything)


@pytest.mark.parametrize("op", [Add(), Gelu(), Silu(), RmsNorm(8, 1e-5), LayerNorm(8, 1e-5, True)], ids=repr)
def test_head_split_tensors_have_their_tokens_on_the_third_axis(op: Elementwise) -> None:
    x = np.random.RandomState(0).randn(2, 5, 3, 8)
    args = (x, x) if isinstance(op, Add) else (x,)
    params = tuple(np.full(p.shape, 0.7) for p in op.params())
    axes = op.tokenwise(*types(args))
    assert axes is not None
    assert set(axes.inputs) == {2}
    assert axes.outputs == (2,)
    after = op.numpy((changed(x, 2, 1), *args[1:]), params)[0]
    assert moved(op.numpy(args, params)[0], after, 2) == {1}


@pytest.mark.parametrize(("heads", "kv_heads", "softcap"), [(4, 4, None), (4, 2, 0.8)])
def test_attention_under_a_causal_mask_changes_nothing_earlier(
    heads: int, kv_heads: int, softcap: float | None
) -> None:
    random, tokens = np.random.RandomState(0), 6
    q, k, v = (random.randn(2, h, tokens, 8) for h in (heads, kv_heads, kv_heads))
    at = np.arange(tokens)[None].repeat(2, axis=0)
    (mask,) = Visible().numpy((at, at), ())
    op = Attention(heads, kv_heads, 0.4, softcap)
    reach = op.reach(types((q, k, v, mask)), (Tokens(2), Tokens(2), Tokens(2), Allows(2, 3)))
    assert reach == (Tokens(2),)
    (before,) = op.numpy((q, k, v, mask), ())
    for i in range(3):
        for t in range(tokens):
            args = [q, k, v]
            args[i] = changed(args[i], 2, t)
            (after,) = op.numpy((args[0], args[1], args[2], mask), ())
            # A query changes its own output; at the first token, whose only key it is, not even that.
            expected = (set(range(t, tokens)) if i else {t}) - ({0} if i < 2 else set())
            assert moved(before.round(12), after.round(12), 2) == expected


def test_positions_count_no_later_token() -> None:
    mask = np.ones((1, 6), np.int64)
    for t in range(6):
        other = changed(mask, 1, t) * 0 + np.where(np.arange(6) == t, 0, 1)
        for op, args, far in ((KeyPositions(), (), True), (QueryPositions(), (mask,), False)):
            given = types((mask, *args))
            assert op.reach(given, (Tokens(1),) * len(given)) == (Clock(1, far=far),)
            assert moved(op.numpy((mask, *args), ())[0], op.numpy((other, *args), ())[0], 1) == set(range(t, 6))


def test_reaches_that_leak_and_those_that_do_not() -> None:
    at, x = tensor("int", B, S), tensor("float", B, 4, S, 8)
    clock, leak = Clock(1), Leaks("so")
    assert Visible().reach((at, at), (clock, clock)) == (Allows(2, 3),)
    assert isinstance(Visible().reach((at, at), (Clock(1, ahead=1), clock))[0], Leaks)
    assert Visible().reach((at, at), (clock, Clock(1, ahead=1))) == (Allows(2, 3),)
    assert isinstance(Visible().reach((at, at), (Tokens(1), clock))[0], Leaks)
    assert Extend().reach((x, x), (Constant(), Tokens(2))) == (Tokens(2),)
    assert isinstance(Extend().reach((x, x), (Tokens(2), Tokens(2)))[0], Leaks)
    assert LastIndex().reach((at,), (clock,)) == (Constant(),)
    assert isinstance(LastIndex().reach((at,), (Tokens(1),))[0], Leaks)
    assert isinstance(TakeToken().reach((at, at), (Tokens(1), Tokens(1)))[0], Leaks)
    assert Add().reach((at, at), (leak, Tokens(1))) == (leak,)
    assert isinstance(Add().reach((at, at), (Tokens(1), Tokens(2)))[0], Leaks)
    assert isinstance(Add().reach((at, at), (Clock(1, ahead=1), Tokens(1)))[0], Leaks)
    everything = (Tokens(2), Tokens(2), Tokens(2))
    assert isinstance(Attention(4, 4, 1.0).reach((x, x, x, x), (*everything, Tokens(2)))[0], Leaks)
    assert isinstance(Attention(4, 4, 1.0).reach((x, x, x, x), (Tokens(1), *everything[1:], Allows(2, 3)))[0], Leaks)


# Half precision: statistics in fp32

NORMS = [
    pytest.param(RmsNorm(64, 1e-5), id="rms"),
    pytest.param(RmsNorm(64, 1e-6, 1.0), id="rms-offset"),
    pytest.param(LayerNorm(64, 1e-5, True), id="layer"),
    pytest.param(LayerNorm(64, 1e-5, False), id="layer-no-bias"),
]


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_norms_in_half_precision_survive_large_activations(op: RmsNorm | LayerNorm, size: float) -> None:
    x = np.clip(np.random.RandomState(5).randn(4, 16, 64) * size, -6e4, 6e4).astype(np.float16)
    drawn = random_parameters(alone(op, *types((x,))), seed=1)
    params = {name: a.astype(np.float16).astype(np.float64) for name, a in drawn.items()}
    (wanted,) = op.numpy((x.astype(np.float64),), tuple(params.values()))
    with torch.no_grad():
        y = module(op, 1, params, torch.float16)(torch.from_numpy(x))
    assert y.dtype == torch.float16
    got = y.numpy().astype(np.float64)
    assert np.isfinite(got).all()
    assert np.abs(got - wanted).max() <= 2e-3 * np.abs(wanted).max()
    if isinstance(op, RmsNorm):
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-4)


def test_half_precision_statistics_would_not_survive() -> None:
    x = (np.random.RandomState(5).randn(4, 64) * 1e4).astype(np.float16)
    with np.errstate(over="ignore"):
        assert np.isinf((x * x).mean(axis=-1, dtype=np.float16)).all()
