"""The golden matrix on every spec's twin, and every full-size graph in a real session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from blockc import api
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import parameters_of
from blockc.language.spec import from_tree, load
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof import Proof, prove
from blockc.proof.cases import Case
from blockc.proof.comparison import TOLERANCE
from blockc.proof.runners import Onnx, Oracle, Torch
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.paths import ROOT, WRITERS
from tests.structures import SPECS
from tests.tiers import SAMPLE, whole

ALONE = {"full", "padded left", "padded right"}  # of models without a cache
KERNEL_TAKES = {"full", "padded left", "padded right", "chunked, one row", "decode", "padded left, decode", "one token"}
_proofs: dict[str, Proof] = {}


def full(name: str) -> Compiled:
    return compile_spec(load(SPECS[name]))


def proof(name: str) -> Proof:
    if name not in _proofs:
        _proofs[name] = prove(compile_spec(shrink(load(SPECS[name]))), only=None if whole(name) else SAMPLE)
    return _proofs[name]


def of(name: str, cases: set[str]) -> set[str]:
    """Those of the cases that are run on a spec."""
    return cases if whole(name) else cases & SAMPLE


def held(name: str, backend: str) -> None:
    rows = [row for row in proof(name).rows if row.backend.startswith(backend)]
    variants = {row.variant for row in rows}
    assert variants >= of(name, {*KERNEL_TAKES, "chunked"} if name in WRITERS else ALONE)
    for row in rows:
        assert row.holds, row
        assert row.agreement == 1.0, row
        assert row.tolerance <= 3e-5


@pytest.mark.backend("oracle", sampled=True)
@pytest.mark.parametrize("name", SPECS)
def test_oracle_cached_is_oracle_whole(name: str) -> None:
    held(name, "oracle")


@pytest.mark.backend("torch", sampled=True)
@pytest.mark.parametrize("name", SPECS)
def test_torch_is_the_oracle(name: str) -> None:
    held(name, "torch")
    labelled = "labels" in {row.variant for row in proof(name).rows if row.backend == "torch"}
    assert labelled == ("logits" in full(name).function.output_names)


@pytest.mark.backend("onnxruntime", sampled=True)
@pytest.mark.parametrize("name", SPECS)
def test_onnxruntime_is_the_oracle(name: str) -> None:
    held(name, "onnxruntime")
    last = {"onnxruntime, last token"} if full(name).by_token else set[str]()
    assert {row.backend for row in proof(name).rows} >= {"onnxruntime", *last}


@pytest.mark.backend("fused", sampled=True)
@pytest.mark.parametrize("name", SPECS)
def test_fused_is_unfused(name: str) -> None:
    """In float64, and in onnxruntime's kernels, in every case that they take."""
    rows = [row for row in proof(name).rows if "fused" in row.backend]
    forms = ("onnxruntime, fused", *(["onnxruntime, fused, last token"] if full(name).by_token else []))
    assert {row.backend for row in rows} == {"oracle, fused", *forms}
    for row in rows:
        assert row.holds, row
        assert row.tolerance == TOLERANCE[row.dtype]
    wanted = of(name, KERNEL_TAKES if name in WRITERS else ALONE)
    for backend in forms:
        assert wanted <= {row.variant for row in rows if row.backend == backend}
    assert {row.variant for row in rows if row.backend == "oracle, fused"} >= wanted
    why = "the kernel takes several new tokens on a past in one row only"
    assert set(proof(name).inapplicable.values()) <= {why}


def test_block_4x4_that_looks_both_ways() -> None:
    spec = shrink(load(ROOT / "specs" / "block-4x4.yaml", ("attention.causal=false",)))
    result = prove(compile_spec(spec))
    assert result.complete, result.table()
    assert {row.variant for row in result.rows} == {"full", "labels", "padded left", "padded right", "full, no mask"}


BASE = """
blockc: 1
name: odd
vocab: 50
width: 32
depth: 3
context: 64
positions: {type: learned}
attention: {heads: 4, kv_heads: 2, rope: {theta: 100, pairing: half}}
mlp: {type: swiglu, width: 40}
norm: {type: rms, eps: 1e-5}
head: {tied: true}
"""
PRE = "{residual: [attention_norm, attention]}, {residual: [mlp_norm, mlp]}"
ODD = {
    "one layer": f"block: [{PRE}]".replace("block", "depth: 1\nblock"),
    "two attentions in a layer": f"block: [{PRE}, {{residual: [second_norm, second]}}]\n"
    "parts: {second: {attention: {window: 3, heads: 2, kv_heads: 1, head_dim: 8}}}",
    "no attention": "attention: none\nblock: [{residual: [mlp_norm, mlp]}]",
    "layers with and without a cache, a cut tile": f"""depth: 9
layers:
  first: [plain]
  pattern: [{{both: 2}}, plain]
  last: [only]
  kinds:
    both: {{block: [{PRE}]}}
    plain: {{block: [{{residual: [mlp_norm, mlp]}}]}}
    only: {{block: [{{residual: [attention_norm, attention]}}], attention: {{window: 4}}}}""",
}


