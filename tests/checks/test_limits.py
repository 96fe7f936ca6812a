"""Numbers beyond what int64 and fp32 hold: findings of `check` at their place, and of `build` where fp16 holds less."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc import api
from blockc.graph.target import Target
from blockc.language.parts.numbers import LARGEST, LARGEST_INT, SMALLEST
from blockc.language.spec.schema import language_schema
from blockc.products.folder import FolderError
from blockc.source import Finding, SpecError
from tests.spec_text import finding, findings, made, spec

ROPE = "attention: {heads: 2, head_dim: 4, rope: {theta: 1e4, pairing: half, scaling: {type: "
INTEGERS = {
    "vocab": "vocab: «N»\n",
    "width": "width: «N»\n",
    "depth": "depth: «N»\n",
    "context": "context: «N»\n",
    "positions.offset": "positions: {type: learned, offset: «N»}\n",
    "embedding.width": "embedding: {width: «N»}\n",
    "attention.heads": "attention: {heads: «N»}\n",
    "attention.kv_heads": "attention: {heads: 2, kv_heads: «N»}\n",
    "attention.head_dim": "attention: {heads: 2, head_dim: «N»}\n",
    "attention.window": "attention: {heads: 2, window: «N»}\n",
    "attention.rope.dims": "attention: {heads: 2, rope: {theta: 1e4, pairing: half, dims: «N»}}\n",
    "attention.rope.pairs": "attention: {heads: 2, rope: {theta: 1e4, pairing: half, pairs: «N»}}\n",
    "attention.rope.scaling.original": ROPE + "dynamic, factor: 2, original: «N»}}}\n",
    "mlp.width": "mlp: {type: relu, width: «N»}\n",
    "parts.more.mlp.width": "mlp: {type: relu, width: 16}\nparts: {more: {mlp: {width: «N»}}}\n"
    "norm: {type: rms, eps: 1e-5}\nblock: [{residual: [attention]}, {residual: [mlp]}, {residual: [more]}]\n",
    "expect.parameters": "expect: {parameters: «N»}\n",
    "expect.layers.layer": "expect: {layers: {layer: «N»}}\n",
}
FLOATS = {
    "norm.eps": "norm: {type: rms, eps: «N», placement: pre}\n",
    "norm.offset": "norm: {type: rms, eps: 1e-5, offset: «N», placement: pre}\n",
    "attention.scale": "attention: {heads: 2, scale: «N»}\n",
    "attention.softcap": "attention: {heads: 2, softcap: «N»}\n",
    "attention.clip": "attention: {heads: 2, clip: «N»}\n",
    "attention.alibi.max_bias": "attention: {heads: 2, alibi: {max_bias: «N»}}\n",
    "attention.rope.theta": "attention: {heads: 2, rope: {theta: «N», pairing: half}}\n",
    "attention.rope.scaling.factor": ROPE + "linear, factor: «N»}}}\n",
    "attention.rope.scaling.short[1]": ROPE + "longrope, choose: short, short: [1, «N»], attention_factor: 1}}}\n",
    "attention.qk_norm.eps": "attention: {heads: 2, qk_norm: {over: projection, eps: «N»}}\n",
    "mlp.limit": "mlp: {type: swiglu_clamped, width: 16, limit: «N», alpha: 1}\n",
    "residual_scale": "residual_scale: «N»\n",
    "embedding.scale": "embedding: {scale: «N»}\n",
    "embedding.scale.rsqrt": "embedding: {scale: {rsqrt: «N»}}\n",
    "head.scale": "head: {tied: true, scale: «N»}\n",
    "head.softcap": "head: {tied: true, softcap: «N»}\n",
    "init.std": "init: {std: «N»}\n",
    "scale": "norm: {type: rms, eps: 1e-5}\nblock: [{residual: [attention, {scale: «N»}]}]\n",
}


def refused(text: str, number: object) -> Finding:
    """The one finding, at the number."""
    return finding(text.replace("N", str(number)))


@pytest.mark.parametrize("key", INTEGERS)
@pytest.mark.parametrize("number", [LARGEST_INT + 1, 10**20])
def test_an_integer_beyond_int64_is_a_finding(key: str, number: int) -> None:
    found = refused(INTEGERS[key], number)
    assert found.code.name == "BLC104"
    assert found.message == f"{key}: too large"
    assert found.expected == f"at most {LARGEST_INT}"


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("number", [1e300, 1e-60, 3.5e38, 1.1e-38])
def test_a_float_beyond_fp32_is_a_finding(key: str, number: float) -> None:
    """Also one that fp32 would take for 0, such as an eps of 1e-60, after which there is none."""
    found = refused(FLOATS[key], number)
    assert found.message.startswith(f"{key}: ")
    if key == "attention.rope.theta" and number < 1:  # which begins at 1
        assert (found.code.name, found.expected) == ("BLC106", "at least 1")
        return
    assert found.code.name == "BLC104"
    assert f"{LARGEST:.3g}" in found.expected if number > 1 else f"{SMALLEST:.3g}" in found.expected


def test_the_limits_are_those_of_the_types() -> None:
    assert (float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_normal)) == (LARGEST, SMALLEST)
    assert np.iinfo(np.int64).max == LARGEST_INT


def test_what_the_types_hold_is_taken() -> None:
    for number in (SMALLEST, 1e-30, 0, LARGEST):
        norm = spec(FLOATS["norm.eps"].replace("«N»", repr(number))).layers[0].keys.norm
        assert norm is not None and norm.eps == number
    for number in (-1.5, -LARGEST, 0.0):
        norm = spec(FLOATS["norm.offset"].replace("«N»", repr(number))).layers[0].keys.norm
        assert norm is not None and norm.offset == number
    assert spec(f"context: {LARGEST_INT}\n").top.context == LARGEST_INT


def numbers(said: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place of the schema that takes a number."""
    for key, value in said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ():
        if key in ("if", "then", "not"):
            continue
        if isinstance(value, dict) and value.get("type") in ("integer", "number"):
            yield f"{path}.{key}", value
        yield from numbers(value, f"{path}.{key}")


