"""The ten properties, each on the twin of every spec that it applies to, and one block worked through by hand.

The oracle's float64 says whether the function is right; a few properties are asked of PyTorch and onnxruntime too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from blockc.emit.onnx import emit_onnx, serialise
from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.ir import Array, Function, Node, Value, callee_of, inline, is_call, parameters_of
from blockc.language.spec import Spec, from_tree, load
from blockc.ops import (
    Add,
    Attention,
    Experts,
    LayerNorm,
    MergeHeads,
    RmsNorm,
    Rotary,
    RotaryInterleaved,
    RotaryTable,
    SplitHeads,
)
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import MappingNode, override
from blockc.weights.rules import random_parameters
from tests.paths import ROOT, WRITERS
from tests.tiers import chosen

SPECS = sorted((ROOT / "specs").glob("*.yaml"))
NAMES = [path.stem for path in SPECS]
ENCODERS = [name for name in NAMES if name not in WRITERS]
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in SPECS}
BOTH_WAYS = [name for name in ENCODERS if "causal: false" in TEXTS[name]]
SCORERS = [name for name in ENCODERS if "\nhead: {" in TEXTS[name]]  # masked language models and classifiers
ROPE = ["gemma2-9b", "gpt-j-6b", "llama3-70b", "llama3-8b", "llama3.1-405b", "phi-2", "pythia-410m"]
GROUPED = ["gemma2-9b", "llama3-70b", "llama3-8b", "llama3.1-405b", "mistral-7b", "qwen3-0.6b", "smollm2-135m"]
TURNS = Rotary
T = 13  # beyond a twin's window
EXACT = 1e-9

each_spec = pytest.mark.parametrize("name", NAMES)
each_writer = pytest.mark.parametrize("name", WRITERS)
unlike_writers = pytest.mark.parametrize("name", [name for name in chosen() if name in WRITERS])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost models this small more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(name: str, *changes: str) -> Spec:
    """The twin, then changed: what is set here is not made smaller. A changed one fits no published checkpoint."""
    tree = shrink(load(SPECS[NAMES.index(name)])).tree
    if changes:
        tree = MappingNode({key: entry for key, entry in tree.entries.items() if key != "checkpoint"}, tree.place)
    for change in changes:
        tree = override(tree, change)
    return from_tree(tree)


@cache
def twin(name: str, *changes: str) -> Compiled:
    return compile_spec(small(name, *changes))


@cache
def weights(name: str, *changes: str) -> dict[str, Array]:
    return random_parameters(twin(name, *changes).function, seed=11)


def tokens(made: Compiled, rows: int = 2, count: int = T, seed: int = 0) -> Array:
    return np.random.RandomState(seed).randint(0, made.spec.top.vocab, (rows, count))


def inputs(made: Compiled, ids: Array, shift: int = 0, mask: Array | None = None) -> dict[str, Array]:
    """A token is of one segment wherever it stands."""
    mask = np.ones_like(ids) if mask is None else mask
    given = {"input_ids": ids, "attention_mask": mask, "position_ids": np.maximum(mask.cumsum(axis=1) - 1, 0) + shift}
    segments = "token_type_ids" in {each.name for each in made.function.inputs}
    return given | ({"token_type_ids": ids % 2} if segments else {})


def outputs(
    made: Compiled, params: dict[str, Array], ids: Array, shift: int = 0, mask: Array | None = None
) -> dict[str, Array]:
    """By name: logits, or hidden states and vectors; of each token (B, S, n), or of each text (B, n)."""
    return interp.interpret(made.function, inputs(made, ids, shift, mask), params)


def logits(made: Compiled, params: dict[str, Array], ids: Array, shift: int = 0, mask: Array | None = None) -> Array:
    return outputs(made, params, ids, shift, mask)["logits"]


def distance(a: Array, b: Array) -> float:
    """The largest difference, of the spread of the first."""
    assert a.shape == b.shape
    return float(np.abs(a - b).max() / a.std())


def emitted(made: Compiled) -> ModuleType:
    return module_of(made.model_py())


@cache
def module_of(text: str) -> ModuleType:
    module = ModuleType("emitted")
    exec(compile(text, "model.py", "exec", dont_inherit=True), module.__dict__)
    return module


def held(built: Any) -> dict[str, torch.Tensor]:
    """The parameters, and the buffers that a checkpoint has."""
    state = built.state_dict()
    return {n: t for n, t in (*built.named_parameters(), *built.named_buffers()) if n in state}


def model(made: Compiled, params: dict[str, Array]) -> Any:
    built = emitted(made).Model()
    own = held(built)
    assert {n: tuple(p.shape) for n, p in own.items()} == {n: a.shape for n, a in params.items()}
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(torch.from_numpy(params[name]))
    return built.eval()


def in_torch(made: Compiled, params: dict[str, Array], ids: Array, shift: int = 0) -> Array:
    with torch.no_grad():
        output = model(made, params)(**{name: torch.from_numpy(a) for name, a in inputs(made, ids, shift).items()})
    return output.logits.numpy()


def in_onnx(made: Compiled, params: dict[str, Array], ids: Array, shift: int = 0) -> Array:
    session = onnxruntime.InferenceSession(made.onnx(), providers=["CPUExecutionProvider"])
    wanted = {i.name: [d if isinstance(d, int) else 0 for d in i.shape] for i in session.get_inputs()}
    pasts = {n: np.zeros((len(ids), *shape[1:]), np.float32) for n, shape in wanted.items() if n.startswith("past_")}
    given = inputs(made, ids, shift) | pasts | {n: a.astype(np.float32) for n, a in params.items()}
    return session.run(["logits"], {n: a for n, a in given.items() if n in wanted})[0]


# 1. Shift


def adds_positions(name: str) -> bool:
    return twin(name).decoder.positions is not None


def weighs_what_is_turned(name: str) -> bool:
    """A gain behind rope is of coordinates, whichever way they were turned: the distance alone does not say a score."""
    graph = inline(twin(name).function)
    normed = (n for n in graph.nodes if isinstance(n.op, RmsNorm | LayerNorm) and n.params)
    return any(isinstance(n.inputs[0].node.op, Rotary) for n in normed)


def moves_past(name: str, by: int) -> bool:
    """Whether rope goes by the length of a call, and the shifted one is of another side."""
    return not all(side.are_alike((T, T + by)) for side in twin(name).sides)


@each_spec
@pytest.mark.parametrize("by", [1, 40])
def test_adding_to_all_positions_changes_outputs_only_where_positions_or_lengths_count(name: str, by: int) -> None:
    made = twin(name)
    ids = tokens(made)
    here, there = (outputs(made, weights(name), ids, shift) for shift in (0, by))
    counts = adds_positions(name) or moves_past(name, by) or weighs_what_is_turned(name)
    for which in here:
        if counts:
            assert distance(here[which], there[which]) > 1e-2, which
        else:
            assert distance(here[which], there[which]) < EXACT, which


@pytest.mark.parametrize("run", [in_torch, in_onnx])
@pytest.mark.parametrize("name", ["block-4x4", "llama3.1-405b", "gpt2", "transformer2017"])
def test_backends_shift_as_the_oracle_does(name: str, run: Any) -> None:
    made = twin(name)
    ids = tokens(made)
    here, there = (run(made, weights(name), ids, shift) for shift in (0, 40))
    assert distance(logits(made, weights(name), ids, 40), there) < 3e-5
    assert (distance(here, there) > 1e-2) == adds_positions(name)


# 2. Permutations


BLIND = [
    ("block-4x4", ("attention.causal=false",)),
    ("llama3-8b", ("attention.causal=false", "attention.rope=none", "positions=none")),
    ("gpt2", ("attention.causal=false", "positions=none")),
]


@pytest.mark.parametrize(("name", "changes"), BLIND)
def test_without_mask_and_positions_permuting_tokens_permutes_outputs(name: str, changes: tuple[str, ...]) -> None:
    made, params = twin(name, *changes), weights(name, *changes)
    ids, order = tokens(made), np.random.RandomState(1).permutation(T)
    assert distance(logits(made, params, ids)[:, order], logits(made, params, ids[:, order])) < EXACT


@pytest.mark.parametrize(("name", "changes"), BLIND)
def test_torch_permutes_outputs_too(name: str, changes: tuple[str, ...]) -> None:
    made, params = twin(name, *changes), weights(name, *changes)
    ids, order = tokens(made), np.random.RandomState(1).permutation(T)
    assert distance(logits(made, params, ids)[:, order], in_torch(made, params, ids[:, order])) < 3e-5


@pytest.mark.parametrize(("name", "changes"), BLIND)
def test_onnxruntime_permutes_outputs_too(name: str, changes: tuple[str, ...]) -> None:
    made, params = twin(name, *changes), weights(name, *changes)
    ids, order = tokens(made), np.random.RandomState(1).permutation(T)
    assert distance(logits(made, params, ids)[:, order], in_onnx(made, params, ids[:, order])) < 3e-5


@pytest.mark.parametrize(("name", "changes"), [("block-4x4", ()), ("llama3-8b", ("attention.causal=false",))])
def test_a_mask_or_positions_break_it(name: str, changes: tuple[str, ...]) -> None:
    made, params = twin(name, *changes), weights(name, *changes)
    ids, order = tokens(made), np.random.RandomState(1).permutation(T)
    assert distance(logits(made, params, ids)[:, order], logits(made, params, ids[:, order])) > 1e-2


# 3. Order in causal layers without positions


@pytest.mark.parametrize(
    ("name", "without"), [("block-4x4", ()), ("llama3-8b", ("attention.rope=none", "positions=none"))]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_one_causal_layer_is_blind_to_the_order_of_what_came_before(
    name: str, without: tuple[str, ...], depth: int
) -> None:
    changes = (*without, f"depth={depth}")
    made, params = twin(name, *changes), weights(name, *changes)
    ids = np.random.RandomState(0).permutation(made.spec.top.vocab)[None, :T]
    other = np.concatenate((ids[:, :-1][:, np.random.RandomState(1).permutation(T - 1)], ids[:, -1:]), axis=1)
    difference = distance(logits(made, params, ids)[:, -1:], logits(made, params, other)[:, -1:])
    if depth == 1:
        assert difference < EXACT
    else:
        assert difference > 1e-3


# 4. The stream is a sum

BARE, NORMED = ("attention", "mlp"), ("attention_post_norm", "mlp_post_norm")
ADDED = {"pre": BARE, "post": BARE, "parallel_one": BARE, "parallel_two": BARE, "sandwich": NORMED, "branch": NORMED}
OWN_BLOCKS = {"modernbert-base": BARE}  # of layers whose norms no word places


@pytest.mark.parametrize(
    ("name", "changes"),
    [*((n, ()) for n in NAMES), *((n, ("norm.placement=post",)) for n in ("llama3-8b", "gpt2", "block-4x4"))],
)
def test_the_final_stream_is_the_embedding_and_all_contributions_unless_norms_stand_on_it(
    name: str, changes: tuple[str, ...]
) -> None:
    made, params = twin(name, *changes), weights(name, *changes)
    seen: dict[str, Array] = {}
    interp.interpret(made.function, inputs(made, tokens(made)), params, seen.__setitem__)
    calls = [n for n in made.function.nodes if is_call(n)]
    start = calls[0].inputs[0].name
    norms = [layer.keys.norm for layer in made.spec.layers]
    placed = [norm.placement for norm in norms if norm is not None]
    added = [ADDED[placement] if placement else OWN_BLOCKS[name] for placement in placed]
    contributions = [seen[f"{n.name}.{each}"] for n, all_ in zip(calls, added, strict=True) for each in all_]
    assert len(contributions) == 2 * made.spec.top.depth
    scale = made.spec.layers[0].keys.residual_scale or 1.0
    total = seen[start] + scale * sum(contributions)
    if "post" in placed:
        assert distance(seen[calls[-1].name], total) > 1e-2
    else:
        assert distance(seen[calls[-1].name], total) < EXACT


def walk_back(value: Value) -> tuple[list[Value], Value]:
    """What was added to the stream up to this value, the latest first, and what it began as."""
    added: list[Value] = []
    while isinstance(value.node.op, Add):
        value, branch = value.node.inputs
        added.append(branch)
    return added, value


def test_block_70_of_llama_70b_reads_138_contributions() -> None:
    made = compile_spec(load(SPECS[NAMES.index("llama3-70b")]))
    nodes = {n.name: n for n in made.graph.nodes}
    added, start = walk_back(nodes["layers.69.attention_norm"].inputs[0])
    assert start.node.name == "embedding"
    assert len(added) == 138
    assert [value.name for value in added[:2]] == ["layers.68.mlp.down", "layers.68.attention.o"]
    everything, start = walk_back(nodes["final_norm"].inputs[0])
    assert (len(everything), start.node.name) == (160, "embedding")


def test_with_post_norm_nothing_is_a_sum_back_to_the_embedding() -> None:
    made = compile_spec(load(SPECS[NAMES.index("llama3-70b")], ("norm.placement=post",)))
    added, start = walk_back(next(n for n in made.graph.nodes if n.name == "head").inputs[0])
    assert (added, start.node.name) == ([], "layers.79.mlp_post_norm")


# 5. Causality


def assert_causal(made: Compiled, run: Any) -> None:
    """To the last bit, but for experts: their products have other rows, which are rounded otherwise."""
    exact = 1e-12 if any(isinstance(n.op, Experts) for n in made.graph.nodes) else 0
    ids = tokens(made, rows=1)
    before = run(ids)
    for j in range(T):
        other = ids.copy()
        other[0, j] = (other[0, j] + 1) % made.spec.top.vocab
        after = run(other)
        np.testing.assert_allclose(after[0, :j], before[0, :j], rtol=0, atol=exact)
        assert np.abs(after[0, j] - before[0, j]).max() > 1e-3 * before.std()


@each_writer
def test_changing_a_token_changes_its_own_output_and_none_before(name: str) -> None:
    assert_causal(twin(name), lambda ids: logits(twin(name), weights(name), ids))


def test_a_causal_models_hidden_states_are_causal_too() -> None:
    made, params = twin("qwen3-embedding-0.6b"), weights("qwen3-embedding-0.6b")
    assert_causal(made, lambda ids: outputs(made, params, ids)["last_hidden_state"])


@pytest.mark.parametrize(
    ("name", "changes"), [("llama3-8b", ("attention.causal=false",)), *((name, ()) for name in BOTH_WAYS)]
)
def test_a_model_that_looks_both_ways_changes_outputs_before(name: str, changes: tuple[str, ...]) -> None:
    """Those of every token; and those of a text, also where they are read at its first token."""
    made, params = twin(name, *changes), weights(name, *changes)
    ids = tokens(made, rows=1)
    other = ids.copy()
    other[0, -1] = (other[0, -1] + 2) % made.spec.top.vocab  # of the same segment
    before, after = outputs(made, params, ids), outputs(made, params, other)
    for which in before:
        assert np.abs(before[which] - after[which])[0].max(axis=-1).min() > 1e-4, which


@pytest.mark.parametrize("name", ["gemma2-9b", "llama3-8b", "gpt2"])
def test_torch_is_causal_too(name: str) -> None:
    """To the last bits: a changed key has weight 0, whatever it holds."""
    made = twin(name)
    ids = tokens(made, rows=1)
    before = in_torch(made, weights(name), ids)
    for j in (0, 6, T - 1):
        other = ids.copy()
        other[0, j] = (other[0, j] + 1) % made.spec.top.vocab
        after = in_torch(made, weights(name), other)
        np.testing.assert_allclose(after[0, :j], before[0, :j], atol=2e-6 * float(before.std()))
        assert np.abs(after[0, j] - before[0, j]).max() > 1e-3 * before.std()


# 6. RoPE


def rotated(made: Compiled, params: dict[str, Array]) -> dict[str, Array]:
    seen: dict[str, Array] = {}
    interp.interpret(made.function, inputs(made, tokens(made)), params, seen.__setitem__)
    return seen


@pytest.mark.parametrize("name", ROPE)
def test_rope_keeps_the_length_of_every_pair_and_moves_all_but_the_first_token(name: str) -> None:
    made = twin(name)
    seen = rotated(made, weights(name))
    op = next(n.op for n in inline(made.function).nodes if isinstance(n.op, TURNS))
    half = op.width // 2
    for layer in range(made.spec.top.depth):
        for which in "qk":
            before = seen[f"layers.{layer}.attention.{which}_heads"]
            after = seen[f"layers.{layer}.attention.{which}_rotated"]
            assert np.abs(np.linalg.norm(before, axis=-1) - np.linalg.norm(after, axis=-1)).max() < EXACT
            for i in range(half):
                pair = [2 * i, 2 * i + 1] if isinstance(op, RotaryInterleaved) else [i, i + half]
                lengths = (np.linalg.norm(a[..., pair], axis=-1) for a in (before, after))
                np.testing.assert_allclose(next(lengths), next(lengths), atol=EXACT)
            np.testing.assert_allclose(before[:, :, 0], after[:, :, 0], atol=EXACT)
            assert np.abs(before - after)[:, :, 1:, : op.width].max(axis=(0, 1, 3)).min() > 1e-2
            np.testing.assert_array_equal(before[..., op.width :], after[..., op.width :])


@pytest.mark.parametrize("name", ROPE)
def test_rope_turns_queries_and_keys_only(name: str) -> None:
    graph = inline(twin(name).function)
    for n in graph.nodes:
        if isinstance(n.op, Attention):
            q, k, v, _ = n.inputs
            assert isinstance(q.node.op, TURNS)
            assert isinstance(k.node.op, TURNS)
            assert isinstance(v.node.op, SplitHeads)
    turned = [n.inputs[0].node.inputs[0].node.name.rpartition(".")[2] for n in graph.nodes if isinstance(n.op, TURNS)]
    assert turned == ["q", "k"] * twin(name).spec.top.depth


@pytest.mark.parametrize("name", ROPE)
def test_the_product_of_query_and_key_depends_on_their_distance_alone(name: str) -> None:
    ops = [n.op for n in compile_spec(load(SPECS[NAMES.index(name)])).graph.nodes]
    table, rotary = (next(op for op in ops if isinstance(op, kind)) for kind in (RotaryTable, TURNS))
    random = np.random.RandomState(2)
    q, k = random.randn(2, rotary.head_dim)

    def at(x: Array, position: int) -> Array:
        return rotary.numpy((x[None, None, None], *table.numpy((np.array([[position]]),), ())), ())[0].ravel()

    def product(m: int, n: int) -> float:
        return float(at(q, m) @ at(k, n))

    for gap in (0, 1, 7, 500):
        values = [product(n + gap, n) for n in (0, 3, 64, 1200)]
        np.testing.assert_allclose(values, values[0], atol=1e-8)
    assert abs(product(7, 0) - product(8, 0)) > 1e-3
    assert abs(product(7, 0) - product(0, 7)) > 1e-2


# 7. Chunks, padding, groups, windows


def chunked(made: Compiled, params: dict[str, Array], ids: Array, mask: Array, chunks: list[int]) -> Array:
    function = made.served
    sizes = {"B": len(ids), "P": 0}
    past = {n.name: np.zeros([d.at(sizes) for d in n.types[0].shape]) for n in function.inputs[3:]}
    parts: list[Array] = []
    end = 0
    for chunk in chunks:
        new = slice(end, end + chunk)
        end += chunk
        given = {name: a[:, new] for name, a in inputs(made, ids, mask=mask).items()} | {
            "attention_mask": mask[:, :end]
        }
        results = interp.interpret(function, given | past, params)
        parts.append(results["logits"])
        past = {name: results[name.replace("past_key_values", "present")] for name in past}
    return np.concatenate(parts, axis=1)


def cut(total: int, seed: int) -> list[int]:
    """The total as a random sum."""
    random = np.random.RandomState(seed)
    places = sorted(random.choice(np.arange(1, total), random.randint(0, total), replace=False).tolist())
    return [b - a for a, b in zip([0, *places], [*places, total], strict=True)]


@unlike_writers
@pytest.mark.parametrize("seed", range(4))
def test_any_chunking_is_the_whole(name: str, seed: int) -> None:
    made = twin(name)
    ids, chunks = tokens(made), cut(T, seed)
    assert sum(chunks) == T
    assert min(chunks) > 0
    got = chunked(made, weights(name), ids, np.ones_like(ids), chunks)
    assert distance(logits(made, weights(name), ids), got) < EXACT


def test_the_chunkings_are_unlike_each_other() -> None:
    assert len({tuple(cut(T, seed)) for seed in range(4)}) == 4
    assert max(len(cut(T, seed)) for seed in range(4)) > 3


@pytest.mark.parametrize("name", sorted({*chosen(), *ENCODERS}))
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_a_padded_sequence_is_the_sequence_alone(name: str, side: str) -> None:
    made, params, count = twin(name), weights(name), 6
    ids, start = tokens(made, rows=3), {"left": T - 6, "right": 0, "both": 4}[side]
    own = slice(start, start + count)
    mask = np.ones_like(ids)
    mask[1:] = 0
    mask[1:, own] = 1
    wanted = outputs(made, params, ids[1:, own])
    for which, got in outputs(made, params, ids, mask=mask).items():
        assert distance(wanted[which], got[1:, own] if got.ndim == 3 else got[1:]) < EXACT, which
    if name in WRITERS:
        assert distance(wanted["logits"], chunked(made, params, ids, mask, [5, 2, 1, 5])[1:, own]) < EXACT


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_heads_are_many_heads_with_repeated_weights(name: str) -> None:
    made, params = twin(name), weights(name)
    a = made.spec.layers[0].keys.attention
    assert a is not None
    assert a.kv_heads is not None
    assert a.kv_heads < a.heads
    many = twin(name, f"attention.kv_heads={a.heads}")
    repeated = {path: params[path] for path in parameters_of(many.function)}
    for path, param in repeated.items():
        if path.endswith(("attention.k.weight", "attention.v.weight")):
            heads = param.reshape(a.kv_heads, -1, param.shape[1])
            repeated[path] = heads.repeat(a.heads // a.kv_heads, axis=0).reshape(-1, param.shape[1])
    ids = tokens(made)
    wanted = logits(made, params, ids)
    assert distance(wanted, logits(many, repeated, ids)) < EXACT
    assert distance(wanted, in_torch(many, repeated, ids)) < 3e-5
    tiled = {p: np.roll(x, 16, axis=0) if p.endswith("k.weight") else x for p, x in repeated.items()}
    assert distance(wanted, logits(many, tiled, ids)) > 1e-2, "the order of heads matters"


def test_a_window_as_long_as_the_sequence_hides_nothing() -> None:
    at = "layers.kinds.local.attention.window"
    context = twin("gemma2-9b").spec.top.context
    params = weights("gemma2-9b")
    runs = {w: logits(made := twin("gemma2-9b", f"{at}={w}"), params, tokens(made)) for w in (5, T - 1, T, context - 1)}
    open_ = logits(twin("gemma2-9b", f"{at}=none"), params, tokens(made))
    assert distance(open_, runs[T]) < EXACT
    assert distance(open_, runs[context - 1]) < EXACT
    assert distance(open_[:, :-1], runs[T - 1][:, :-1]) < EXACT
    assert distance(open_[:, -1:], runs[T - 1][:, -1:]) > 1e-4, "the last query no longer sees the first key"
    assert distance(open_[:, :5], runs[5][:, :5]) < EXACT
    assert distance(open_[:, 5:], runs[5][:, 5:]) > 1e-2


# 8. RMSNorm


def test_rms_norm_keeps_direction_and_gives_length_root_width() -> None:
    x = np.random.RandomState(3).randn(5, 7, 32) * np.logspace(-3, 4, 7)[:, None]
    (y,) = RmsNorm(32, 0.0).numpy((x,), (np.ones(32),))
    np.testing.assert_allclose((x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1), 1, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), math.sqrt(32))


@pytest.mark.parametrize(
    ("name", "changes"), [("llama3-8b", ()), ("pythia-410m", ()), ("llama3-8b", ("norm.offset=1",))]
)
def test_a_half_precision_model_survives_a_large_stream(name: str, changes: tuple[str, ...]) -> None:
    made, params = twin(name, *changes), dict(weights(name, *changes))
    table = params["embedding.weight"]
    params["embedding.weight"] = table * (1e4 / np.abs(table).max())
    params = {path: a.astype(np.float16).astype(np.float64) for path, a in params.items()}
    ids = tokens(made)
    seen: dict[str, Array] = {}
    wanted = interp.interpret(made.function, inputs(made, ids), params, seen.__setitem__)["logits"]
    assert np.abs(seen["layers.0"]).max() > 5e3
    with torch.no_grad():
        got = model(made, params).half()(torch.from_numpy(ids)).logits
    assert got.dtype == torch.float16
    assert torch.isfinite(got).all()
    assert distance(wanted, got.numpy().astype(np.float64)) < 2e-2


# 9. Training


def cross_entropy(scores: Array, labels: Array) -> float:
    """Each token given those before it."""
    scores, labels = scores[:, :-1].astype(np.float64), labels[:, 1:]
    total = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1)
    return float((total - np.take_along_axis(scores, labels[..., None], -1)[..., 0]).mean())


def scores_loss(scores: Array, labels: Array) -> float:
    """Each place or text for itself: of one score whether it is 1, of several which of them."""
    scores = scores.astype(np.float64)
    if scores.shape[-1] == 1:
        chances = 1 / (1 + np.exp(-scores[..., 0]))
        return float(-np.log(np.where(labels == 1, chances, 1 - chances)).mean())
    total = np.log(np.exp(scores).sum(-1))
    return float((total - np.take_along_axis(scores, labels[..., None], -1)[..., 0]).mean())


def labels_for(made: Compiled, ids: Array) -> Array:
    """The tokens themselves; or a class, or 0 and 1, by the token or by the first of a text."""
    shape = dict(made.function.outputs)["logits"].type.shape
    places = ids if len(shape) == 3 else ids[:, 0]
    return places % max(shape[-1].value or 0, 2)


def in_training(made: Compiled, ids: Array) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in inputs(made, ids).items()}


@pytest.mark.parametrize("name", SCORERS)
def test_with_labels_an_encoder_has_the_loss_of_each_place_or_text(name: str) -> None:
    made = twin(name)
    ids = tokens(made, rows=4)
    labels = labels_for(made, ids)
    assert len(np.unique(labels)) > 1
    built, given = model(made, weights(name)), in_training(made, ids)
    with torch.no_grad():
        plain, trained = built(**given), built(**given, labels=torch.from_numpy(labels))
    assert plain.loss is None
    assert torch.equal(plain.logits, trained.logits)
    assert float(trained.loss) == pytest.approx(scores_loss(logits(made, weights(name), ids), labels), rel=1e-4)


@pytest.mark.parametrize("name", sorted({*ENCODERS} - {*SCORERS}))
def test_a_model_without_a_head_takes_no_labels(name: str) -> None:
    made = twin(name)
    given = in_training(made, tokens(made))
    with pytest.raises(TypeError, match="unexpected keyword argument 'labels'"):
        model(made, weights(name))(**given, labels=given["input_ids"])


@each_writer
def test_with_labels_the_forward_is_the_inference_path_and_a_shifted_loss(name: str) -> None:
    made = twin(name)
    built, ids = model(made, weights(name)), torch.from_numpy(tokens(made))
    with torch.no_grad():
        plain, trained = built(ids), built(ids, labels=ids)
    assert plain.loss is None
    assert torch.equal(plain.logits, trained.logits)
    assert float(trained.loss) == pytest.approx(cross_entropy(plain.logits.numpy(), ids.numpy()), rel=1e-5)
    exact = cross_entropy(logits(made, weights(name), ids.numpy()), ids.numpy())
    assert float(trained.loss) == pytest.approx(exact, rel=1e-4)


def test_labels_of_minus_100_do_not_count() -> None:
    made = twin("llama3-8b")
    ids = tokens(made)
    labels = ids.copy()
    labels[:, 5:] = -100
    with torch.no_grad():
        output = model(made, weights("llama3-8b"))(torch.from_numpy(ids), labels=torch.from_numpy(labels))
    assert float(output.loss) == pytest.approx(cross_entropy(output.logits[:, :5].numpy(), ids[:, :5]), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((n, ()) for n in sorted({*chosen(), "electra-base", "distilbert-sst2"} & {*WRITERS, *SCORERS})),
        *((n, ("norm.placement=post",)) for n in ("llama3-8b", "gpt2")),
        ("transformer2017", ("norm.placement=pre",)),
    ],
)
def test_the_first_loss_is_ln_of_the_choices_and_falls(name: str, changes: tuple[str, ...]) -> None:
    made = twin(name, *changes)
    torch.manual_seed(0)
    built = emitted(made).Model()
    built.init_weights()
    ids = tokens(made, rows=4, count=16)
    given = in_training(made, ids) | {"labels": torch.from_numpy(labels_for(made, ids))}
    choices = max(dict(made.function.outputs)["logits"].type.shape[-1].value or 0, 2)
    assert choices == made.spec.top.vocab or name in SCORERS
    optimiser = torch.optim.Adam(built.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(51):
        loss = built(**given).loss
        losses.append(float(loss.detach()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert abs(losses[0] - math.log(choices)) < 0.25
    assert losses[-1] < 0.7 * losses[0]


@each_spec
def test_a_model_begins_at_what_is_neutral(name: str) -> None:
    """Gains and biases exactly, whatever they were; matrices with the spread that was asked for, or less."""
    made = twin(name)
    built = model(made, weights(name))
    torch.manual_seed(0)
    built.init_weights(std=0.5)
    own, params = held(built), parameters_of(made.function)
    assert own.keys() == params.keys()
    for path, param in params.items():
        if param.role in ("gain", "bias"):
            assert bool((own[path] == param.neutral).all()), path
        else:
            assert 0.02 < float(own[path].detach().std()) < 0.6, path


@each_spec
def test_every_parameter_learns(name: str) -> None:
    made = twin(name)
    ids = tokens(made)
    built, given = model(made, weights(name)), in_training(made, ids)
    if "logits" in made.function.output_names:
        built(**given, labels=torch.from_numpy(labels_for(made, ids))).loss.backward()
    else:  # of the last output, which all parameters lead to
        output = getattr(built(**given), made.function.output_names[-1])
        (output * torch.from_numpy(np.random.RandomState(1).randn(*output.shape)).float()).sum().backward()
    for path, parameter in built.named_parameters():
        if not parameter.requires_grad:
            assert path.endswith((".activated.beta", ".activated.eps"))  # constants of a checkpoint
            continue
        assert parameter.grad is not None, path
        assert torch.isfinite(parameter.grad).all(), path
        if not path.endswith("attention.k.bias"):  # a bias of all keys moves every score of a query alike
            assert parameter.grad.abs().max() > 1e-7, path


# 10. Ablations


def test_no_residual_is_said_by_a_block() -> None:
    made = twin("gpt2", "block=[attention_norm, attention, mlp_norm, mlp]", "norm={type: layer, eps: 1e-5, bias: true}")
    layer = inline(callee_of(next(n for n in made.function.nodes if is_call(n))))
    assert not [n for n in layer.nodes if isinstance(n.op, Add)]
    assert parameters_of(made.function).keys() == parameters_of(twin("gpt2").function).keys()
    params, ids = weights("gpt2"), tokens(made)
    without, having = logits(made, params, ids), logits(twin("gpt2"), params, ids)
    assert distance(without, in_torch(made, params, ids)) < 3e-5
    assert distance(without, having) > 0.1


def test_no_positions_are_said_by_none() -> None:
    made = twin("llama3-8b", "attention.rope=none", "positions=none")
    assert not [n for n in made.graph.nodes if isinstance(n.op, Rotary | RotaryTable)]
    assert parameters_of(made.function) == parameters_of(twin("llama3-8b").function)
    assert distance(logits(made, weights("llama3-8b"), tokens(made)),
                    logits(twin("llama3-8b"), weights("llama3-8b"), tokens(made))) > 1e-2  # fmt: skip


def test_one_wide_head_has_the_same_parameters_and_one_score_matrix() -> None:
    many, wide = twin("gpt2"), twin("gpt2", "attention.heads=1")
    assert parameters_of(many.function) == parameters_of(wide.function)
    for made, heads in ((many, 4), (wide, 1)):
        node = next(n for n in inline(made.function).nodes if isinstance(n.op, Attention))
        assert [d.value for d in node.inputs[0].type.shape[1::2]] == [heads, made.spec.top.width // heads]
        joined = next(n for n in inline(made.function).nodes if isinstance(n.op, MergeHeads))
        assert joined.types[0].shape[2].value == made.spec.top.width
    ids = tokens(many)
    assert distance(logits(many, weights("gpt2"), ids), logits(wide, weights("gpt2"), ids)) > 1e-2


def test_deep_and_narrow_against_wide_and_shallow_at_the_same_count() -> None:
    sizes = {"deep": ("width=64", "depth=8", "mlp.width=256"), "wide": ("width=128", "depth=2", "mlp.width=512")}
    counts: dict[str, int] = {}
    for which, changes in sizes.items():
        made = twin("gpt2", *changes)
        held = parameters_of(made.function)
        counts[which] = sum(p.size for path, p in held.items() if p.role == "matrix" and path.startswith("layers."))
        assert np.isfinite(logits(made, random_parameters(made.function, 1), tokens(made))).all()
    assert counts["deep"] == counts["wide"] == 8 * 12 * 64**2


# A block by hand

STREAM = np.array([[[1.0, 0.0, 0.0, 0.0]]])
WRITTEN = [-0.2, 0.0, 0.8, 0.0]
SEES_ITSELF = np.ones((1, 1, 1, 1), bool)
RESIDUAL, PLAIN = ("norm.eps=0",), ("norm={type: rms, eps: 0}", "block=[attention_norm, attention, mlp_norm, mlp]")


def by_hand() -> dict[str, Array]:
    """Weights under which attention writes [0, .5, 0, 0] and the MLP [-.2, 0, .8, 0], with residuals and without.

    norm([1, 0, 0, 0]) = [2, 0, 0, 0], so o takes a quarter of it to the second place. The MLP reads
    4/sqrt(5), 2/sqrt(5) after a residual and 0, 2 without one; its first unit gives 1 on both.
    """
    params = {"attention_norm.weight": np.ones(4), "mlp_norm.weight": np.ones(4)}
    params |= {f"attention.{matrix}.weight": np.eye(4) for matrix in "qkv"}
    params["attention.o.weight"] = np.zeros((4, 4))
    params["attention.o.weight"][1, 0] = 0.25
    params["mlp.up.weight"], params["mlp.down.weight"] = np.zeros((16, 4)), np.zeros((4, 16))
    params["mlp.up.weight"][0, :2] = (math.sqrt(5) - 1) / 4, 0.5
    params["mlp.up.weight"][1] = -1  # a unit that ReLU keeps silent
    params["mlp.down.weight"][:, 0] = WRITTEN
    params["mlp.down.weight"][:, 1] = 100
    return params


def hand_layer(changes: tuple[str, ...]) -> tuple[Compiled, Function]:
    made = compile_spec(load(SPECS[NAMES.index("block-4x4")], changes))
    return made, callee_of(next(n for n in made.function.nodes if is_call(n)))


def near(got: Array, wanted: list[float], within: float = 1e-6) -> None:
    np.testing.assert_allclose(np.ravel(got), wanted, atol=within)


def test_a_block_by_hand() -> None:
    _, layer = hand_layer(RESIDUAL)
    seen: dict[str, Array] = {}
    out = interp.interpret(layer, {"x": STREAM, "mask": SEES_ITSELF}, by_hand(), seen.__setitem__)["out"]
    near(seen["attention_norm"], [2, 0, 0, 0])
    near(seen["attention"], [0, 0.5, 0, 0])
    near(seen["after_attention"], [1, 0.5, 0, 0])
    near(seen["mlp"], WRITTEN)
    near(out, [0.8, 0.5, 0.8, 0])
    assert math.sqrt(np.mean(out**2)) == pytest.approx(0.618466, abs=1e-6)
    near(RmsNorm(4, 0.0).numpy((out,), (np.ones(4),))[0], [1.293523, 0.808452, 1.293523, 0])


def test_a_block_by_hand_without_residuals() -> None:
    _, layer = hand_layer(PLAIN)
    seen: dict[str, Array] = {}
    out = interp.interpret(layer, {"x": STREAM, "mask": SEES_ITSELF}, by_hand(), seen.__setitem__)["out"]
    near(seen["attention"], [0, 0.5, 0, 0])
    near(seen["mlp_norm"], [0, 2, 0, 0])
    near(out, WRITTEN)


@pytest.mark.parametrize(("changes", "wanted"), [(RESIDUAL, [0.8, 0.5, 0.8, 0]), (PLAIN, WRITTEN)])
def test_a_block_by_hand_in_torch_and_onnxruntime(changes: tuple[str, ...], wanted: list[float]) -> None:
    made, layer = hand_layer(changes)
    module = emitted(made)
    block = module.Layer()
    params = by_hand()
    with torch.no_grad():
        for path, parameter in block.named_parameters():
            parameter.copy_(torch.from_numpy(params[path]))
        out, present = block(torch.from_numpy(STREAM).float(), torch.from_numpy(SEES_ITSELF), None, use_cache=False)
    assert present is None
    near(out.numpy(), wanted)
    session = onnxruntime.InferenceSession(serialise(emit_onnx(inline(layer), {})), providers=["CPUExecutionProvider"])
    given = {"x": STREAM.astype(np.float32), "mask": SEES_ITSELF} | {n: a.astype(np.float32) for n, a in params.items()}
    near(session.run(["out"], given)[0], wanted)


def test_the_blocks_parameters_by_hand() -> None:
    made, layer = hand_layer(RESIDUAL)
    assert {path: a.shape for path, a in by_hand().items()} == {
        path: p.shape for path, p in parameters_of(layer).items()
    }
    assert made.parameters == 2 * 16 * 4 + 2 * (4 * 16 + 2 * 64 + 2 * 4) + 4 == 532
    assert isinstance(layer.outputs[0][1].node, Node)
