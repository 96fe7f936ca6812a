"""Small architectures that broke other exporters, each right in the oracle, in PyTorch and in onnxruntime.

What is compared is what the proof compares: logits against the oracle's for each sequence alone, in chunks and padded.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turned_as_gptj
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from blockc.graph import interp
from blockc.ir import Array, Node, inline, parameters_of
from blockc.language.spec import from_tree
from blockc.layouts import load_layout
from blockc.ops import Attention, Rotary, RotaryTable, Scale, Visible
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof.cases import Case, cases
from blockc.proof.comparison import Truth, compare_run
from blockc.proof.runners import Onnx, Oracle, Runner, Torch
from blockc.source import SpecError, override, parse
from blockc.weights.matching import pack, unpack
from blockc.weights.rules import group_sizes, random_parameters, rules
from blockc.weights.safetensors import read_safetensors, write_safetensors

BASE = """\
blockc: 1
name: small
vocab: 61
width: 64
depth: 2
context: 128
attention: {heads: 4, kv_heads: 2, rope: {theta: 100, pairing: half}}
mlp: {type: swiglu, width: 96}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: false}
"""
RUNS = ("full", "chunked", "padded left, decode", "padded right")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost models this small more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def said(*changes: str, text: str = BASE) -> Compiled:
    tree = parse(text, "small.yaml")
    for change in changes:
        tree = override(tree, change)
    return compile_spec(from_tree(tree))


def refusal(*changes: str) -> str:
    with pytest.raises(SpecError) as caught:
        said(*changes)
    return str(caught.value)


def weights(made: Compiled) -> dict[str, Array]:
    return random_parameters(made.function, seed=20)


def torch_runner(made: Compiled) -> Torch:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(made.model_py())
        return Torch(path, made.served)


def runners(made: Compiled) -> list[Runner]:
    return [Oracle(made.served), torch_runner(made), Onnx(made.onnx(), made.served)]


def agree(made: Compiled, some: tuple[Case, ...] | None = None, but: str = "") -> None:
    """Every backend (but one that is named) gives the oracle's logits on every one of the cases."""
    chosen = some or tuple(case for case in cases(made.spec.top.vocab, cached=True) if case.name in RUNS)
    assert some or len(chosen) == len(RUNS)
    params = weights(made)
    for runner in (r for r in runners(made) if r.name != but):
        for case in chosen:
            row = compare_run(Truth(made, params), runner, case)
            assert row.holds, row


def ids_for(made: Compiled, tokens: int, rows: int = 2) -> Array:
    return np.random.RandomState(5).randint(0, made.spec.top.vocab, (rows, tokens))


def watched(made: Compiled, ids: Array, params: dict[str, Array]) -> dict[str, Array]:
    """Every value of a whole run, logits among them."""
    at = np.arange(ids.shape[1])[None].repeat(len(ids), axis=0)
    seen: dict[str, Array] = {}
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": at}
    outputs = interp.interpret(made.function, given, params, seen.__setitem__)
    return seen | outputs


def distance(a: Array, b: Array) -> float:
    """The largest difference, of the spread of the first."""
    assert a.shape == b.shape
    return float(np.abs(a - b).max() / a.std())


def everywhere(made: Compiled, ids: Array, value: str, other: str = "") -> list[Array]:
    """One value of a whole run, as the oracle, torch and onnxruntime have it. Where it has none: the other's."""
    whole = Case("whole", tuple(ids), (0,) * len(ids), (ids.shape[1],))
    traced = [runner.run(whole, weights(made), trace=True).values[0] for runner in runners(made)]
    return [values[value] if value in values else values[other] for values in traced]


# 1. head_dim is not width / heads