def odd(more: str) -> Compiled:
    said = {line.partition(":")[0] for line in more.splitlines() if not line.startswith(" ")}
    kept = [line for line in BASE.strip().splitlines() if line.partition(":")[0] not in said]
    return compile_spec(from_tree(parse("\n".join([*kept, more.replace("attention: none\n", ""), ""]), "odd.yaml")))


@pytest.mark.parametrize("kind", ODD)
def test_odd_structures(kind: str) -> None:
    model = odd(ODD[kind])
    for each in (model, compile_spec(shrink(model.spec))):
        result = prove(each)
        assert result.complete, result.table()


@pytest.mark.parametrize("name", SPECS)
def test_rows_that_are_padding_give_finite_numbers(name: str, tmp_path: Path) -> None:
    """Also a row of nothing else, on every backend."""
    twin = compile_spec(shrink(load(SPECS[name])))
    (tmp_path / "model.py").write_text(twin.model_py())
    params = random_parameters(twin.function, 1)
    tokens = np.arange(4)
    case = Case("padded", (tokens, tokens[:1], tokens[:0]), (0, 3, 0), (2, 1, 1) if name in WRITERS else (4,))
    for runner in (Oracle(twin.served), Torch(tmp_path / "model.py", twin.served), Onnx(twin.onnx(), twin.served)):
        outputs = runner.run(case, params).outputs
        assert outputs and all(np.isfinite(array).all() for array in outputs.values()), runner.name


@pytest.mark.parametrize("name", SPECS)
def test_every_parameter_of_a_twin_is_random(name: str) -> None:
    twin = compile_spec(shrink(load(SPECS[name])))
    for path, array in random_parameters(twin.function, 20).items():
        assert not ((array == 0) | (array == 1)).any(), path
        assert array.size == 1 or array.std() > 0, path


@pytest.mark.backend("full-size onnx")
@pytest.mark.parametrize("name", SPECS)
def test_the_full_size_graph_opens_in_a_session(name: str) -> None:
    """Checked by onnx, opened by onnxruntime, parameters as inputs after the runtime ones, both forms of logits."""
    model = full(name)
    paths = parameters_of(model.function)
    for logits in ("all", "last") if model.by_token else ("all",):
        data = model.onnx(Target(logits=logits))
        onnx.checker.check_model(data, full_check=True)
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        runtime = names[: len(names) - len(paths)]
        given = [n for n in runtime if not n.startswith("past_key_values.")]
        segments = ["token_type_ids"] if (model.decoder.segments or 1) > 1 else []
        assert given == ["input_ids", "attention_mask", *(["position_ids"] if name in WRITERS else segments)]
        held = len(model.contract(Target(logits=logits)).held)
        assert len(runtime) - len(given) == held == (2 * model.spec.top.depth if name in WRITERS else 0)
        shapes = {value.name: tuple(value.shape) for value in session.get_inputs()}
        assert {path: shapes[path] for path in paths} == {path: param.shape for path, param in paths.items()}
        outputs = [value.name for value in session.get_outputs()]
        states = [held.present for held in model.contract(Target(logits=logits)).held]
        assert outputs == [*model.function.output_names, *states]
        if model.by_token:
            assert session.get_outputs()[0].shape[1] == ("sequence_length" if logits == "all" else 1)
        metadata = session.get_modelmeta().custom_metadata_map
        assert metadata["blockc.semantic_hash"] == model.decoder.semantic_hash
        assert int(metadata["blockc.parameters"]) == model.spec.top.expect.parameters  # type: ignore[union-attr]


def test_the_cache_inputs_are_the_reported_bytes() -> None:
    """131,072 bytes a token for the 8B in bf16: the sum over the exported graph's cache inputs."""
    model = full("llama3-8b")
    session = onnxruntime.InferenceSession(model.onnx(), providers=["CPUExecutionProvider"])
    pasts = [value for value in session.get_inputs() if value.name.startswith("past_key_values.")]
    assert sum(2 * value.shape[1] * value.shape[3] for value in pasts) == 131_072
    assert api.figures(model).json()["kv_cache"]["bytes_per_token"] == 131_072


def test_the_tolerance_is_tight() -> None:
    assert TOLERANCE == {"float64": 1e-9, "float32": 3e-5, "float16": 2e-2}


def test_405b_builds_in_400_megabytes(tmp_path: Path) -> None:
    script = (
        "import json, re\n"
        "from blockc.cli import app, run_guarded\n"
        f"arguments = ['build', 'specs/llama3.1-405b.yaml', '--no-verify', '--out', {str(tmp_path)!r}]\n"
        "code = run_guarded(lambda: app(arguments, standalone_mode=False))\n"
        "peak = 1024 * int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])\n"
        "print(json.dumps([code, peak]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    code, peak = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert peak < 400e6
