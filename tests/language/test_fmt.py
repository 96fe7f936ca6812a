"""blockc fmt: the same values, the same comments, one form, and files that are written whole or not at all.

ruamel.yaml, which has a YAML reader of its own, is the witness that values and comments stay.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.tokens import CommentToken

from blockc.cli import app, run_guarded
from blockc.diagnostics.examples import BASE
from blockc.language.algebra import elaborate
from blockc.language.fmt import format_spec, shorten_number
from blockc.language.spec import from_tree, resolve_spec, resolve_to_yaml
from blockc.source import SpecError, find_ignores, parse, to_plain
from blockc.source.text import resolve_scalar
from tests.paths import ROOT
from tests.spec_orders import EVERY_KEY, ORDERS

SPECS = sorted((ROOT / "specs").glob("*.yaml"))


def fmt(text: str) -> str:
    return format_spec(text.encode(), "s.yaml").decode()


def comments(text: str) -> Counter[str]:
    """Every comment of a text, as ruamel.yaml's scanner finds it."""
    found: list[str] = []
    for token in YAML().scan(io.StringIO(text)):
        for held in token.comment or ():
            for each in held if isinstance(held, list) else [held]:
                found += [each.value] if isinstance(each, CommentToken) else []
    lines = (line.strip() for value in found for line in value.splitlines())
    return Counter(line for line in lines if line)


def values(text: str) -> object:
    return YAML(typ="safe", pure=True).load(text)


def kept(text: str) -> str:
    """The form of a text, which says the same, has the same comments and is its own form."""
    new = fmt(text)
    assert values(new) == values(text)
    assert comments(new) == comments(text)
    assert fmt(new) == new
    return new


# Specs


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_specs_are_in_form(path: Path) -> None:
    assert kept(path.read_text()) == path.read_text()


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_turned_upside_down_means_the_same(path: Path) -> None:
    """The top-level keys with their comments backwards, and a resolved spec, which has each key in a fixed order."""
    text = path.read_text()
    blocks = re.findall(r"(?:#.*\n)*^[^\s#].*\n(?:[ ].*\n)*", text, re.MULTILINE)
    assert "".join(blocks) == text
    backwards = kept("".join(reversed(blocks)))
    assert backwards == text
    resolved = resolve_to_yaml(from_tree(parse(text, "s")))
    meaning = elaborate(from_tree(parse(text, "s"))).semantic_hash
    assert elaborate(from_tree(parse(kept(resolved), "s"))).semantic_hash == meaning


def snippets() -> list[str]:
    pages = (ROOT / "docs").glob("*.md")
    found = [each for page in pages for each in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
    return [each for each in found if readable(each)]


def readable(text: str) -> bool:
    try:
        parse(text, "s")
    except SpecError:
        return False
    return True


@pytest.mark.costly
def test_what_the_docs_show_says_the_same_afterwards() -> None:
    found = snippets()
    assert len(found) > 30
    for text in found:
        kept(text)


# The order


def test_the_order_is_that_of_the_language() -> None:
    """That of docs/language.md, which is the same wherever a part is said."""
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "language.md").read_text(), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    for key in ("embedding", "norm", "attention", "mlp", "head", "pool"):
        listed = tuple(name.removeprefix(f"{key}.") for name in names if re.fullmatch(rf"{key}\.\w+", name))
        assert ORDERS[key,] == listed
    for place in (("layers", "kinds", "*"), ("parts", "*"), ("layers", "kinds", "*", "parts")):
        for path, order in ORDERS.items():
            if path[0:1] in (("attention",), ("mlp",), ("norm",)) and place[-1] == "*":
                assert ORDERS[(*place, *path)] == order
    keys = [key for key in resolved_keys() if key in ORDERS[()]]
    assert keys == [key for key in ORDERS[()] if key in keys]


def test_a_resolved_kind_is_in_the_order_of_the_top() -> None:
    """What a kind changes stands as the top's keys do, and inside a part as its class has it."""
    change = "norm: {eps: 1e-3}, mlp: {width: 8}, attention: {window: 4, heads: 1}"
    text = BASE.replace("depth: 24", "depth: 2")
    tree = parse(text + f"layers: {{pattern: [a, b], kinds: {{a: {{}}, b: {{{change}}}}}}}\n", "s.yaml")
    said = resolve_spec(from_tree(tree))["layers"]["kinds"]["b"]
    assert list(said) == ["attention", "mlp", "norm"]