def test_head_dim_is_followed_by_q_o_and_the_cache() -> None:
    made = said("attention.head_dim=32")
    shapes = {path: p.shape for path, p in parameters_of(made.function).items()}
    assert [shapes[f"layers.0.attention.{m}.weight"] for m in "qkvo"] == [(128, 64), (64, 64), (64, 64), (64, 128)]
    op = next(n.op for n in made.graph.nodes if isinstance(n.op, Attention))
    assert op.scale == 32**-0.5
    session = onnxruntime.InferenceSession(made.onnx(), providers=["CPUExecutionProvider"])
    pasts = [i.shape for i in session.get_inputs() if i.name.startswith("past_key_values")]
    assert pasts == [["batch_size", 2, "past_sequence_length", 32]] * 4
    module = torch_runner(made).module.Model()
    held = module(torch.zeros(3, 5, dtype=torch.long), use_cache=True).past_key_values
    assert [tuple(x.shape) for layer in held for x in layer] == [(3, 2, 5, 32)] * 4
    agree(made)


# 2. What does not divide is refused


def test_heads_that_do_not_divide_the_width_are_refused_with_both_named() -> None:
    text = refusal("width=66", "attention.kv_heads=4", "attention.rope=none", "positions=none")
    assert "attention.heads 4 does not divide width 66" in text
    assert "head_dim" in text


def test_kv_heads_that_do_not_divide_heads_are_refused_with_both_named() -> None:
    text = refusal("attention.heads=6", "attention.kv_heads=4", "attention.head_dim=16")
    assert "attention.kv_heads 4 does not divide attention.heads 6" in text


def test_a_head_dim_makes_any_width_fit() -> None:
    agree(said("width=66", "attention.head_dim=16"))


# 3. A rotary width is a number of coordinates, never a fraction


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("attention.rope.dims=25.6", "attention.rope.dims"),
        ("attention.rope.dims=25", "rope turns pairs"),
        ("attention.rope.dims=66", "more than a head of 64 has"),
        ("attention.rope.pairs=33", "more than a head of 64 has"),
        ("attention.rope.rotary_pct=0.4", "here it is attention.rope.dims, a number of coordinates"),
        ("attention.rope.partial_rotary_factor=0.4", "here it is attention.rope.dims, a number of coordinates"),
    ],
)
def test_a_rotary_width_that_is_not_a_whole_number_of_pairs_is_refused(change: str, what: str) -> None:
    assert what in refusal("width=768", "attention.heads=12", "attention.kv_heads=12", change)


def test_an_odd_head_is_refused_by_rope() -> None:
    assert "rope turns pairs" in refusal("width=60", "attention.head_dim=15")


@pytest.mark.parametrize("dims", [24, 26, 2])
def test_an_explicit_rotary_width_is_taken_as_it_is(dims: int) -> None:
    made = said("width=128", "attention.heads=2", f"attention.rope.dims={dims}")
    assert {n.op for n in made.graph.nodes if isinstance(n.op, Rotary)} == {Rotary(dims, 64)}
    agree(made)


# 4. Scaled rope past what it was made for


def test_dynamic_scaling_that_no_call_reaches_is_refused_by_name() -> None:
    text = refusal("attention.rope.scaling={type: dynamic, factor: 2, original: 128}")
    assert "attention.rope.scaling" in text
    assert "less than context 128" in text


@pytest.mark.parametrize("original", [8, 16, 40])
def test_dynamic_scaling_is_the_same_in_all_backends_within_and_beyond(original: int) -> None:
    """Prompts past the original length, and behind it; what is cached within is what it is uncached."""
    made = said(f"attention.rope.scaling={{type: dynamic, factor: 2, original: {original}}}")
    agree(made, tuple(case for case in cases(made.spec.top.vocab, True, made.sides) if fits(made, case)))


def fits(made: Compiled, case: Case) -> bool:
    return case.name.startswith(("full", "decode")) and all(side.are_alike(case.lengths) for side in made.sides)


def test_no_table_ends_before_the_context_does() -> None:
    """Prompt 8, total 128 of a context of 128: cos and sin are computed from positions, so nothing is looked up."""
    made = said()
    ids = np.random.RandomState(0).randint(0, 61, 128)
    agree(made, (Case("to the end", (ids,), (0,), (8, 56, *(1,) * 4, 60)),))