def test_every_number_of_the_language_is_bounded() -> None:
    """A key that comes later, too; bounds of `expect` are compared with figures, and computed with by nobody."""
    found = dict(numbers(language_schema()))
    assert len(found) > 40
    open_ = {path for path, said in found.items() if "maximum" not in said and "const" not in said}
    assert open_ == {f".definitions.Bounds.properties.{key}" for key in ("min", "max")}
    for path, said in found.items():
        if path not in open_ and said["type"] == "number":
            assert "minimum" in said or "exclusiveMinimum" in str(said.get("not")), path


SHAPES = {
    "vocab x width": "«vocab»: 9000000000000000000\n",
    "context x width": "positions: {type: learned}\n«context»: 9000000000000000000\n",
    "width x heads x head_dim": "«attention»: {heads: 4000000000, head_dim: 4000000000}\n",
    "width x mlp.width": "«mlp»: {type: relu, width: 9000000000000000000}\n",
}


@pytest.mark.parametrize("sizes", SHAPES)
def test_a_parameter_beyond_int64_is_a_finding(sizes: str) -> None:
    """Each size is one that int64 holds, and their product is not."""
    found = findings(SHAPES[sizes])
    assert {each.code.name for each in found} == {"BLC104"}
    assert all("more bytes than int64 counts" in each.message for each in found)
    marked = SHAPES[sizes].split("«")[1].split("»")[0]
    assert {each.place.text.split(":")[0] for each in found} == {marked}


HALF = {
    "residual_scale: 1e5\n": "100000",
    "attention: {heads: 2, clip: 1e6}\n": "1e\\+06",
    "head: {tied: true, softcap: 1e-9}\n": "1e-09",
    "attention: {heads: 2, scale: 1e5}\n": "100000",
}


@pytest.mark.parametrize("change", HALF)
def test_a_number_that_fp16_does_not_hold_is_refused_before_the_build(change: str, tmp_path: Path) -> None:
    model = made(change)
    with pytest.raises(FolderError, match=f"fp16 does not hold {HALF[change]}"):
        api.build(model, tmp_path / "out", target=Target(dtype="fp16"))
    assert not (tmp_path / "out").exists()
    for target in (Target(), Target("cuda", "bf16")):
        assert not model.refuses(target)


def test_a_theta_below_one_is_a_finding() -> None:
    """A pair would turn by more than a radian a token, faster with each pair, and fp32 holds no such angle."""
    with pytest.raises(SpecError) as caught:
        made("attention: {heads: 2, rope: {theta: 0.5, pairing: half}}\n")
    (found,) = caught.value.findings
    assert (found.code.name, found.expected, found.got) == ("BLC106", "at least 1", "0.5")