def test_a_text_has_the_keys_of_every_mapping_in_order() -> None:
    """The words of several scalings are in one order, and positional keys, sizes and bounds in theirs."""
    assert ORDERS["attention", "rope", "scaling"] == (
        "type", "factor", "low_freq_factor", "high_freq_factor", "original", "beta_fast", "beta_slow", "truncate",
        "short", "long", "choose", "attention_factor",
    )  # fmt: skip
    for path, order in ORDERS.items():
        if path and "*" not in path:
            text = "@"
            for key in reversed(path):
                text = f"{{{key}: {text}}}"
            wrong = text.replace("@", "{" + ", ".join(f"{key}: 1" for key in reversed(order)) + "}")
            right = text.replace("@", "{" + ", ".join(f"{key}: 1" for key in order) + "}")
            assert fmt(f"blockc: 1\n{wrong[1:-1]}\n") == f"blockc: 1\n{right[1:-1]}\n"


def resolved_keys() -> list[str]:
    return list(values(resolve_to_yaml(from_tree(parse((ROOT / "specs/gemma2-9b.yaml").read_bytes(), "s")))))  # type: ignore[call-overload]


def test_comments_stand_by_their_keys() -> None:
    text = """\
# head of the file

# the version
blockc: 1
expect: {kv_values_per_token: 3,parameters: {max: 9e9 ,min: 8.0e9}}   # published
# the width
width: 4   # w\x20\x20
attention:
  # first inside
  rope: {pairing: half, # why
    theta: 1.0e5}
    # deep under rope
  heads: 4   # h
  # tail of attention
# about the MLP
mlp: {width: 8,
  type: relu}
name: a
# the end


"""
    assert (
        kept(text)
        == """\
# head of the file

# the version
blockc: 1
name: a
# the width
width: 4   # w
attention:
  heads: 4   # h
  # first inside
  rope: {pairing: half, # why
    theta: 1e5}
    # deep under rope
  # tail of attention
# about the MLP
mlp: {type: relu,
  width: 8}
expect: {parameters: {min: 8e9, max: 9e9}, kv_values_per_token: 3}   # published
# the end
"""
    )


def test_kinds_and_labels_keep_their_order_and_what_is_in_them_does_not() -> None:
    text = """\
blockc: 1
layers:
  kinds:
    z: {mlp: {width: 3, type: relu}}
    attention:
      norm: {}
      attention: {rope: {theta: 1e4}, heads: 3}
  pattern: [z,attention]
parts: {b: {mlp: {width: 3, type: relu}}, a: {norm: {eps: 1.0e-5, type: rms}}}
block: [{residual: [b]},{sum: [[a], [attention]]}]
expect: {layers: {z: 1, attention: 2}}
"""
    assert (
        kept(text)
        == """\
blockc: 1
block: [{residual: [b]}, {sum: [[a], [attention]]}]
parts: {b: {mlp: {type: relu, width: 3}}, a: {norm: {type: rms, eps: 1e-5}}}
layers:
  pattern: [z, attention]
  kinds:
    z: {mlp: {type: relu, width: 3}}
    attention:
      attention: {heads: 3, rope: {theta: 1e4}}
      norm: {}
expect: {layers: {z: 1, attention: 2}}
"""
    )