# 5. Layers without rope

ROPES = {
    "right": "layers={pattern: [roped, roped, roped, bare], kinds: {roped: {}, bare: {attention: {rope: none}}}}",
    "inverted": "layers={pattern: [bare, bare, bare, roped], kinds: {roped: {}, bare: {attention: {rope: none}}}}",
    "all": "layers={pattern: [roped], kinds: {roped: {}}}",
}


def roped(which: str) -> Compiled:
    return said("depth=4", ROPES[which])


def test_exactly_the_layer_that_says_so_has_no_rope() -> None:
    made = roped("right")
    turned = {n.name for n in inline(made.function).nodes if isinstance(n.op, Rotary)}
    assert turned == {f"layers.{i}.attention.{m}_rotated" for i in range(3) for m in "qk"}
    agree(made)


def test_torch_has_no_rope_in_exactly_that_layer() -> None:
    agree(roped("right"))


def test_the_layer_without_rope_in_both_precisions() -> None:
    made = roped("right")
    exact = {path: torch.from_numpy(a).bfloat16() for path, a in weights(made).items()}
    params = {path: a.double().numpy() for path, a in exact.items()}
    ids = ids_for(made, 24)
    wanted, *others = (watched(roped(which), ids, params)["logits"] for which in ROPES)
    apart = min(distance(wanted, other) for other in others)
    assert apart > 0.5
    for dtype, tolerance in ((torch.float32, 3e-5), (torch.bfloat16, 0.1)):
        model = torch_runner(made).model(params).to(dtype)
        with torch.no_grad():
            got = model(torch.from_numpy(ids)).logits
        assert got.dtype == dtype
        assert distance(wanted, got.double().numpy()) < tolerance


# 6. Windows, layer by layer

WINDOWS = "layers={pattern: [near, far, near], kinds: {near: {attention: {window: 4}}, far: {}}}"
NO_WINDOWS = "layers={pattern: [far], kinds: {far: {}}}"
SWAPPED = "layers={pattern: [far, near, far], kinds: {near: {attention: {window: 4}}, far: {}}}"


def test_a_window_hides_in_its_own_layers_only() -> None:
    """What layer 0 gives for token 9 reads tokens 6 to 9; what layer 1 gives reads all."""
    made = said("depth=3", WINDOWS)
    ids, params = ids_for(made, 10, rows=1), weights(made)
    before = watched(made, ids, params)
    for token in range(10):
        other = ids.copy()
        other[0, token] = (other[0, token] + 1) % 61
        after = watched(made, other, params)
        changed = [bool(np.abs(before[f"layers.{i}"] - after[f"layers.{i}"])[0, 9].max() > 1e-9) for i in range(3)]
        assert changed == [token >= 6, True, True]


def test_every_backend_applies_each_window_where_it_is_said() -> None:
    made = said("depth=3", WINDOWS)
    ids, params = ids_for(made, 10), weights(made)
    wanted = watched(made, ids, params)["logits"]
    for other in (NO_WINDOWS, SWAPPED, WINDOWS.replace("4", "5"), WINDOWS.replace("4", "3")):
        assert distance(wanted, watched(said("depth=3", other), ids, params)["logits"]) > 1e-2
    row = np.random.RandomState(1).randint(0, 61, 10)
    agree(made, (
        Case("whole", (row,), (0,), (10,)),
        Case("decode", (row,), (0,), (1,) * 10),
        Case("padded", (row, row[:3]), (0, 7), (3, 3, 1, 3)),
    ))  # fmt: skip
    by_mask = [n.inputs[3].node.op for n in inline(made.function).nodes if isinstance(n.op, Attention)]
    assert by_mask == [Visible(4), Visible(), Visible(4)]


# 7. Both meanings of a partial rotation

