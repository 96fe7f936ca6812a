"""Every figure of the budget page, the table of matrices for each placement, misses of `expect`, the text of `show`."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import yaml

from blockc.graph.build import build_graph
from blockc.ir import Function, Input, inline, parameters_of
from blockc.language.algebra import Decoder, canonical_form, elaborate
from blockc.language.spec import Spec, load
from blockc.ops import Attention
from blockc.passes import with_cache
from blockc.report import Matrix, Report, check_expect, make_report
from blockc.report.drawing import draw_block
from blockc.report.show import expanded_text, format_binary_size, format_size, report_rows, report_text
from tests.paths import ROOT, WRITERS

SPECS = ROOT / "specs"
NAMES = sorted(path.stem for path in SPECS.glob("*.yaml"))
GB, GIB = 10**9, 2**30

Made = tuple[Spec, Decoder, Function]


@cache
def made(name: str, *assignments: str) -> Made:
    return _made(SPECS / f"{name}.yaml", *assignments)


def _made(path: Path, *assignments: str) -> Made:
    spec = load(path, assignments)
    decoder = elaborate(spec)
    return spec, decoder, build_graph(decoder)


def shown(name: str, *assignments: str, context: int | None = None, batch: int = 1, dtype: str = "bf16",
          device_memory: int | None = None) -> Report:  # fmt: skip
    return make_report(
        *made(name, *assignments), context=context, batch=batch, dtype=dtype, device_memory=device_memory
    )


def with_lines(tmp_path: Path, name: str, *lines: str, without: str = "", assign: str = "blockc=1") -> Made:
    """A published spec with lines of text added to it, and one stretch of text taken out."""
    source = (SPECS / f"{name}.yaml").read_text(encoding="utf-8")
    assert without in source
    path = tmp_path / "changed.yaml"
    path.write_text("\n".join((source.replace(without, ""), *lines, "")), encoding="utf-8")
    return _made(path, assign)


# Parameters


@pytest.mark.parametrize(
    ("name", "attention", "mlp", "embedding", "total"),
    [
        ("llama3-8b", 41_943_040, 176_160_768, 1_050_673_152, 8_030_261_248),
        ("llama3-70b", 150_994_944, 704_643_072, 2_101_346_304, 70_553_706_496),
        ("llama3.1-405b", 570_425_344, 2_617_245_696, 4_202_692_608, 405_853_388_800),
    ],
)
def test_llama_parameters(name: str, attention: int, mlp: int, embedding: int, total: int) -> None:
    p = shown(name).parameters
    assert (p.attention_per_layer, p.mlp_per_layer, p.embedding, p.total) == (attention, mlp, embedding, total)
    assert p.active == total


@pytest.mark.parametrize(("name", "share"), [("llama3-8b", "80.8%"), ("llama3-70b", "82.4%")])
def test_mlp_share_of_the_matrices(name: str, share: str) -> None:
    p = shown(name).parameters
    assert p.mlp_per_layer is not None and p.matrices_per_layer is not None
    assert f"{p.mlp_per_layer / p.matrices_per_layer:.1%}" == share


def test_one_70b_block() -> None:
    r = shown("llama3-70b")
    (block,) = r.matrices
    sizes = {m.label: m.parameters for m in block.matrices}
    assert sizes == {
        "attention.q": 67_108_864,
        "attention.k": 8_388_608,
        "attention.v": 8_388_608,
        "attention.o": 67_108_864,
        "mlp.gate": 234_881_024,
        "mlp.up": 234_881_024,
        "mlp.down": 234_881_024,
    }
    whole = r.parameters.per_kind["layer"]
    assert block.parameters == whole.matrices == sum(sizes.values()) == 855_638_016
    assert whole.norms == block.norms == 16_384
    assert f"{whole.norms / whole.total:.3%}" == "0.002%"
    assert format_size(2 * whole.total) == "1.71 GB"
    assert sum(m.share for m in block.matrices) == pytest.approx(1.0)


def test_grouping_saves_in_the_70b() -> None:
    grouped, full = shown("llama3-70b").parameters, shown("llama3-70b", "attention.kv_heads=64").parameters
    assert full.attention_per_layer == 268_435_456
    assert grouped.attention_per_layer == 268_435_456 - 117_440_512


def test_gpt3_read_as_dense() -> None:
    p = shown("gpt3-175b").parameters
    assert (p.matrices, p.total) == (173_946_175_488, 174_604_259_328)
    assert p.before_layers == {"embedding": 50257 * 12288, "positions": 2048 * 12288}
    assert list(p.after_layers) == ["final_norm"]  # the head is tied


def test_plain_block_is_4_and_8_squares_of_the_width() -> None:
    p = shown("block-4x4").parameters
    assert (p.attention_per_layer, p.mlp_per_layer, p.biases_per_layer) == (4 * 4**2, 8 * 4**2, 0)


def test_swiglu_of_eight_thirds() -> None:
    gated = shown("block-4x4", "width=64", "mlp.type=swiglu", f"mlp.width={8 * 64 // 3}").parameters.mlp_per_layer
    plain = shown("block-4x4", "width=64", f"mlp.width={4 * 64}").parameters.mlp_per_layer
    assert (gated, plain) == (32_640, 32_768)
    assert round(32_640 / 32_768, 3) == 0.996


@pytest.mark.parametrize("name", NAMES)
def test_parts_add_up(name: str) -> None:
    r, function = shown(name), made(name)[2]
    p = r.parameters
    layers = sum(p.per_kind[kind].total * n for kind, n in r.layers.items())
    assert p.total == sum(param.learned for param in parameters_of(function).values())
    assert p.total + p.buffers == sum(param.size for param in parameters_of(function).values())
    assert p.total == layers + sum(p.before_layers.values()) + sum(p.after_layers.values())
    assert p.total == layers + p.embedding + p.final_norm
    assert p.matrices == sum(sum(m.parameters for m in b.matrices) * sum(b.kinds.values()) for b in r.matrices)


def test_layers_of_unlike_sizes_are_given_by_kind(tmp_path: Path) -> None:
    layers = ("layers:", "  first: [dense]", "  pattern: [rest]", "  kinds: {dense: {mlp: {width: 8}}, rest: {}}")
    p = make_report(*with_lines(tmp_path, "block-4x4", *layers)).parameters
    assert p.mlp_per_layer is None and p.matrices_per_layer is None
    assert p.attention_per_layer == 64
    assert {kind: sizes.mlp for kind, sizes in p.per_kind.items()} == {"dense": 64, "rest": 128}


# FLOPs


def test_8b_flops() -> None:
    f = shown("llama3-8b", context=8192).flops
    assert f.matmul_per_token == 15_009_316_864
    assert f.attention_per_token == 4_294_967_296
    assert f.per_token == f.matmul_per_token + f.attention_per_token
    assert f.train_per_token == 3 * f.per_token
    assert f"{f.attention_share:.1%}" == "28.6%"
    assert f.crossover == 28_628


@pytest.mark.parametrize("name", ["block-4x4", "gemma2-9b", "llama3-70b", "pythia-410m"])
def test_crossover_is_the_first_context_at_which_attention_costs_as_much(name: str) -> None:
    crossover = shown(name).flops.crossover
    assert crossover is not None
    at, before = (shown(name, context=crossover - i).flops for i in (0, 1))
    assert at.attention_per_token >= at.matmul_per_token
    assert before.attention_per_token < before.matmul_per_token


def test_windows_can_keep_attention_below_the_matmuls_for_ever() -> None:
    assert shown("llama3-8b", "attention.window=4096").flops.crossover is None
    windowed = shown("llama3-8b", "attention.window=4096", context=8192).flops
    assert windowed.attention_per_token == shown("llama3-8b", context=4096).flops.attention_per_token


@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-9b", "gpt2", "pythia-410m"])
def test_matmuls_are_twice_the_matrices_and_the_head_tied_or_not(name: str) -> None:
    r = shown(name)
    assert r.flops.matmul_per_token == 2 * (r.parameters.matrices + r.vocab * r.width)


@pytest.mark.parametrize("assignment", ["attention.window=4", "attention.heads=2", "attention.causal=false"])
@pytest.mark.parametrize("context", [1, 3, 4, 5, 16])
def test_prefill_sums_what_each_token_sees(assignment: str, context: int) -> None:
    whole = shown("block-4x4", assignment, context=context).flops
    each = [shown("block-4x4", assignment, context=i).flops.attention_per_token for i in range(1, context + 1)]
    seen = context * each[-1] if "causal" in assignment else sum(each)
    assert whole.prefill == context * whole.matmul_per_token + seen


def test_attention_is_what_the_ops_say_for_one_new_token() -> None:
    spec, decoder, function = made("llama3-8b")
    last = {"B": 1, "S": 1, "P": 8191}
    nodes = [n for n in inline(with_cache(function)).nodes if isinstance(n.op, Attention)]
    said = sum(n.op.flops(*(v.type for v in n.inputs)).at(last) for n in nodes)
    assert make_report(spec, decoder, function).flops.attention_per_token == said


# Memory


@pytest.mark.parametrize(
    ("name", "weights", "gib"),
    [("llama3-8b", "16.06 GB", "14.96 GiB"), ("llama3-70b", "141.1 GB", None), ("llama3.1-405b", "811.7 GB", None)],
)
def test_weights(name: str, weights: str, gib: str | None) -> None:
    n = shown(name).memory.weights
    assert format_size(n) == weights
    assert gib in (None, format_binary_size(n))


@pytest.mark.parametrize(
    ("memory", "dtype", "devices"),
    [(192 * GB, "bf16", 5), (192 * GIB, "bf16", 4), (192 * GB, "int8", 3), (192 * GB, "fp8", 3)],
)
def test_405b_devices(memory: int, dtype: str, devices: int) -> None:
    assert shown("llama3.1-405b", device_memory=memory, dtype=dtype).memory.devices == devices


def test_devices_are_counted_only_when_asked() -> None:
    assert shown("llama3-8b").memory.devices is None


def test_8b_cache() -> None:
    one, many = shown("llama3-8b", context=8192), shown("llama3-8b", context=8192, batch=32)
    assert (one.kv_cache.bytes_per_token, one.kv_cache.bytes_per_token_per_layer) == (131_072, 4_096)
    assert one.memory.kv_cache == GIB
    assert many.memory.kv_cache == 32 * GIB
    assert f"{many.memory.kv_cache / many.memory.weights:.2f}" == "2.14"


def test_70b_cache() -> None:
    grouped, full = shown("llama3-70b").kv_cache, shown("llama3-70b", "attention.kv_heads=64").kv_cache
    assert (grouped.bytes_per_token_per_layer, grouped.bytes_per_token) == (4_096, 327_680)
    assert (full.bytes_per_token_per_layer, full.bytes_per_token) == (32 * 1024, 2_621_440)


@pytest.mark.parametrize("name", WRITERS)
def test_cache_is_the_summed_inputs_of_the_cached_graph(name: str) -> None:
    r = shown(name, batch=3)
    kept = 0
    for n in with_cache(made(name)[2]).inputs:
        assert isinstance(n.op, Input)
        if n.op.past:
            extents = [d.at({"B": 3, "P": r.context}) for d in n.types[0].shape]
            kept += 2 * math.prod(extents)
    assert r.kv_cache.bytes.kept_by_graph == kept == r.memory.kv_cache
    assert r.kv_cache.bytes_per_token * 3 * r.context == kept


def test_a_window_caps_what_a_ring_buffer_keeps() -> None:
    kept = shown("gemma2-9b", context=8192).kv_cache
    each = 8192 * kept.bytes_per_token_per_kind["local"]
    assert kept.bytes.kept_by_graph == 42 * each
    assert kept.bytes.ring_buffer == 21 * each + 21 * each // 2
    plain = shown("llama3-8b").kv_cache.bytes
    assert plain.ring_buffer == plain.kept_by_graph


def test_a_model_that_looks_both_ways_keeps_nothing() -> None:
    r = shown("block-4x4", "attention.causal=false")
    assert r.kv_cache.values_per_token == r.memory.kv_cache == 0
    text = report_text(*made("block-4x4", "attention.causal=false")[:2], r)
    assert "a text" in text and "cache" not in text and "prefill" not in text


@pytest.mark.parametrize("name", NAMES)
def test_what_a_token_adds_is_what_the_cached_graphs_past_grows_by(name: str) -> None:
    """The figure comes from the ops' rules alone; the past is what the pass made of them."""
    function = made(name)[2]
    past = [n.types[0] for n in with_cache(function).inputs if n.op.past] if function.causal else []  # type: ignore[attr-defined]
    grown = sum(math.prod(size.value for size in each.shape[1:] if size.value is not None) for each in past)
    assert shown(name).kv_cache.values_per_token == grown


