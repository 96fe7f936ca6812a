"""How keys shrink in a twin: each as its class says, wherever in a spec it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockc.graph import shrink as shrink_module
from blockc.graph.shrink import shrink
from blockc.language import fmt
from blockc.language.parts import Attention, Longrope, Model
from blockc.language.parts.twin import ShrinkRule
from blockc.language.spec import from_tree
from blockc.language.spec.classes import DOCUMENT, AllowedKeys
from blockc.language.spec.keys import Document, Embedding
from blockc.pipeline.compiled import compile_spec
from blockc.proof.matrix import prove
from blockc.source import parse, to_plain
from tests.spec_orders import ORDERS

LARGE = """\
blockc: 1
name: large
vocab: 32000
width: 1024
depth: 12
context: 4096
head: {tied: true}
norm: {type: rms, eps: 1e-5}
positions: none
mlp: {type: gelu, width: 4096}
attention: {heads: 16}
block: [{residual: [attention_norm, attention]}, {residual: [mlp_norm, mlp]}]
"""


def twin(text: str) -> Any:
    return to_plain(shrink(from_tree(parse(text, "s.yaml"))).tree)


# A key, what is said of it, and what that is in the twin: docs/proof.md has the numbers.
SHRUNK = {
    "window": ("attention: {heads: 16, window: 512}", 5),
    "softcap": ("attention: {heads: 16, softcap: 50}", 2),
    "small softcap": ("attention: {heads: 16, softcap: 0.5}", 0.5),
    "clip": ("attention: {heads: 16, clip: 8}", 1),
    "limit": ("mlp: {width: 4096, type: swiglu_clamped, alpha: 1.7, limit: 7}", 1),
    "alpha": ("mlp: {width: 4096, type: swiglu_clamped, limit: 7, alpha: 1.7}", 1.7),
    "none": ("attention: {heads: 16, window: none}", "none"),
}


@pytest.mark.parametrize("said", SHRUNK)
@pytest.mark.parametrize("where", ["top", "kind", "part", "part of a kind"])
def test_a_key_shrinks_wherever_it_stands(said: str, where: str) -> None:
    change, wanted = SHRUNK[said]
    part, _, rest = change.partition(": ")
    key = rest.strip("{}").split(", ")[-1].partition(":")[0]
    if where == "top":
        kept = (line for line in LARGE.splitlines(True) if not line.startswith(f"{part}:"))
        found = twin("".join(kept) + change + "\n")
    elif where == "kind":
        found = twin(f"{LARGE}layers: {{pattern: [a, b], kinds: {{a: {{}}, b: {{{change}}}}}}}\n")["layers"]["kinds"][
            "b"
        ]
    else:
        block = "block: [{residual: [attention_norm, attention, own]}, {residual: [mlp_norm, mlp]}]"
        kept = LARGE.replace(LARGE.splitlines()[-1], block)
        own = f"parts: {{own: {{{change}}}}}"
        if where == "part":
            found = twin(f"{kept}{own}\n")["parts"]["own"]
        else:
            found = twin(f"{LARGE}layers: {{pattern: [a], kinds: {{a: {{{block}, {own}}}}}}}\n")
            found = found["layers"]["kinds"]["a"]["parts"]["own"]
    assert found[part][key] == wanted


def test_a_scaling_shrinks_by_its_own_type() -> None:
    """One word of several types: a rule belongs to the class that the type names, and yarn has none."""
    more = {
        "llama3": ("low_freq_factor: 1, high_freq_factor: 4, factor: 8", 64),
        "dynamic": ("factor: 8", 16),
        "yarn": ("factor: 8, beta_fast: 32, beta_slow: 1, truncate: true", 2048),
    }
    for type_, (rest, wanted) in more.items():
        rope = f"rope: {{theta: 1e4, pairing: half, scaling: {{type: {type_}, original: 2048, {rest}}}}}"
        found = twin(LARGE.replace("{heads: 16}", f"{{heads: 16, {rope}}}"))
        assert found["attention"]["rope"]["scaling"]["original"] == wanted, type_


def test_an_attention_that_parts_alone_have_shrinks_with_its_heads() -> None:
    """No key of the layer is there that it would vary: it is its own measure."""
    own = "{heads: 16, kv_heads: 4, window: 100, rope: {theta: 1e4, pairing: half, dims: 32}}"
    text = "".join(
        each for each in LARGE.splitlines(True) if not each.startswith(("attention:", "block:", "positions:"))
    )
    text += "block: [{residual: [own_norm, own]}, {residual: [mlp_norm, mlp]}]\n"
    text += f"parts: {{own: {{attention: {own}}}}}\n"
    found = twin(text)
    attention = found["parts"]["own"]["attention"]
    assert attention["heads"] < 16 and attention["heads"] == 4 * attention["kv_heads"]
    assert attention["rope"]["dims"] == 16 and attention["window"] == 5
    assert found["width"] == attention["heads"] * 32  # the ratio of 1024 to 16 heads of 64, half of which turns
    assert prove(compile_spec(shrink(from_tree(parse(text, "s.yaml")))), targets=()).holds


def test_a_twin_of_a_twin_is_itself() -> None:
    once = shrink(from_tree(parse(LARGE, "s.yaml")))
    assert to_plain(shrink(once).tree) == to_plain(once.tree)


def reached(keys: AllowedKeys = DOCUMENT) -> set[type[Model]]:
    """The classes that the walk along a spec's tree comes by, and those that they inherit from."""
    found = {each for c in keys.classes for each in c.mro() if issubclass(each, Model)}
    if keys.named:
        return found  # a layer's keys, which stand at the top too
    return found.union(*(reached(keys.keys_below(key)) for key in keys.order))


def below(model: type[Model]) -> Iterator[type[Model]]:
    for each in model.__subclasses__():
        yield each
        yield from below(each)


def test_every_rule_is_of_a_key_that_the_walk_comes_by() -> None:
    """A rule of another class would have no effect; nor would the second of one key."""
    ruled: set[type[Model]] = set()
    for model in below(Model):
        for field in model.model_fields.values():
            rules = [each for each in field.metadata if isinstance(each, ShrinkRule)]
            assert len(rules) <= 1
            ruled |= {model} if rules else set()
    assert {Longrope, Embedding, Attention, Document} < ruled
    assert ruled <= reached()


PARTS_KEYS = {key for path, order in ORDERS.items() if path[:1] in (("attention",), ("mlp",)) for key in order}


@pytest.mark.parametrize("module", [shrink_module, fmt], ids=lambda module: module.__name__)
def test_what_walks_the_keys_names_none(module: Any) -> None:
    """A key of a part is said by its class alone. `type` is the word that tells classes apart."""
    tree = ast.parse(Path(module.__file__).read_text())
    said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert said & PARTS_KEYS <= {"type"}