PARTIAL = BASE.replace("kv_heads: 2, rope: {theta: 100,", "rope: {PART, theta: 10000,")


def turned_by_hand(x: Array, position: int, part: str) -> Array:
    """A head of 16 with a fraction of 0.25. dims: the first 4 coordinates, as a head of 4. pairs: 2 of the 8 pairs."""
    y = x.copy()
    for i in range(2):
        partner = i + 2 if part == "dims" else i + 8
        angle = position * 10000.0 ** (-2 * i / (4 if part == "dims" else 16))
        y[..., i] = x[..., i] * math.cos(angle) - x[..., partner] * math.sin(angle)
        y[..., partner] = x[..., partner] * math.cos(angle) + x[..., i] * math.sin(angle)
    return y


def turned_by_transformers(x: Array, position: int, part: str) -> Array:
    rope = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    kind: dict[str, Any] = {"head_dim": 16, "hidden_size": 64, "num_attention_heads": 4}
    if part == "pairs":
        config: Any = LlamaConfig(**kind, rope_parameters=rope)
        frequencies, scale = ROPE_INIT_FUNCTIONS["proportional"](config, torch.device("cpu"))
    else:
        config = GPTNeoXConfig(**kind, rope_parameters=rope | {"rope_type": "default"})
        frequencies, scale = GPTNeoXRotaryEmbedding.compute_default_rope_parameters(config, torch.device("cpu"))
    assert scale == 1.0
    angles = torch.cat((frequencies, frequencies)).double() * position
    width = len(angles)
    head = torch.from_numpy(x[None, None, :, :width])
    turned, _ = apply_rotary_pos_emb(head, head, angles.cos()[None, None], angles.sin()[None, None])
    return np.concatenate((turned[0, 0].numpy(), x[:, width:]), axis=-1)


@pytest.mark.parametrize("part", ["dims", "pairs"])
def test_partial_rotation_turns_the_right_partners_in_every_backend(part: str) -> None:
    count = {"dims": 4, "pairs": 2}[part]
    made = said(text=PARTIAL.replace("PART", f"{part}: {count}"))
    ids = ids_for(made, 6, rows=1)
    for which in "qk":
        before = watched(made, ids, weights(made))[f"layers.0.attention.{which}_heads"][0, :, 3]
        wanted = turned_by_hand(before, 3, part)
        np.testing.assert_allclose(turned_by_transformers(before, 3, part), wanted, atol=1e-6)
        for got in everywhere(made, ids, f"layers.0.attention.{which}_rotated"):
            np.testing.assert_allclose(got[0, :, 3], wanted, atol=3e-6)
        assert np.abs(turned_by_hand(before, 3, "pairs") - turned_by_hand(before, 3, "dims")).max() > 0.1
    agree(made)


# 8. Which coordinates are pairs

PAIRED = BASE.replace("heads: 4,", "heads: 8,").replace("theta: 100,", "theta: 10000,")
NEIGHBOURS = PAIRED.replace("pairing: half", "pairing: interleaved")
TO_NEIGHBOURS = [0, 4, 1, 5, 2, 6, 3, 7]  # of a head of 8: each half's next coordinate by turns


def paired_by_transformers(x: Array, position: int, pairing: str) -> Array:
    """A head of 8 as Llama turns it, and as GPT-J does."""
    angles = torch.tensor(position * 10000.0 ** (-np.arange(4) / 4))
    head = torch.from_numpy(x)
    if pairing == "half":
        both = torch.cat((angles, angles))[None, None]
        return apply_rotary_pos_emb(head[None, None], head[None, None], both.cos(), both.sin())[0][0, 0].numpy()
    return turned_as_gptj(head[None, :, None], angles.sin()[None, None], angles.cos()[None, None])[0, :, 0].numpy()


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_each_pairing_turns_the_references_partners_in_every_backend(pairing: str) -> None:
    made = said(text=PAIRED if pairing == "half" else NEIGHBOURS)
    ids = ids_for(made, 6, rows=1)
    for which in "qk":
        before = watched(made, ids, weights(made))[f"layers.0.attention.{which}_heads"][0, :, 3]
        wanted, other = (
            paired_by_transformers(before, 3, p) for p in sorted(("half", "interleaved"), key=pairing.__ne__)
        )
        assert np.abs(wanted - other).max() > 0.1
        for got in everywhere(made, ids, f"layers.0.attention.{which}_rotated"):
            np.testing.assert_allclose(got[0, :, 3], wanted, atol=3e-6)
    agree(made)


