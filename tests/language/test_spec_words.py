"""The words of a spec: names that go into files and code, keys that are not there, and values that are anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blockc.language.spec import from_tree
from blockc.pipeline.compiled import compile_spec
from blockc.source import Entry, MappingNode, SequenceNode, SpecError, Tree, parse
from tests.spec_text import changed, finding, made, spec
from tests.spec_variants import VARIANTS

# Names are text that goes into file names and code

# Near the end: a Cyrillic letter, a ligature, a newline, a template.
BAD_NAMES = [
    '"x\\"\\"\\"\\nimport os;os.system(\\"id\\")"', "../../x", "/etc/x", "x" * 101, "x" * 300, '"a b"',
    ".hidden", "-x", '""', "nаme", "ﬁ", '"a\\n"', "'{{ 7*7 }}'",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_is_a_word_of_ascii(name: str) -> None:
    found = finding(f"name: «{name}»")
    assert found.message == "name: not a name"
    assert found.expected.startswith("ASCII letters, digits and . _ -")


@pytest.mark.parametrize("name", ["CON", "con", "nul.v2", "Lpt1"])
def test_a_name_is_no_device_of_windows(name: str) -> None:
    assert finding(f"name: «{name}»").message == "name: a name that Windows keeps for a device"


@pytest.mark.parametrize("name", ["2024-01-01", "tiny-v1.5_b", "console", "x" * 100])
def test_a_name_is_the_text_as_written(name: str) -> None:
    assert spec(f"name: {name}").name == name


@pytest.mark.parametrize("path", ["../model.safetensors", "Llama", "a/b", "a b", '""'])
def test_a_checkpoint_is_the_name_of_a_layout(path: str) -> None:
    found = finding(f"checkpoint: «{path}»")
    assert found.message == "checkpoint: not the name of a checkpoint layout"
    assert found.expected == "a word such as llama: a layout says how files name their tensors"


TEXTS = [r"x\"\"\"\nimport os", "{{ 7*7 }}", "{% raw %}", "'''", r"back\\slash", r"a\tb", r"\U0001F600", "{# #}"]


@pytest.mark.costly
@pytest.mark.parametrize("text", TEXTS)
def test_a_description_changes_nothing_but_itself(text: str) -> None:
    described = made(f'description: "{text}"')
    assert described.model_py() == made().model_py()
    assert described.graph_txt() == made().graph_txt()


# Unknown keys


UNKNOWN = [
    # change, message, hint
    ("«hedas»: 2", "unknown key hedas", "did you mean head?"),
    ("attention: {heads: 2, «hedas»: 2}", "unknown key attention.hedas", "did you mean heads?"),
    ("attention:\n  heads: 2\n  «kv_head»: 2\n", "unknown key attention.kv_head", "did you mean kv_heads?"),
    ("mlp: {type: relu, width: 4, «widht»: 3}", "unknown key mlp.widht", "did you mean width?"),
    ("norm: {type: rms, eps: 1e-5, placement: pre, «epsilon»: 1}", "unknown key norm.epsilon", "here it is eps"),
    ("embedding: {«scal»: 2}", "unknown key embedding.scal", "did you mean scale?"),
    ("init: {std: 0.1, «mean»: 0}", "unknown key init.mean", ""),
    ("expect: {«params»: 1}", "unknown key expect.params", "did you mean parameters?"),
    ("layers: {patern: [a], kinds: {a: {}}}".replace("patern", "«patern»"), "unknown key layers.patern", "pattern?"),
    ("positions: {type: learned, «size»: 2}", "unknown key positions.size", ""),
    ("«hidden_size»: 8", "unknown key hidden_size", "here it is width"),
    ("«d_model»: 8", "unknown key d_model", "here it is width"),
    ("«num_hidden_layers»: 2", "unknown key num_hidden_layers", "here it is depth"),
    ("«rope_theta»: 1e4", "unknown key rope_theta", "here it is attention.rope.theta"),
    ("«intermediate_size»: 2", "unknown key intermediate_size", "here it is mlp.width"),
    ("attention: {heads: 2, «n_head»: 2}", "unknown key attention.n_head", "here it is attention.heads"),
    ("attention: {heads: 2, «num_key_value_heads»: 2}", "num_key_value_heads", "here it is attention.kv_heads"),
    ("norm: {type: rms, eps: 1, placement: pre, «parallel_block»: true}", "parallel_block", "placement: parallel_one"),
    ("head: {tied: false, «lm_head_bias»: true}", "unknown key head.lm_head_bias", "here it is head.bias"),
    ("attention: {heads: 2, «qk_layernorm»: true}", "qk_layernorm", "here it is attention.qk_norm"),
    ("attention: {heads: 2, «sliding_window»: 2}", "sliding_window", "here it is attention.window"),
    ("attention: {heads: 2, «kv_groups»: 2}", "unknown key attention.kv_groups", "kv_groups is read two ways"),
]


@pytest.mark.parametrize(("change", "message", "hint"), UNKNOWN)
def test_an_unknown_key_is_refused_with_the_word_that_was_meant(change: str, message: str, hint: str) -> None:
    found = finding(change)
    assert message in found.message
    assert hint in found.hint
    assert found.expected.startswith("one of ")


LATER = [
    ("«encoder»: {}", "encoder"),
    ("«mamba»: {}", "mamba"),
    ("attention: {heads: 2, «output_gate»: true}", "output_gate"),
    ("layers: {pattern: [a], kinds: {a: {«delta»: {}}}}", "delta"),
]


@pytest.mark.parametrize(("change", "word"), LATER)
def test_a_word_that_this_version_has_not_is_never_ignored(change: str, word: str) -> None:
    assert finding(change).hint == f"{word} is kept for a later version"


# Anything else: never a traceback, always a place

ODD = [
    "none", "0", "1", "8", "-1", "1.5", "true", "x", "attention", '"2"', "[]", "[1]", "[a]", "[attention]", "[{}]",
    "{}", "{a: 1}", "{type: x}", "{attention: {}}", "{attention: none}",
]  # fmt: skip


def paths(tree: Tree, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    match tree:
        case MappingNode():
            for key, entry in tree.entries.items():
                yield from paths(entry.value, (*path, key))
        case SequenceNode():
            for i, item in enumerate(tree.items):
                yield from paths(item, (*path, i))
        case _:
            pass


def put(tree: Tree, path: tuple[str | int, ...], value: Tree) -> Tree:
    if not path:
        return value
    step, *rest = path
    if isinstance(tree, MappingNode):
        entry = tree.entries[str(step)]
        return MappingNode(
            {**tree.entries, str(step): Entry(entry.key, put(entry.value, tuple(rest), value))}, tree.place
        )
    assert isinstance(tree, SequenceNode)
    items = [put(item, tuple(rest), value) if i == step else item for i, item in enumerate(tree.items)]
    return SequenceNode(tuple(items), tree.place)


@pytest.mark.costly
@pytest.mark.parametrize("variant", ["macaron", "parts varied", "joined", "first and last", "partial pairs", "sizes"])
def test_any_value_anywhere_is_read_or_refused_with_a_place(variant: str) -> None:
    tree = parse(changed(VARIANTS[variant]), "s.yaml")
    odd = [parse(f"v: {text}\n", "odd").entries["v"].value for text in ODD]
    for path in paths(tree):
        for value in odd:
            new = put(tree, path, value)
            assert isinstance(new, MappingNode)
            try:
                compile_spec(from_tree(new))
            except SpecError as error:
                for found in error.findings:
                    assert found.message
                    assert found.place.file in ("s.yaml", "odd")
                    assert "'" not in found.got  # Python's repr is not the language
