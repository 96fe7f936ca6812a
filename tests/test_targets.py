"""The golden matrix of every target beside the portable graph in float32: other providers, float types and caches.

On unlike specs: what a target makes of an op, it makes of it in every spec.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from blockc import api
from blockc.compile import Compiled, compiled
from blockc.folder import COUNTED
from blockc.ops.fused import RowQueryAttention
from blockc.proof import Proof, prove
from blockc.proof.matrix import TOLERANCE
from blockc.shrink import shrink
from blockc.spec import load
from blockc.staging import FolderError
from blockc.target import Target, target_of
from tests.structures import PROVIDERS, unlike

ROOT = Path(__file__).parent.parent
SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
BUFFER, CUDA = Target(cache="buffer"), Target("cuda", "fp16")
HALVES = (Target(dtype="fp16"), Target("cpu", "fp16"))
PACKED = Target("cpu", packed=True)
ROWS = Target("cpu", padding="right")
unlike_specs = pytest.mark.parametrize("name", unlike(*PROVIDERS))
_proofs: dict[str, Proof] = {}
CASES = {"full", "padded left", "padded right", "chunked, one row", "decode", "padded left, decode", "one token"}


def twin(name: str) -> Compiled:
    return compiled(shrink(load(ROOT / "specs" / f"{name}.yaml")))


def held(name: str, backend: str, dtype: str, cases: set[str] = CASES, last: bool = True) -> None:
    if name not in _proofs:
        _proofs[name] = prove(twin(name), targets=(BUFFER, CUDA, *HALVES, PACKED, ROWS))
    for named in (backend, f"{backend}, last token") if last else (backend,):
        rows = [row for row in _proofs[name].rows if (row.backend, row.dtype) == (named, dtype)]
        assert {row.variant for row in rows} >= cases, named
        for row in rows:
            assert row.holds, row
            assert row.tolerance == TOLERANCE[dtype]


@pytest.mark.backend("buffer")
@unlike_specs
def test_a_buffer_is_a_joined_cache(name: str) -> None:
    """In float64 and in onnxruntime, with any padding and any chunks."""
    held(name, "oracle, buffer", "float64", CASES | {"chunked"}, last=False)
    held(name, "onnxruntime, buffer", "float32", CASES | {"chunked"})


@pytest.mark.backend("cuda graph")
@unlike_specs
def test_the_graph_for_cuda_is_the_oracle(name: str) -> None:
    """In float64; node for node in float32 on the CPU; and as it is, in fp16 within fp16's own error."""
    held(name, "oracle, fused, for cuda", "float64", last=False)
    held(name, "onnxruntime, fused, for cuda", "float32", last=False)
    held(name, "onnxruntime, fused, for cuda", "float16")


@pytest.mark.backend("fp16")
@unlike_specs
def test_fp16_within_its_own_error(name: str) -> None:
    held(name, "onnxruntime", "float16")
    held(name, "onnxruntime, fused", "float16")


@pytest.mark.backend("packed")
@unlike_specs
def test_packed_is_apart(name: str) -> None:
    """Queries, keys and values as one product, where nothing stands between them and their attention."""
    held(name, "oracle, fused, packed", "float64", last=False)
    held(name, "onnxruntime, fused, packed", "float32")


@pytest.mark.backend("by rows")
@unlike_specs
def test_the_cpus_kernel_by_rows_lengths_is_the_oracle(name: str) -> None:
    """Without a mask that is added: rows stand at the left."""
    held(name, "oracle, fused, by rows", "float64", last=False)
    held(name, "onnxruntime, fused, by rows", "float32")


def test_what_is_packed() -> None:
    for name in SPECS:
        model = compiled(load(ROOT / "specs" / f"{name}.yaml"))
        parts = model.parts(PACKED)
        attentions = [layer.keys.attention for layer in model.spec.distinct]
        normed = any(a and (a.qk_norm or a.clip) for a in attentions)  # something stands between them and the heads
        weights = [path for path in parts if path.endswith("qkv.weight")]
        assert len(weights) == (0 if normed or name in ("block-4x4", "stablelm-3b") else model.spec.top.depth), name
        if weights:
            assert parts[weights[0]] == tuple(f"layers.0.attention.{x}.weight" for x in "qkv")


def test_rows_are_padded_on_the_right_where_attention_goes_by_their_lengths() -> None:
    """Which is not where four numbers a head, or rope over 20 of them, are nothing for the kernel, nor with alibi."""
    for name in SPECS:
        model = compiled(load(ROOT / "specs" / f"{name}.yaml"))
        lowered = any(layer.keys.attention and layer.keys.attention.alibi for layer in model.spec.distinct)
        for each in (model, compiled(shrink(model.spec))):
            narrow = name == "block-4x4" or (name == "stablelm-3b" and each is model)
            expected = "any" if narrow or lowered else "right"
            assert each.padding(CUDA) == each.padding(ROWS) == expected, name
            assert each.padding(Target("cpu")) == each.padding(Target()) == "any"
            assert any(isinstance(n.op, RowQueryAttention) for n in each.flat(CUDA).nodes) == (expected == "right")


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("target", COUNTED.values(), ids=COUNTED)
def test_nodes_are_counted_as_they_are_emitted(name: str, target: Target) -> None:
    model = compiled(load(ROOT / "specs" / f"{name}.yaml"))
    counted = model.nodes(target)
    graph = onnx.load_from_string(model.onnx(target)).graph
    assert counted["all"] == len(graph.node)
    assert counted["outside"] == sum(not n.name.startswith("/layers/") for n in graph.node)


def test_a_target_is_read_back_or_refused() -> None:
    fields = {"provider": "cuda", "dtype": "bf16", "logits": "last", "cache": "joined", "packed": False} | {
        "padding": "any"
    }
    assert target_of(fields) == Target("cuda", "bf16", "last")
    for wrong in (
        None,
        {},
        {**fields, "dtype": "fp8"},
        {**fields, "more": 1},
        {**fields, "cache": "buffer"},
        {**fields, "provider": None, "padding": "right"},
    ):
        with pytest.raises(ValueError):
            target_of(wrong)


def test_a_graph_for_cuda_says_what_it_is_and_is_not(tmp_path: Path) -> None:
    """It was built and not run; and a context beyond what its tables tell apart is refused."""
    model = api.compile(ROOT / "specs" / "smollm2-135m.yaml")
    built = api.build(model, tmp_path / "a", target=CUDA, proof=False)
    assert built.notes[0] == "cuda: built, not run here"
    far = api.compile(ROOT / "specs" / "smollm2-135m.yaml", ("context=1048577",))
    with pytest.raises(FolderError, match="context 1048577: a graph for CUDA tells positions apart up to 1048576"):
        api.build(far, tmp_path / "b", target=CUDA, proof=False)
    assert not (tmp_path / "b").exists()