def neighbourly(params: dict[str, Array]) -> dict[str, Array]:
    """The rows of q and k in the order in which neighbours are what halves were."""
    moved = dict(params)
    for path, array in params.items():
        if path.endswith(("attention.q.weight", "attention.k.weight")):
            moved[path] = array.reshape(-1, 8, array.shape[-1])[:, TO_NEIGHBOURS].reshape(array.shape)
    return moved


def test_the_pairings_are_one_model_with_its_rows_in_another_order() -> None:
    half, neighbours = said(text=PAIRED), said(text=NEIGHBOURS)
    ids, params = ids_for(half, 12), weights(half)
    wanted = watched(half, ids, params)["logits"]
    assert distance(wanted, watched(neighbours, ids, neighbourly(params))["logits"]) < 1e-9
    assert distance(wanted, watched(neighbours, ids, params)["logits"]) > 1e-2


@pytest.mark.parametrize("text", [PAIRED, NEIGHBOURS], ids=["half", "interleaved"])
def test_what_is_written_and_read_again_is_what_it_was(text: str, tmp_path: Path) -> None:
    """Out, in, out: the same tensors, and from the file the same logits. No import permutes rows by a guess."""
    made = said("checkpoint=llama", text=text)
    held, params = rules(load_layout("llama"), made.function, group_sizes(made.function)), weights(made)
    packed = pack(held, {path: array.astype(np.float32) for path, array in params.items()})
    write_safetensors(tmp_path / "model.safetensors", packed)
    again = unpack(held, read_safetensors(tmp_path / "model.safetensors"))
    packed_again = pack(held, again)
    assert packed_again.keys() == packed.keys()
    assert all(np.array_equal(packed_again[name], array) for name, array in packed.items())
    ids = ids_for(made, 12)
    model = torch_runner(made).module.Model.load(tmp_path)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)).logits.numpy()
    assert distance(watched(made, ids, params)["logits"], logits) < 3e-5


# 9. Layers of unlike head_dim

UNLIKE = "layers={pattern: [narrow, narrow, wide], kinds: {narrow: {}, wide: {attention: {head_dim: 32}}}}"


@pytest.mark.parametrize("rope", ["{theta: 100, pairing: half}", "none"])
def test_a_layer_of_another_head_dim_keeps_a_cache_of_its_own_shape(rope: str) -> None:
    made = said("depth=3", UNLIKE, f"attention.rope={rope}", "positions={type: learned}")
    session = onnxruntime.InferenceSession(made.onnx(), providers=["CPUExecutionProvider"])
    kept = [i.shape[3] for i in session.get_inputs() if i.name.startswith("past_key_values")]
    assert kept == [16, 16, 16, 16, 32, 32]
    agree(made)


@pytest.mark.parametrize("rope", ["{theta: 100, pairing: half}", "none"])
def test_torch_keeps_caches_of_unlike_shape(rope: str) -> None:
    agree(said("depth=3", UNLIKE, f"attention.rope={rope}", "positions={type: learned}"))


# 10. A tied weight is there once

TIED = ("vocab=1000", "head.tied=true")


def sizes(model: onnx.ModelProto) -> list[int]:
    return sorted(math.prod(i.dims) for i in model.graph.initializer)