def test_activations_by_hand() -> None:
    """Two tokens in fp32: three inputs of int64, the mask, the stream, up and its activation."""
    a = shown("block-4x4", context=2, dtype="fp32").memory.activations
    assert a.peak == 3 * 2 * 8 + 2 * 2 + 2 * 4 * 4 + 2 * (2 * 16 * 4)
    assert a.peak_at == "layers.0.mlp.activated"
    assert a.scores_materialised == 2 * 2 * 4
    assert a.logits == 2 * 16 * 4


def test_scores_apart_and_logits_apart() -> None:
    a = shown("llama3-8b", context=8192).memory.activations
    assert a.scores_materialised == 2 * 32 * 8192**2
    assert a.peak < a.scores_materialised < a.peak_materialised
    assert a.logits == 2 * 8192 * 128_256
    capped = shown("gemma2-9b").memory.activations
    assert capped.peak < capped.logits  # the logits before the softcap are no activation either


# The table of matrices


def table(r: Report) -> dict[str, Matrix]:
    (block,) = r.matrices
    return {m.label: m for m in block.matrices}


@pytest.mark.parametrize(
    ("placement", "attention", "mlp"),
    [("pre", "norm(x)", "norm(x')"), ("post", "x", "norm(x')"), ("sandwich", "norm(x)", "norm(x')"),
     ("branch", "x", "x'"), ("parallel_one", "norm(x)", "norm(x)"), ("parallel_two", "norm(x)", "norm(x)")],
)  # fmt: skip
def test_what_each_matrix_receives(placement: str, attention: str, mlp: str) -> None:
    found = {label: m.receives for label, m in table(shown("llama3-8b", f"norm.placement={placement}")).items()}
    assert found == {
        "attention.q": attention,
        "attention.k": attention,
        "attention.v": attention,
        "attention.o": "concatenated heads",
        "mlp.gate": mlp,
        "mlp.up": mlp,
        "mlp.down": "silu(gate) * up",
    }


