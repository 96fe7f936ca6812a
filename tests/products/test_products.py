"""Several products beside one model: one copy of the weights, or refused together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from blockc import api
from blockc.graph.target import Target
from blockc.products import registry
from blockc.products.genai import CONFIG
from blockc.products.product import Product, ProductInputs, choose_products, make_all_files
from tests.checkpoints import save, tensors, twin

SAYS = json.dumps({"eos_token_id": 0}).encode()


def _card(beside: ProductInputs) -> Mapping[str, bytes]:
    """How many layers remember, and what comes with the checkpoint."""
    return {"card.json": json.dumps([len(beside.contract.held), sorted(beside.companions)]).encode()}


CARD = Product(
    "card", "a card reader", frozenset({"card.json"}),
    lambda target: "it reads fp32 alone: build with --dtype fp32" if target.dtype != "fp32" else "",
    _card, lambda beside: [f"card: {beside.spec.name}"],
)  # fmt: skip


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(registry.PRODUCTS, "card", CARD)
    save(tmp_path / "in" / "model.safetensors", tensors(twin("llama3-8b")))
    (tmp_path / "in" / "generation_config.json").write_bytes(SAYS)
    return tmp_path / "in"


def test_two_products_are_built_on_one_copy_of_the_weights(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    built = api.build(twin("llama3-8b"), out, proof=False, weights=weights, products=["genai", "card", "genai"])
    assert {"card.json", CONFIG} <= {path.name for path in built.files}
    assert "card: llama3-8b-twin" in built.notes
    assert json.loads((out / "manifest.json").read_text())["products"] == ["genai", "card"]
    assert (out / "model.safetensors").samefile(weights / "model.safetensors")
    assert len([*out.glob("*.onnx*")]) == 1
    checked = api.verify(out)
    assert checked.proof is not None and checked.proof.holds


@pytest.mark.parametrize("name", ["card.json", CONFIG])
def test_verify_makes_the_files_of_products_anew(name: str, weights: Path, tmp_path: Path) -> None:
    """Also where whoever edited one edited its digest too."""
    from blockc.products.folder import digest

    out = tmp_path / "out"
    api.build(twin("llama3-8b"), out, proof=False, weights=weights, products=["genai", "card"])
    (out / name).write_text("{}")
    assert api.verify(out).changed == (name,)
    said = json.loads((out / "manifest.json").read_text())
    said["files"][name] = digest(b"{}")
    (out / "manifest.json").write_text(json.dumps(said))
    assert api.verify(out).outdated == (name,)


def test_verify_finds_a_file_of_a_product_that_was_not_built(weights: Path, tmp_path: Path) -> None:
    from blockc.products.folder import digest

    out = tmp_path / "out"
    api.build(twin("llama3-8b"), out, proof=False, weights=weights, products=["genai"])
    (out / "card.json").write_text("{}")
    said = json.loads((out / "manifest.json").read_text())
    said["files"]["card.json"] = digest(b"{}")
    (out / "manifest.json").write_text(json.dumps(said))
    assert api.verify(out).outdated == ("card.json",)


def test_what_one_of_them_does_not_take_refuses_both(weights: Path, tmp_path: Path) -> None:
    target = Target(dtype="fp16", logits=5)
    with pytest.raises(api.ProductError) as refused:
        api.build(
            twin("llama3-8b"), tmp_path / "out", target=target, proof=False, weights=weights, products=["genai", "card"]
        )
    said = str(refused.value)
    assert "onnxruntime-genai: it picks from all logits" in said and "a card reader: it reads fp32 alone" in said
    assert not (tmp_path / "out").exists()


def test_unlike_files_of_one_name_are_refused(weights: Path, tmp_path: Path) -> None:
    other = replace(CARD, name="other", runtime="another reader", files=lambda beside: {"card.json": b"[]"})
    beside = ProductInputs(twin("llama3-8b").spec, Target(), twin("llama3-8b").contract(Target()), {})
    with pytest.raises(api.ProductError, match="a card reader and another reader need different files card.json"):
        make_all_files([CARD, other], beside)
    assert make_all_files([CARD, replace(CARD, name="same")], beside).keys() == {"card.json"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("generation_config.json", "a card reader needs another generation_config.json than the checkpoint's"),
        ("other.json", "a card reader: makes a file other.json, which is not among its names"),
    ],
)
def test_a_product_makes_its_own_files_alone(
    name: str, why: str, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.PRODUCTS, "card", replace(CARD, files=lambda beside: {name: b"{}"}))
    with pytest.raises(api.ProductError, match=why):
        api.build(twin("llama3-8b"), tmp_path / "out", proof=False, weights=weights, products=["card"])
    assert not (tmp_path / "out").exists()


def test_a_product_that_is_not_there_is_named(weights: Path) -> None:
    with pytest.raises(api.UsageError, match="no product is called gguf: expected card or genai"):
        choose_products(["genai", "gguf"], registry.PRODUCTS)
    with pytest.raises(api.UsageError, match="no product is called gguf"):
        api.build(twin("llama3-8b"), weights.parent / "out", proof=False, weights=weights, products=["gguf"])