def test_a_tied_weight_is_stored_once() -> None:
    made = said(*TIED)
    data = made.onnx(weights=weights(made))
    assert sizes(onnx.load_from_string(data)).count(64_000) == 1
    assert len(data) < 4 * made.parameters + 40_000
    model = torch_runner(made).module.Model()
    assert model.head.weight is model.embedding.weight
    assert sum(p.numel() for p in model.parameters()) == made.parameters
    agree(made)


def test_a_tied_weight_is_loaded_once(tmp_path: Path) -> None:
    """onnxruntime folds the head's Transpose into a second table, unless it is told not to fold constants."""
    made = said(*TIED)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    data = made.onnx(weights=weights(made))
    providers = ["CPUExecutionProvider"]
    onnxruntime.InferenceSession(data, options, providers=providers, disabled_optimizers=["ConstantFolding"])
    assert sizes(onnx.load(tmp_path / "loaded.onnx")).count(64_000) == 1


# 14, 15. What onnxruntime's Attention does on its own, and that nothing of ours depends on it


def ort_attention(q: Array, k: Array, v: Array, mask: Array | None = None, **attributes: float) -> Array:
    named = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
    feeds = {name: a if a.dtype == bool else a.astype(np.float32) for name, a in named.items()}
    kinds = {name: TensorProto.BOOL if a.dtype == bool else TensorProto.FLOAT for name, a in feeds.items()}
    graph = helper.make_graph(
        [helper.make_node("Attention", list(feeds), ["y"], **attributes)],
        "probe",
        [helper.make_tensor_value_info(name, kinds[name], a.shape) for name, a in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def heads(q: int, k: int) -> tuple[Array, Array, Array]:
    random = np.random.RandomState(0)
    return random.randn(1, 2, q, 8) * 3, random.randn(1, 2, k, 8) * 3, random.randn(1, 2, k, 8)


def test_positions_decide_what_one_query_sees_of_five_keys() -> None:
    q, k, v = heads(1, 5)
    (mask,) = Visible().numpy((np.array([[4]]), np.arange(5)[None]), ())
    (wanted,) = Attention(2, 2, 0.4).numpy((q, k, v, mask), ())
    assert distance(wanted, ort_attention(q, k, v, mask, scale=0.4)) < 1e-5
    # The flag alone would show the query its first key and nothing else, in both.
    flagged = ort_attention(q, k, v, scale=0.4, is_causal=1)
    in_torch = F.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), scale=0.4, is_causal=True).numpy()
    np.testing.assert_allclose(flagged, v[:, :, :1], atol=1e-6)
    np.testing.assert_allclose(in_torch, v[:, :, :1], atol=1e-6)
    assert distance(wanted, flagged) > 0.1


def test_no_emitted_text_relies_on_a_causal_flag_where_there_is_a_mask() -> None:
    made = said()
    assert made.model_py().count("is_causal") == made.model_py().count("is_causal=mask is None") == 1
    for n in onnx.load_from_string(made.onnx()).graph.node:
        if n.op_type == "Attention":
            assert [a.i for a in n.attribute if a.name == "is_causal"] in ([], [0])
            assert len(n.input) == 4
            assert n.input[3]
    row = np.random.RandomState(2).randint(0, 61, 6)
    agree(made, (Case("q 1, past 4", (row[:5],), (0,), (4, 1)), Case("q 2, past 4", (row,), (0,), (4, 2))))


def test_a_softcap_comes_before_the_mask() -> None:
    q, k, v = heads(4, 4)
    mask = np.tril(np.ones((1, 1, 4, 4), bool))
    op = Attention(2, 2, 0.4, 5.0)
    (wanted,) = op.numpy((q, k, v, mask), ())
    scores = q @ k.swapaxes(2, 3) * 0.4
    capped = 5 * np.tanh(scores / 5)

    def mixed(masked: Array) -> Array:
        shares = np.exp(masked - masked.max(-1, keepdims=True))
        return shares / shares.sum(-1, keepdims=True) @ v

    np.testing.assert_allclose(wanted, mixed(np.where(mask, capped, -np.inf)), atol=1e-12)
    assert distance(wanted, ort_attention(q, k, v, mask, scale=0.4, softcap=5.0)) < 1e-5
    # Capped after the mask, a hidden key would keep a score of -5.
    assert distance(wanted, mixed(np.where(mask, capped, -5.0))) > 1e-3