def test_what_each_matrix_produces() -> None:
    matrices = table(shown("llama3-8b"))
    assert {label: m.produces for label, m in matrices.items()} == {
        "attention.q": "32 query heads of 128",
        "attention.k": "8 key heads of 128",
        "attention.v": "8 value heads of 128",
        "attention.o": "stream edit",
        "mlp.gate": "gate",
        "mlp.up": "up",
        "mlp.down": "stream edit",
    }
    assert matrices["attention.k"].shape == (1024, 4096)


def test_plain_mlp_and_one_head() -> None:
    matrices = table(shown("block-4x4"))
    assert matrices["attention.q"].produces == "1 query head of 4"
    assert (matrices["mlp.up"].produces, matrices["mlp.down"].receives) == ("hidden units", "relu(up)")


def test_a_block_without_residuals(tmp_path: Path) -> None:
    spec, decoder, function = with_lines(tmp_path, "block-4x4", "block: [attention, mlp]", without=", placement: pre")
    matrices = table(make_report(spec, decoder, function))
    assert matrices["attention.q"].receives == "x"
    assert (matrices["attention.o"].produces, matrices["mlp.up"].receives) == ("new stream", "attention.o")


def test_kinds_that_share_a_function_share_a_table() -> None:
    r = shown("gemma2-9b")
    (block,) = r.matrices
    assert block.kinds == r.layers == {"local": 21, "global": 21}
    assert r.windows == {"local": (4096,)}