NASTY = [
    "blockc: 1\nwidth: 4\ndescription: |\n  # no comment \n  1.0e5   \n\n\ndepth: 2\n",
    "blockc: 1\nwidth: 4\nname: a\ndescription: |+\n  text\n\n\n",
    "blockc: 1\nwidth: 4\nname: a\ndescription: |\n  no newline at the end",
    "blockc: 1\nwidth: 4\nname: a\ndescription: >-\n  folded\n  text\n# after it\n",
    'blockc: 1\nwidth: 4\ndescription: "over  \n\n  lines # no comment"\nname: a\n',
    "blockc: 1\nwidth: 4\ndescription: over\n  lines\nname: a\n",
    "---\n# c\nwidth: 4\nblockc: 1\n...\n# behind\n",
    "# a\n\n--- # b\nwidth: 4\n# c\nblockc: 1\n",
    "--- {width: 4, blockc: 1}\n",
    "{width: 4,\n # c\n blockc: 1}\n",
    "{width: 4,\n\n blockc: 1,\n}",
    "blockc: 1\nexpect:\n\n  # a\n\n  kv_values_per_token: 3\n # b\n  parameters: 4\n    # c\n\n # d\nname: x # e\n",
    "blockc: 1\nmlp:\n  {width: 8, type: relu}\nattention: # why\n  heads: 1\n",
    "blockc: 1\nlayers:\n  pattern:\n  - a: 2\n  -   b\n  # c\n  first: [a]\n",
    "  # in two\n\n # c\nwidth: 4\ndescription: |\n\n\n  1.0e5   \n\nblockc: 1\ndepth: 2",
    "blockc: 1\n\nwidth: 4\ndescription: |+\n\n  text\n\nname: a",
    "blockc: 1\nwidth: 4\nname: a\ndescription: |+\n  t? ",
    "blockc: 1\nlayers:\n  kinds: {}\n  first: |\n    x\n  # c\nname: a\n",
    "blockc: 1\nlayers:\n  first: |\n    x\nname: a\n",
    "blockc: 1\nlayers:\n\n  kinds: {}\n  first: |\n    x\n  # c\nname: a\n",
    "blockc: 1\nwidth: 4\ndescription: >-\n  folded\n\n  text\n# after it\n\n",
    "blockc: 1\nexpect:\n  parameters: |4\n    # c\n\n # d\nname: x # e\n",
    "blockc: 1\n? width\n: 4\nname: a\n",
    "blockc: 1\n? attention\n: rope: none\n  heads: 1\n",
    'blockc: 1\nmlp: {"width": 1.0e3, \'type\': relu}\nname: "1.0e3"\n',
    "blockc: 1\nmlp: {width : 8 , type : relu}\nblock: [ a ,b,  [c ] , ]\n",
    "blockc: 1\nmlp: {width: 8, # c\n  type: relu}\n",
    "blockc: 1\nmlp: &a {width: 8}\nattention: {rope: *a, heads: 1.0e3}\nname: x\n",
    "width: 4   \n\nblockc: 1 # c \t\n\n\n\n",
    "blockc: 1\nunknown: 3\nname: a\nhedas: 010x\n",
    "a: 1\nb: {d: .5,c: 1}\n",
    "blockc: 1\nwidth: 4 #c\nname: naïve # ü\n",
    "blockc: 1\nblock: [a, [b: 1, c], {}]\nname: a\n",
]


@pytest.mark.parametrize("text", NASTY)
def test_nasty_texts(text: str) -> None:
    new = kept(text)
    assert to_plain(parse(new, "s")) == to_plain(parse(text, "s"))


def test_order_is_left_where_it_cannot_be_moved() -> None:
    assert fmt("blockc: 1\nmlp: {width: 8, # c\n  type: relu}\n") == "blockc: 1\nmlp: {width: 8, # c\n  type: relu}\n"
    shared = "blockc: 1\nmlp: &a {width: 8, type: relu}\nattention: {rope: *a}\nname: x\n"
    assert fmt(shared) == shared


def test_marks_and_line_ends() -> None:
    text = "width: 4 # c\r\nblockc: 1\r\n"
    assert format_spec(b"\xef\xbb\xbf" + text.encode(), "s") == b"blockc: 1\r\nwidth: 4 # c\r\n"
    assert format_spec(b"width: 4\r\nblockc: 1\n", "s") == b"blockc: 1\nwidth: 4\n"


def test_a_comment_still_silences_its_line() -> None:
    text = "blockc: 1\nwidth: 4 # blockc: ignore BLC402\nname: a # blockc: ignore BLC403\n"
    assert {(i.name, i.place.text.split(":")[0]) for i in find_ignores(fmt(text), "s")} == {
        ("BLC402", "width"), ("BLC403", "name"),
    }  # fmt: skip


KEYS = st.sampled_from(EVERY_KEY)
WORDS = st.sampled_from(
    ["1", "1.0e-5", "relu", "'x'", '"1"', "[a,b]", "{width: 1,type: 5.0}", "{a: 1, # c\n      b: 2}", "|\n      a"]
)
TAIL = st.sampled_from(["", " # beside", "  #x", "\n# at the margin", "\n  # in two", "\n    # in four", "\n"])


@st.composite
def blocks(draw: st.DrawFn, indent: int = 0) -> str:
    """A block mapping of keys, one level of others inside, and comments everywhere."""
    lines: list[str] = []
    for key in draw(st.lists(KEYS, min_size=1, max_size=5, unique=True)):
        if indent == 0 and draw(st.booleans()):
            lines.append(f"{key}:{draw(TAIL)}\n{draw(blocks(indent + 2))}")
        else:
            lines.append(f"{' ' * indent}{key}: {draw(WORDS)}{draw(TAIL)}\n")
    return "".join(lines)


