"""The proof has power: bugs that run and keep every shape are caught by numbers, and the node is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from blockc import api
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.language.spec import load
from blockc.pipeline.compiled import compile_spec
from blockc.products import folder
from blockc.proof import prove
from blockc.proof.comparison import TOLERANCE
from tests.paths import ROOT

SPECS = ROOT / "specs"


@dataclass(frozen=True)
class Bug:
    """Text of model.py and what it is replaced by; the node where the difference must first be seen, in which case."""

    name: str
    spec: str
    old: str
    new: str
    node: str
    variant: str = "full"


HALF_NORM = (
    "statistic = torch.rsqrt(x.half().square().mean(-1, keepdim=True) + 1e-5)\n"
    "        attention_norm = x * statistic.float() * self.attention_norm.weight"
)

BUGS = (
    Bug("mask off by one", "llama3-8b", "[:, None, :, None] >= key", "[:, None, :, None] + 1 >= key", "mask"),
    Bug("window off by one", "gemma2-9b", "(distance < window)", "(distance <= window)", "mask_5"),
    Bug("mask missing", "llama3-8b", "attn_mask=mask,", "attn_mask=None,", "layers.0.attention.mixed"),
    Bug(
        "neither a mask nor the kernel's own",
        "llama3-8b",
        ", is_causal=mask is None",
        "",
        "layers.0.attention.mixed",
        "full, no mask",
    ),
    Bug(
        "the kernel's own mask on a past, which it does not know",
        "llama3-8b",
        "unmasked = attention_mask is None and past_key_values is None",
        "unmasked = attention_mask is None",
        "layers.0.attention.mixed",
        "decode, no mask",
    ),
    Bug(
        "mask missing only when labels are given",
        "gpt2",
        "else visible(queries_at, keys_at)",
        "else visible(queries_at, keys_at) | torch.tensor(labels is not None)",
        "mask",
        "labels",
    ),
    Bug(
        "rope on v",
        "llama3-8b",
        "value = v_heads if",
        "value = rotate(v_heads, cos, sin) if",
        "layers.0.attention.value",
    ),
    Bug(
        "wrong pairing",
        "llama3-8b",
        "a, b = x.chunk(2, dim=-1)\n    cos, sin = cos[:, None], sin[:, None]\n"
        "    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)",
        "a, b = x[..., ::2], x[..., 1::2]\n    cos, sin = cos[:, None], sin[:, None]\n"
        "    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)",
        "layers.0.attention.q_rotated",
    ),
    Bug(
        "halves turned for neighbours",
        "gpt-j-6b",
        "a, b = x[..., ::2], x[..., 1::2]\n    cos, sin = cos[:, None], sin[:, None]\n"
        "    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)",
        "a, b = x.chunk(2, dim=-1)\n    cos, sin = cos[:, None], sin[:, None]\n"
        "    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)",
        "layers.0.attention.q_rotated",
    ),
    Bug(
        "the MLP of a parallel block reads no norm",
        "phi-2",
        "mlp = self.mlp(norm)",
        "mlp = self.mlp(x)",
        "layers.0.mlp.up",
    ),
    Bug(
        "keys not normed",
        "qwen3-0.6b",
        "k_norm = self.k_norm(k_heads)",
        "k_norm = k_heads",
        "layers.0.attention.k_norm",
    ),
    Bug(
        "rope position off by one in decode",
        "llama3-8b",
        "rotary_table(position_ids,",
        "rotary_table(position_ids + int(past_key_values is not None),",
        "rotary.cos",
        "decode",
    ),
    Bug(
        "cache slot off by one",
        "llama3-8b",
        "torch.cat((past[0], k_rotated), dim=2)",
        "torch.cat((past[0].roll(1, 2), k_rotated), dim=2)",
        "layers.0.attention.key",
        "decode",
    ),
    Bug(
        "norm statistics in half precision",
        "llama3-8b",
        "attention_norm = self.attention_norm(x)",
        HALF_NORM,
        "layers.0.attention_norm",
    ),
    Bug(
        "softmax in half precision",
        "gemma2-9b",
        'scores.float().masked_fill(~mask, float("-inf"))',
        'scores.half().masked_fill(~mask, float("-inf"))',
        "layers.0.attention.mixed",
    ),
    Bug(
        "view straight to (B, heads, T, D)",
        "llama3-8b",
        "self.k(x).unflatten(2, (-1, 16)).transpose(1, 2)",
        "self.k(x).reshape(len(x), 2, -1, 16)",
        "layers.0.attention.k_heads",
    ),
    Bug(
        "kv heads repeated in the wrong order",
        "llama3-8b",
        "q_rotated, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True",
        "q_rotated, key.repeat(1, 4, 1, 1), value.repeat(1, 4, 1, 1), attn_mask=mask, is_causal=mask is None",
        "layers.0.attention.mixed",
    ),
    Bug(
        "a residual dropped", "llama3-8b", "after_mlp = after_attention + mlp", "after_mlp = mlp", "layers.0.after_mlp"
    ),
    Bug(
        "the selection bias weighs",
        "minimax-m2",
        "weights = scores.gather(-1, experts)",
        "weights = choice.gather(-1, experts)",
        "layers.0.mlp.route.weights",
    ),
    Bug("weights not normalised", "qwen3-30b-a3b", "if normalise:", "if not normalise:", "layers.0.mlp.route.weights"),
    Bug("gate and up exchanged", "mixtral-8x7b", "self.act(gate, up)", "self.act(up, gate)", "layers.0.mlp.experts"),
    Bug(
        "weights in the order of tokens, for rows in the order of experts",
        "olmoe-1b-7b",
        "weights.flatten()[order]",
        "weights.flatten()",
        "layers.0.mlp.experts",
    ),
    Bug(
        "the shared expert not gated",
        "qwen1.5-moe-a2.7b",
        "torch.sigmoid(shared_gate) * shared",
        "shared",
        "layers.0.mlp.gated_shared",
    ),
    Bug("tanh GELU made exact", "gpt2", 'F.gelu(up, approximate="tanh")', "F.gelu(up)", "layers.0.mlp.activated"),
    Bug(
        "exact GELU made tanh", "pythia-410m", "F.gelu(up)", 'F.gelu(up, approximate="tanh")', "layers.0.mlp.activated"
    ),
    Bug(
        "padding counted in the mean",
        "minilm-l6",
        "real = (attention_mask != 0).to(x.dtype)",
        "real = torch.ones_like(attention_mask).to(x.dtype)",
        "pool",
        "padded right",
    ),
    Bug(
        "the first column in the place of the first token",
        "bert-base",
        "real.argmax(dim=1)",
        "real.argmax(dim=1) * 0",
        "pool",
        "padded left",
    ),
    Bug(
        "one segment for all",
        "bert-base",
        "self.segments(token_type_ids)",
        "self.segments(token_type_ids * 0)",
        "segments",
    ),
    Bug("a window to each side off by one", "modernbert-base", ".abs() <= most", ".abs() < most", "mask_2"),
    Bug("the buckets of the other side", "mpnet-base", "(distance > 0)", "(distance < 0)", "relative_bias"),
    Bug("a vector that keeps its length", "minilm-l6", "F.normalize(pool, dim=-1)", "pool * 1.0", "unit"),
    Bug("no tanh behind the pooler", "bert-base", "F.tanh(dense)", "dense * 1.0", "dense_activated"),
)


def built(name: str, out: Path) -> Path:
    """The twin of a spec as a build of its own."""
    folder.write_build(compile_spec(shrink(load(SPECS / f"{name}.yaml"))), out, Target(), None)
    return out


def edited(out: Path, file: str, edit: Callable[[bytes], bytes]) -> None:
    """The file changed and the manifest made to fit, as by someone who changed the emitter."""
    data = edit((out / file).read_bytes())
    (out / file).write_bytes(data)
    manifest = json.loads((out / folder.MANIFEST).read_text())
    manifest["files"][file] = folder.digest(data)
    (out / folder.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_model_py_is_caught_and_named(bug: Bug, tmp_path: Path) -> None:
    out = built(bug.spec, tmp_path)

    def plant(data: bytes) -> bytes:
        assert bug.old in data.decode()
        return data.decode().replace(bug.old, bug.new).encode()

    edited(out, "model.py", plant)
    assert api.verify(out) == folder.CheckResult((), ("model.py",), None)  # it is not even run
    proof = prove(compile_spec(load(out / "spec.resolved.yaml")), out / "model.py", targets=())
    assert not proof.holds
    wrong = {row.variant: row for row in proof.rows if not row.holds}
    assert {row.backend for row in wrong.values()} == {"torch"}
    row = wrong[bug.variant]
    print(f"{bug.name}: {row.error / TOLERANCE['float32']:.0f} times the tolerance")
    assert 10 * TOLERANCE["float32"] < row.error < float("inf"), row
    assert row.differs == bug.node


def test_other_experts_are_seen_before_any_logits(tmp_path: Path) -> None:
    """Experts whose scores are nearly those of the others: the logits would hardly differ."""
    out = built("mixtral-8x7b", tmp_path)

    def plant(data: bytes) -> bytes:
        old = "experts = choice.topk(active, dim=-1).indices"
        assert old in data.decode()
        new = "experts = choice.topk(active + 1, dim=-1).indices[..., 1:]"
        return data.decode().replace(old, new).encode()

    edited(out, "model.py", plant)
    proof = prove(compile_spec(load(out / "spec.resolved.yaml")), out / "model.py", targets=(), only=("full",))
    (row,) = (row for row in proof.rows if not row.holds)
    assert (row.backend, row.error, row.differs) == ("torch", float("inf"), "layers.0.mlp.route: other experts")


@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-9b", "gpt2", "pythia-410m"])
def test_unplanted_builds_hold(name: str, tmp_path: Path) -> None:
    checked = api.verify(built(name, tmp_path))
    assert checked.proof is not None
    assert checked.proof.complete


def _attribute(model: onnx.ModelProto, node: str, name: str) -> onnx.AttributeProto:
    found = next(n for n in model.graph.node if n.name == node)
    return next(a for a in found.attribute if a.name == name)


def _strict_mask(model: onnx.ModelProto) -> None:
    next(n for n in model.graph.node if n.name == "/mask/GreaterOrEqual").op_type = "Greater"


def _exact_gelu(model: onnx.ModelProto) -> None:
    for layer in range(2):
        _attribute(model, f"/layers/{layer}/mlp/activated/Gelu", "approximate").s = b"none"


def _no_softcap(model: onnx.ModelProto) -> None:
    _attribute(model, "/layers/0/attention/mixed/Attention", "softcap").f = 0.0


def _dropped_residual(model: onnx.ModelProto) -> None:
    add = next(n for n in model.graph.node if n.name == "/layers/1/after_mlp/Add")
    add.op_type = "Identity"
    del add.input[0]


def _other_eps(model: onnx.ModelProto) -> None:
    _attribute(model, "/layers/0/attention_norm/RMSNormalization", "epsilon").f = 1e-4


@pytest.mark.parametrize(
    ("spec", "plant", "node"),
    [
        ("llama3-8b", _strict_mask, "mask"),
        ("gpt2", _exact_gelu, "layers.0.mlp.activated"),
        ("gemma2-9b", _no_softcap, "layers.0.attention.mixed"),
        ("llama3-8b", _dropped_residual, "layers.1.after_mlp"),
        ("llama3-8b", _other_eps, "layers.0.attention_norm"),
    ],
    ids=["mask", "gelu", "softcap", "residual", "eps"],
)
def test_a_bug_in_model_onnx_is_caught_and_named(
    spec: str, plant: Callable[[onnx.ModelProto], None], node: str, tmp_path: Path
) -> None:
    out = built(spec, tmp_path)

    def edit(data: bytes) -> bytes:
        model = onnx.load_from_string(data)
        plant(model)
        return model.SerializeToString()

    edited(out, "model.onnx", edit)
    checked = api.verify(out)
    assert checked.proof is not None
    wrong = [row for row in checked.proof.rows if not row.holds]
    assert {row.backend for row in wrong} == {"onnxruntime"}
    full = next(row for row in wrong if row.variant == "full")
    assert full.error > 10 * TOLERANCE["float32"]
    assert full.differs == node


def test_a_changed_byte_is_named(tmp_path: Path) -> None:
    out = built("gpt2", tmp_path)
    data = bytearray((out / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (out / "model.onnx").write_bytes(bytes(data))
    assert api.verify(out).changed == ("model.onnx",)