# What is expected


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_hold(name: str) -> None:
    assert check_expect(*made(name)) == []


def test_a_miss_says_where_and_part_by_part(tmp_path: Path) -> None:
    source = (SPECS / "llama3-8b.yaml").read_text(encoding="utf-8")
    path = tmp_path / "wrong.yaml"
    lines = source.replace("8030261248", "8030261249").replace("65536", "1, layers: {layer: 31}")
    path.write_text(lines, encoding="utf-8")
    spec, decoder, function = _made(path)
    total, kept, layers = check_expect(spec, decoder, function)
    assert (total.expected, total.got) == ("8030261249", "8030261248")
    assert total.place.text[total.place.column - 1 :].startswith("parameters: 8030261249")
    assert total.hint == (
        "computed as embedding 525,336,576 + 32 layers x (attention 41,943,040 + mlp 176,160,768 + norms 8,192)"
        " + final_norm 4,096 + head 525,336,576"
    )
    assert (kept.expected, kept.got, kept.hint) == ("1", "65536", "computed as 32 layers x 2,048")
    assert (layers.expected, layers.got) == ("layer 31", "layer 32")


def test_a_size_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="context must be at least 1"):
        shown("block-4x4", context=0)
    with pytest.raises(ValueError, match="dtype must be one of fp32, bf16"):
        shown("block-4x4", dtype="float32")


# Text