@settings(max_examples=80, deadline=None)
@given(blocks())
def test_any_mapping_is_kept(text: str) -> None:
    kept(text)


# Numbers


@pytest.mark.parametrize(
    ("word", "short"),
    [
        *[(word, "1e-5") for word in ("1e-5", "1.0e-05", "0.00001", "10.0E-6", "+1e-5")],
        *[(word, "5e5") for word in ("5e5", "500000.0", "5.0e+5", "0.5e6")],
        ("500000", "500000"), ("+5", "5"), ("-0", "0"), ("-0.0", "-0.0"), ("0e0", "0.0"), (".5", "0.5"), ("5.", "5.0"),
        ("0.020", "0.02"), ("0.001", "0.001"), ("50.0", "50.0"), ("100.0", "1e2"), ("-2.50e-3", "-0.0025"),
        ("4096.0", "4096.0"), ("123456.789", "123456.789"), ("1e300", "1e300"), ("true", "true"), ("1.2.3", "1.2.3"),
        ("relu", "relu"), ("1_000", "1_000"), ("5e-324", "5e-324"),
    ],
)  # fmt: skip
def test_numbers(word: str, short: str) -> None:
    assert shorten_number(word) == short


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**29), 10**29))
def test_a_number_keeps_its_value_and_kind(value: float) -> None:
    short = shorten_number(repr(value))
    again = resolve_scalar(short)
    assert (type(again), repr(again)) == (type(value), repr(value))
    assert shorten_number(short) == short and len(short) <= len(repr(value)) + 1


# The command line


@dataclass
class Done:
    returncode: int
    stdout: bytes
    stderr: bytes


def run(*arguments: str, cwd: Path, given: bytes = b"") -> Done:
    """blockc fmt in a folder, without a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    stdin = mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err), stdin:
        code = run_guarded(lambda: app(["fmt", *arguments], standalone_mode=False))
    return Done(code, out.getvalue().encode(), err.getvalue().encode())


MESSY = BASE.replace("1e-5", "1.0e-05")


def test_files_are_put_into_form(tmp_path: Path) -> None:
    messy, right, wrong = (tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml"))
    messy.write_text(MESSY)
    right.write_text(BASE)
    wrong.write_text("a: [\n")
    messy.chmod(0o640)
    before = right.stat().st_mtime_ns
    assert run("--check", ".", cwd=tmp_path).returncode == 1
    assert messy.read_text() == MESSY
    done = run(".", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"a.yaml: changed\n")
    assert done.stderr.startswith(b"c.yaml:1:")
    assert (messy.read_text(), messy.stat().st_mode & 0o777) == (BASE, 0o640)
    assert right.stat().st_mtime_ns == before and sorted(os.listdir(tmp_path)) == ["a.yaml", "b.yaml", "c.yaml"]
    wrong.unlink()
    done = run("--check", ".", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_check_and_diff_write_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MESSY)
    done = run("--check", "--diff", "a.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, b"a.yaml: would change\n")
    changes = [line for line in done.stdout.decode().splitlines() if re.match(r"[-+][^-+]", line)]
    assert changes == [
        "-norm: {type: rms, eps: 1.0e-05, placement: pre}", "+norm: {type: rms, eps: 1e-5, placement: pre}",
    ]  # fmt: skip
    assert run("--diff", "a.yaml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "a.yaml").read_text() == MESSY


def test_stdin_goes_to_stdout(tmp_path: Path) -> None:
    done = run("-", cwd=tmp_path, given=MESSY.encode())
    assert (done.returncode, done.stdout, done.stderr) == (0, BASE.encode(), b"")
    done = run("-", "--check", cwd=tmp_path, given=MESSY.encode())
    assert (done.returncode, done.stdout) == (1, b"")
    assert run("-", cwd=tmp_path, given=b"a: [\n").returncode == 1


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(MESSY)
    (tmp_path / "a.yaml").symlink_to("real")
    done = run("a.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"blockc: a.yaml: is a link; format the file that it leads to\n"
    assert (tmp_path / "a.yaml").is_symlink() and (tmp_path / "real").read_text() == MESSY