def test_onnxruntime_caps_before_it_adds_a_finite_bias() -> None:
    q, k, v = heads(4, 4)
    bias = np.zeros((1, 1, 4, 4))
    bias[..., 1] = -3
    scores = q @ k.swapaxes(2, 3) * 0.4

    def mixed(scores: Array) -> Array:
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        return shares / shares.sum(-1, keepdims=True) @ v

    got = ort_attention(q, k, v, bias, scale=0.4, softcap=5.0)
    assert distance(got, mixed(5 * np.tanh(scores / 5) + bias)) < 1e-5
    assert distance(got, mixed(5 * np.tanh((scores + bias) / 5))) > 1e-2


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_softcapped_model_agrees(kv_heads: int) -> None:
    made = said("attention.softcap=5", f"attention.kv_heads={kv_heads}", "attention.scale=2")
    ids, params = ids_for(made, 12), weights(made)
    without = said(f"attention.kv_heads={kv_heads}", "attention.scale=2")
    assert distance(watched(made, ids, params)["logits"], watched(without, ids, params)["logits"]) > 1e-2
    agree(made)


# 20. Padding, and the sizes of past, new and batch


def padded_cases() -> Iterator[Case]:
    """Prompts of 2 and 5 tokens, of which some are the token that pads."""
    two, five = np.array([0, 7]), np.array([3, 0, 0, 9, 0])
    yield Case("left", (two, five), (3, 0), (5,))
    yield Case("left, decode", (two, five), (3, 0), (4, 1))
    yield Case("right", (two, five), (0, 0), (5,))
    for row in (two, five):
        yield Case("alone", (row,), (0,), (len(row),))


@pytest.mark.parametrize("change", ["depth=2", "attention.window=3", "attention.rope.dims=8"])
def test_a_padded_prompt_gives_the_logits_that_it_gives_alone(change: str) -> None:
    agree(said(change), tuple(padded_cases()))


def test_a_learned_position_counts_no_padding() -> None:
    agree(said("attention.rope=none", "positions={type: learned}"), tuple(padded_cases()))


def test_any_past_any_number_of_new_tokens_any_batch() -> None:
    random = np.random.RandomState(9)

    def case(past: int, new: int, batch: int) -> Case:
        rows = tuple(random.randint(0, 61, past + new) for _ in range(batch))
        return Case(f"P {past}, S {new}, B {batch}", rows, (0,) * batch, (past, new) if past else (new,))

    agree(said(), tuple(case(p, s, b) for p in (0, 1, 5) for s in (1, 4) for b in (1, 3)))


# 21. Activations that are nearly alike


@pytest.mark.parametrize(("one", "other"), [("gelu", "gelu_tanh"), ("geglu", "geglu_tanh"), ("swiglu", "geglu")])
def test_the_tolerance_tells_activations_apart(one: str, other: str) -> None:
    """A model.py and a model.onnx of the one are refused as those of the other, in both directions."""
    whole = next(case for case in cases(61, cached=True) if case.name == "full")
    made = {kind: said(f"mlp.type={kind}") for kind in (one, other)}
    params = weights(made[one])
    for kind, wrong in ((one, other), (other, one)):
        for right, runner in zip(runners(made[kind]), runners(made[wrong]), strict=True):
            assert compare_run(Truth(made[kind], params), right, whole).holds
            row = compare_run(Truth(made[kind], params), runner, whole)
            assert not row.holds, row
            assert row.error > 3 * row.tolerance


# 22. Scaled rope past the original context