DRAWINGS = {
    "pre": """\
│ x
├──→ attention_norm ──→ attention ──┐
+←──────────────────────────────────┘
│ x'
├──→ mlp_norm ──→ mlp ──┐
+←──────────────────────┘
│ x''
↓""",
    "post": """\
│ x
├──→ attention ──┐
+←───────────────┘
│ x'
attention_post_norm
│
├──→ mlp ──┐
+←─────────┘
│ x''
mlp_post_norm
│
↓""",
    "sandwich": """\
│ x
├──→ attention_norm ──→ attention ──→ attention_post_norm ──┐
+←──────────────────────────────────────────────────────────┘
│ x'
├──→ mlp_norm ──→ mlp ──→ mlp_post_norm ──┐
+←────────────────────────────────────────┘
│ x''
↓""",
    "branch": """\
│ x
├──→ attention ──→ attention_post_norm ──┐
+←───────────────────────────────────────┘
│ x'
├──→ mlp ──→ mlp_post_norm ──┐
+←───────────────────────────┘
│ x''
↓""",
    "parallel_one": """\
│ x
├──→ norm ──┬──→ attention ──+──┐
│           └──→ mlp ────────┘  │
+←──────────────────────────────┘
│ x'
↓""",
    "parallel_two": """\
│ x
├──→ attention_norm ──→ attention ──┐
├──→ mlp_norm ──→ mlp ──────────────┤
+←──────────────────────────────────┘
│ x'
↓""",
}


@pytest.mark.parametrize("placement", DRAWINGS)
def test_drawings(placement: str) -> None:
    _, decoder, _ = made("llama3-8b", f"norm.placement={placement}")
    assert draw_block(decoder.layers[0]) == DRAWINGS[placement]


def test_drawing_of_a_sum_inside_a_branch(tmp_path: Path) -> None:
    block = "block: [{residual: [norm, {sum: [[attention], [mlp]]}]}]"
    _, decoder, _ = with_lines(tmp_path, "block-4x4", block, without=", placement: pre")
    assert draw_block(decoder.layers[0]).split("\n")[1:4] == [
        "├──→ norm ──┬──→ attention ──+──┐",
        "│           └──→ mlp ────────┘  │",
        "+←──────────────────────────────┘",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_text_is_plain_and_not_wide(name: str) -> None:
    spec, decoder, _ = made(name)
    lines = report_text(spec, decoder, shown(name, device_memory=192 * GB)).split("\n")
    assert max(map(len, lines)) <= 116
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


def test_text_of_the_8b() -> None:
    spec, decoder, _ = made("llama3-8b")
    page = report_text(spec, decoder, shown("llama3-8b", device_memory=192 * GIB))
    assert "  attention.k   1,024 x 4,096  norm(x)             8 key heads of 128       4,194,304   1.9%\n" in page
    assert "28.6% of the matmuls; as much as they from 28,628 tokens on" in page
    assert "16.06 GB  14.96 GiB  1 device of 192 GiB" in page
    assert "ring buffers" not in page


def test_text_tells_of_windows() -> None:
    spec, decoder, _ = made("gemma2-9b")
    page = report_text(spec, decoder, shown("gemma2-9b"))
    assert "The block of every layer: 21 local (window 4,096), 21 global\n" in page
    assert "in ring buffers" in page


@pytest.mark.parametrize(("depth", "laid"), [(5, 2), (6, None), (7, 1)])
def test_a_cut_tile_is_said(tmp_path: Path, depth: int, laid: int | None) -> None:
    layers = ("layers:", "  pattern: [{local: 2}, all]", "  kinds: {local: {attention: {window: 2}}, all: {}}")
    spec, decoder, function = with_lines(tmp_path, "block-4x4", *layers, assign=f"depth={depth}")
    r = make_report(spec, decoder, function)
    assert (r.cut_tile.laid if r.cut_tile else None) == laid
    said = f"The last tile of the pattern is cut: {laid} of its 3 layers are laid."
    assert (said in report_text(spec, decoder, r)) == (laid is not None)


def test_several_models_a_row_each() -> None:
    head, first, second, *_ = report_rows([shown("llama3-8b"), shown("gemma2-9b")]).split("\n")
    assert head.split()[:3] == ["layers", "width", "parameters"]
    assert first.split()[:4] == ["llama3-8b", "32", "4,096", "8,030,261,248"]
    assert second.endswith("49,622")


def test_the_lower_storey_is_the_canonical_term_without_null() -> None:
    _, decoder, _ = made("llama3-8b")
    page, whole = yaml.safe_load(expanded_text(decoder)), canonical_form(decoder)
    assert page["blocks"] == whole["blocks"]
    assert page["layers"] == [{"0": 32}]
    assert (page["positions"], page["head"]) == ("none", {"tied": False, "softcap": "none"})


def test_json_holds_every_figure_of_the_budget() -> None:
    data = shown("llama3-8b", device_memory=192 * GB).json()
    assert data["parameters"]["embedding"] == 1_050_673_152
    assert data["kv_cache"]["bytes"] == {"kept_by_graph": GIB, "ring_buffer": GIB}
    assert data["flops"]["crossover"] == 28_628
    assert data["memory"]["devices"] == 1
    assert data["layers"] == {"layer": 32}
    assert data["matrices"][0]["matrices"][0]["receives"] == "norm(x)"