SCALING = "attention.rope={theta: 10000, pairing: half, scaling: {type: llama3, factor: 8, low_freq_factor: 1, " \
          "high_freq_factor: 4, original: 32}}"  # fmt: skip


def test_llama3_frequencies_are_the_references() -> None:
    made = said(SCALING)
    table = next(n.op for n in made.graph.nodes if isinstance(n.op, RotaryTable))
    config: Any = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=128,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    )  # fmt: skip
    wanted, scale = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    assert scale == 1.0
    np.testing.assert_allclose(table.frequencies, wanted.numpy(), rtol=1e-6)
    plain = 10000.0 ** (-np.arange(8) / 8)
    ratios = (table.frequencies / plain).round(6)
    kinds = {"kept" if r == 1 else "stretched" if r == 0.125 else "blended" for r in ratios}
    assert kinds == {"kept", "stretched", "blended"}


def test_scaled_rope_is_right_past_the_original_context() -> None:
    made = said(SCALING)
    row, other = np.random.RandomState(3).randint(0, 61, (2, 100))
    params = weights(made)
    scaled = watched(made, row[None], params)["logits"]
    unscaled = watched(said("attention.rope.theta=10000"), row[None], params)["logits"]
    assert distance(scaled[:, 33:], unscaled[:, 33:]) > 0.1
    agree(made, (
        Case("whole", (row, other), (0, 0), (100,)),
        Case("across the boundary", (row,), (0,), (8, 23, 1, 1, 30, 37)),
        Case("padded", (row, other[:40]), (0, 60), (64, 36)),
    ))  # fmt: skip


# 23. Sizes that a tracer would fix


def test_one_graph_takes_every_size() -> None:
    made = said()
    random = np.random.RandomState(4)

    def case(batch: int, tokens: int) -> Case:
        return Case(f"({batch}, {tokens})", tuple(random.randint(0, 61, (batch, tokens))), (0,) * batch, (tokens,))

    agree(made, (case(16, 128), case(3, 7), case(1, 1)))


# 24. Grouped heads


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize("softcap", ["none", "1.5"])
def test_every_grouping_of_eight_heads_agrees(kv_heads: int, softcap: str) -> None:
    made = said("attention.heads=8", f"attention.kv_heads={kv_heads}", f"attention.softcap={softcap}")
    shapes = {n.name: n.types[0].shape for n in made.served.inputs}
    assert shapes["past_key_values.1.value"][1].value == kv_heads
    agree(made)


# 25. The embedding's scale


@cache
def wide() -> Compiled:
    return said("width=3584", "vocab=8", "depth=1", "mlp.width=8", "attention.heads=1", "attention.kv_heads=1",
                "attention.head_dim=16", "embedding={scale: sqrt_width}")  # fmt: skip


def test_the_scale_of_an_embedding_is_not_rounded() -> None:
    made = wide()
    (scale,) = (n.op for n in made.graph.nodes if isinstance(n.op, Scale))
    assert scale == Scale(math.sqrt(3584))
    assert "x = embedding * 3584**0.5" in made.model_py() and math.sqrt(3584) == 3584**0.5
    named = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load_from_string(made.onnx()).graph.initializer}
    assert np.float32(math.sqrt(3584)) in [a.item() for a in named.values() if a.dtype == np.float32 and a.size == 1]


def test_every_backend_scales_in_full_precision() -> None:
    made = wide()
    ids = np.arange(8)[None]
    table = weights(made)["embedding.weight"]
    for scaled in everywhere(made, ids, "scaled_embedding", "layers.0.x"):
        np.testing.assert_allclose(scaled[0] / table, math.sqrt(3584), rtol=3e-7)
    for rounded in (59.75, 60.0, 59.875):  # what bf16 and fp16 would make of 59.8665
        assert abs(rounded / math.sqrt(3584) - 1) > 1e-4
    assert isinstance(made.graph.nodes[0], Node)
