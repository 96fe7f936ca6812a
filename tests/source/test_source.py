"""Reading specs: every fault has a place, every value one meaning, and no bytes give a traceback."""

from __future__ import annotations

import random
import time
import tracemalloc
from pathlib import Path

import pytest

from blockc.diagnostics.meaning import KV_HEADS
from blockc.source import (
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    find,
    finding,
    key_place,
    override,
    parse,
    read_tree,
    render_finding,
    suggest,
    to_plain,
)
from blockc.source.reading import MAX_DEPTH

SAMPLE = """\
blockc: 1
name: "tiny"   # a comment
width: 64
norm: {type: rms, eps: 1e-5, placement: pre}
attention:
  heads: 4
  bias: [q, k]
  rope: &rope
    theta: 1e6
description: |
  two
  lines
layers:
  pattern: [{local: 5}, global]
  again: *rope
block:
  - residual: [attention_norm, attention]
  - residual: [mlp_norm, mlp]
"""


def fails(data: bytes | str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse(data, "s.yaml")
    return caught.value


def value(text: str) -> object:
    return to_plain(parse(f"a: {text}\n", "s.yaml"))["a"]  # type: ignore[index]


def test_sample_is_read() -> None:
    assert to_plain(parse(SAMPLE, "s.yaml")) == {
        "blockc": 1,
        "name": "tiny",
        "width": 64,
        "norm": {"type": "rms", "eps": 1e-5, "placement": "pre"},
        "attention": {"heads": 4, "bias": ["q", "k"], "rope": {"theta": 1e6}},
        "description": "two\nlines\n",
        "layers": {"pattern": [{"local": 5}, "global"], "again": {"theta": 1e6}},
        "block": [{"residual": ["attention_norm", "attention"]}, {"residual": ["mlp_norm", "mlp"]}],
    }


@pytest.mark.parametrize("data", [SAMPLE.encode(), b"\xef\xbb\xbf" + SAMPLE.encode(), "\ufeff" + SAMPLE])
def test_bom_changes_nothing(data: bytes | str) -> None:
    tree = parse(data, "s.yaml")
    assert tree == parse(SAMPLE, "s.yaml")


def test_crlf_changes_nothing() -> None:
    assert parse(SAMPLE.replace("\n", "\r\n"), "s.yaml") == parse(SAMPLE, "s.yaml")


# (text, line, column, part of the message or hint)
BAD = [
    ("", 1, 1, "empty spec"),
    ("# nothing\n\n# here\n", 1, 1, "empty spec"),
    ("---\n", 1, 1, "empty spec"),
    ("a: 1\n---\nb: 2\n", 2, 1, "a second document"),
    ("---\na: 1\n---\n", 3, 1, "a second document"),
    ("a: 1\n...\nb: 2\n", 3, 1, "text after the end"),
    ("a:\n\tb: 1\n", 2, 1, "a tab in the indentation"),
    ("a:\n  b: 1\n\tc: 2\n", 3, 1, "a tab in the indentation"),
    ("a:\n  b: 1\n  \tc: 2\n", 3, 3, "a tab in the indentation"),
    ("a:\t1\n", 1, 3, "a tab between"),
    ("a: 1\nb: 2\0\n", 2, 5, "NUL byte at byte offset 9"),
    ("é: 1\0\n", 1, 5, "NUL byte at byte offset 5"),
    ("a: 1\nb: 2\na: 3\n", 3, 1, "duplicate key a, first on line 1"),
    ("x: {a: 1, b: 2, a: 3}\n", 1, 17, "duplicate key a"),
    ("a: !!python/object/apply:os.system [id]\n", 1, 4, "a tag"),
    ("a: !!str 1\n", 1, 4, "a tag"),
    ("a: !x 1\n", 1, 4, "a tag"),
    ("a: &b !x 1\n", 1, 7, "a tag"),
    ("a: !x!y 1\n", 1, 4, "a tag"),
    ("!!map {a: 1}\n", 1, 1, "a tag"),
    ("! a: 1\n", 1, 1, "a tag"),
    ("%YAML 1.1\n---\na: 1\n", 1, 1, "a directive"),
    ("%FOO\n---\na: 1\n", 1, 1, "a directive"),
    ("a: &a [*a]\n", 1, 8, "cyclic alias"),
    ("&a\nb: *a\n", 2, 4, "cyclic alias"),
    ("a: *b\n", 1, 4, "an alias of no anchor"),
    ("a: &x 1\nb: &x 2\n", 2, 4, "an anchor defined twice"),
    ("a: &x b\n*x : 1\n", 2, 1, "an alias as a key"),
    ("&x a: b\n", 1, 1, "an anchor on a key"),
    ("a: " + "[" * 2000 + "]" * 2000, 1, 4 + MAX_DEPTH - 1, "nested more than"),
    ("[" * 2000, 1, 1 + MAX_DEPTH, "nested more than"),
    ("a: " + "{b: " * 2000, 1, 4 + 4 * (MAX_DEPTH - 1), "nested more than"),
    ("- " * 2000, 1, 1 + 2 * MAX_DEPTH, "nested more than"),
    ("- a\n- b\n", 1, 1, "a spec is a mapping"),
    ("hello\n", 1, 1, "a spec is a mapping"),
    ("010\n", 1, 1, "a spec is a mapping"),
    ("null\n", 1, 1, "a spec is a mapping"),
    ("1: a\n", 1, 1, "a key must be a word"),
    ("true: a\n", 1, 1, "a key must be a word"),
    ("null: a\n", 1, 1, "a key must be a word"),
    ("~: a\n", 1, 1, "a key must be a word"),
    (": a\n", 1, 1, "a key must be a word"),
    ("? [a, b]\n: c\n", 1, 3, "a key must be a word"),
    ("a: {[b]: c}\n", 1, 5, "a key must be a word"),
    ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, 3, "a merge key"),
    ("a: null\n", 1, 4, "write none, or leave the key out"),
    ("a: ~\n", 1, 4, "write none, or leave the key out"),
    ("a:\nb: 1\n", 1, 3, "write none, or leave the key out"),
    ("a: {b: , c: 1}\n", 1, 7, "write none, or leave the key out"),
    ("a: {b}\n", 1, 6, "write none, or leave the key out"),
    ("a: &x\nb: 1\n", 1, 6, "write none, or leave the key out"),
    ("a: [1, null]\n", 1, 8, "write none, or leave the key out"),
    ("a: 010\n", 1, 4, "leading zero"),
    ("a: -01.5\n", 1, 4, "leading zero"),
    ("a: 0o17\n", 1, 4, "not decimal"),
    ("a: 0x1F\n", 1, 4, "not decimal"),
    ("a: 1_000\n", 1, 4, "an underscore in a number"),
    ("a: 1_0.5e3\n", 1, 4, "an underscore in a number"),
    ("a: .nan\n", 1, 4, "not a finite number"),
    ("a: -.inf\n", 1, 4, "not a finite number"),
    ("a: 1e400\n", 1, 4, "too large"),
    ("a: 1e-400\n", 1, 4, "too small"),
    ("a: " + "1" * 31 + "\n", 1, 4, "more than 30 digits"),
    ("a: " + "1" * 5000 + "\n", 1, 4, "more than 30 digits"),
    ('a: "\\ud800"\n', 1, 4, "lone surrogate U+D800"),
    ("a: \ud800\n", 1, 4, "lone surrogate U+D800"),
    ('a: "x\\e[31m"\n', 1, 4, "escape U+001B"),
    ('"\\a": 1\n', 1, 1, "control character U+0007"),
    ('a: "\\r"\n', 1, 4, "carriage return"),
    ('a: "\\L"\n', 1, 4, "U+2028"),
    ('a: "\\N"\n', 1, 4, "U+0085"),
    ("a: x\x1b[31m\n", 1, 5, "escape U+001B"),
    ("a: x\ry\n", 1, 5, "carriage return"),
    ("a: x\u2028y\n", 1, 5, "U+2028"),
    ("a: 1 # \x85\n", 1, 8, "U+0085"),
    ("a: x\ufeffy\n", 1, 5, "byte order mark"),
    ('a: "\\U00110000"\n', 1, 7, "no character"),
    ("%YAML " + "1" * 5000 + ".0\n---\na: 1\n", 1, 7, "no version"),
    ('a: "\\q"\n', 1, 6, "unknown escape"),
    ("a: b: c\n", 1, 5, "a second ': '"),
    ("a: 1\nb\n", 2, 2, "a key without"),
    ("a: 1\n b: 2\n", 2, 3, "': '"),
    ("a:\n    b: 1\n  c: 2\n", 3, 3, "wrong indentation"),
    ("a: {b: 1\n", 1, 9, "closing bracket"),
    ("a: [1, 2\nb: 3\n", 2, 2, "closing bracket"),
    ("a: 'x\n", 1, 6, "a quote is not closed"),
    ("a: @x\n", 1, 4, "cannot start a value"),
    ("a: - b\n", 1, 4, "a list entry cannot start here"),
    ("a: ]\n", 1, 4, "a value is missing"),
]


@pytest.mark.parametrize(("text", "line", "column", "part"), BAD)
def test_refused(text: str, line: int, column: int, part: str) -> None:
    first = fails(text).findings[0]
    assert (first.place.line, first.place.column, first.place.file) == (line, column, "s.yaml")
    assert part in first.message + " " + first.hint


def test_duplicate_cites_both_lines() -> None:
    first = fails("a: 1\nb: 2\na: 3\n").findings[0]
    assert [(place.line, place.column) for _, place in first.others] == [(1, 1)]


def test_independent_faults_come_together_in_order() -> None:
    places = [(each.place.line, each.place.column) for each in fails("a: 010\nb: ~\na: 2\nc: {\n").findings]
    assert places == [(1, 4), (2, 4), (3, 1), (4, 5)]
    assert len(fails("a: ~\n" * 1000).findings) <= 20


@pytest.mark.parametrize(
    ("data", "line", "column", "part"),
    [
        (b"a: 1\nb: caf\xe9\n", 2, 7, "the file is not UTF-8"),
        (b"\xef\xbb\xbfa: \xff\n", 1, 4, "the file is not UTF-8"),
        ("a: 1\n".encode("utf-16"), 1, 1, "the file is UTF-16"),
        (b"\xfe\xff\0a", 1, 1, "the file is UTF-16"),
        ("a: 1\n".encode("utf-32"), 1, 1, "the file is UTF-32"),
        ("a: 1\n".encode("utf-16-le"), 1, 2, "NUL byte at byte offset 1"),
        (b"\xef\xbb\xbf\xc3\xa9: 1\0", 1, 5, "NUL byte at byte offset 8"),
        (b"a: \xed\xa0\x80\n", 1, 4, "the file is not UTF-8"),
    ],
)
def test_bytes_refused(data: bytes, line: int, column: int, part: str) -> None:
    first = fails(data).findings[0]
    assert (first.place.line, first.place.column) == (line, column)
    assert part in first.message


def test_bad_byte_is_named() -> None:
    assert fails(b"\xef\xbb\xbfa: \xff\n").findings[0].got == "byte 0xff at byte offset 6"


def test_alias_bomb_is_refused_quickly() -> None:
    lines = ["a0: &a0 [" + ", ".join(["x"] * 9) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, 10)]
    tracemalloc.start()
    start = time.perf_counter()
    first = fails("\n".join(lines)).findings[0]
    took, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "more than 10000 values" in first.message and first.place.line == 5
    assert took < 1 and peak < 200e6


def test_aliases_do_not_deepen_past_the_cap() -> None:
    lines = ["a0: &a0 x"] + [f"a{n}: &a{n} [[[*a{n - 1}]]]" for n in range(1, 60)]
    assert "nested more than" in fails("\n".join(lines)).findings[0].message


def test_size_is_capped() -> None:
    assert "larger than" in fails("a" * 1_000_001).findings[0].message


@pytest.mark.parametrize("text", ["true", "True", "TRUE"])
def test_true(text: str) -> None:
    assert value(text) is True


@pytest.mark.parametrize(
    "text",
    ["yes", "no", "on", "off", "y", "2024-01-01", "12:30:45", "1.2.3", "nan", "inf", "none", "tRue", "1e"]
    + ["+", ".", "7*7", "a_1", "_1", "0b", "--", "1_a", "=", "e5"],
)
def test_plain_words_are_strings(text: str) -> None:
    assert value(text) == text


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("-7", -7), ("+7", 7), ("1" * 30, int("1" * 30))])
def test_integers(text: str, number: int) -> None:
    assert value(text) == number and type(value(text)) is int


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-5", 1e-5), ("1.0e-5", 1e-5), ("0.00001", 1e-5), ("1e6", 1e6), ("1.0E+6", 1e6), (".5", 0.5)]
    + [("5.", 5.0), ("-.5e1", -5.0), ("0.0", 0.0), ("0e9", 0.0), ("32.0", 32.0)],
)
def test_floats(text: str, number: float) -> None:
    assert value(text) == number and type(value(text)) is float


@pytest.mark.parametrize("text", ['"1e-5"', "'1e-5'", '"null"', '""', "|\n  5", ">-\n  5", '"010"'])
def test_quoted_is_text(text: str) -> None:
    tree = find(parse(f"a: {text}\n", "s.yaml"), ("a",))
    assert isinstance(tree, ScalarNode) and tree.quoted and type(tree.value) is str


def test_written_text_is_kept() -> None:
    tree = find(parse("a: &x 1.0e6  # c\n", "s.yaml"), ("a",))
    assert isinstance(tree, ScalarNode) and (tree.text, tree.value, tree.quoted) == ("1.0e6", 1e6, False)
    assert tree.place == Place("s.yaml", 1, 7, 5)


def test_find_and_key_place() -> None:
    tree = parse(SAMPLE, "s.yaml")
    eps = find(tree, ("norm", "eps"))
    assert (eps.place.line, eps.place.column, eps.place.width) == (4, 24, 4)
    key = key_place(tree, ("norm", "eps"))
    assert (key.line, key.column, key.width) == (4, 19, 3)
    assert find(tree, ("norm", "eps", "deeper", 3)) is eps
    assert key_place(tree, ("norm", "absent")) == key_place(tree, ("norm",))
    assert key_place(tree, ("absent",)) == tree.place
    assert find(tree, ("norm", "absent")) is find(tree, ("norm",))
    item = key_place(tree, ("attention", "bias", 1))
    assert (item.line, item.column) == (7, 13)
    assert find(tree, ("attention", "bias", 2)) is find(tree, ("attention", "bias"))
    assert isinstance(find(tree, ("attention", "bias")), SequenceNode)
    flow = find(tree, ("norm",)).place
    assert (flow.line, flow.column, flow.width) == (4, 7, len("{type: rms, eps: 1e-5, placement: pre}"))


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SAMPLE)
    assert read_tree(path) == parse(SAMPLE, str(path))


def test_read_refuses(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    with open(big, "wb") as stream:
        stream.truncate(50_000_000)
    cases = [
        (tmp_path, "is a directory"),
        (tmp_path / "absent", "no such file"),
        (big, "larger than"),
        (big / "x", "cannot be read"),
        ("/dev/zero", "not a regular file"),
        ("a\0b", "cannot be read"),
        ("a" * 5000, "cannot be read"),
    ]
    for path, part in cases:
        with pytest.raises(SpecError) as caught:
            read_tree(path)
        first = caught.value.findings[0]
        assert part in first.message
        assert first.place == Place(str(path), 1, 1)


def test_override() -> None:
    tree = parse("norm: {placement: pre, eps: 1e-5}\nrope: none\n", "s.yaml")
    new = override(tree, "norm.placement=post")
    assert to_plain(new) == {"norm": {"placement": "post", "eps": 1e-5}, "rope": "none"}
    assert to_plain(tree)["norm"]["placement"] == "pre"  # type: ignore[index]
    file = "--set 'norm.placement=post'"
    assert find(new, ("norm", "placement")).place == Place(file, 1, 16, 4)
    assert find(new, ("norm", "placement")).place.text == "norm.placement=post"
    assert key_place(new, ("norm", "placement")) == Place(file, 1, 6, 9)
    assert key_place(new, ("norm", "eps")) == key_place(tree, ("norm", "eps"))


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("a=1e6", {"a": 1e6}),
        ("a= yes ", {"a": "yes"}),
        ("a=[1, {b: c}]", {"a": [1, {"b": "c"}]}),
        ("a='1'", {"a": "1"}),
        ("a=x=y", {"a": "x=y"}),
        ("a=b # c", {"a": "b"}),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}),
    ],
)
def test_override_values(assignment: str, expected: object) -> None:
    for text in ("b: none\n", "a: none\n"):
        made = to_plain(override(parse(text, "s.yaml"), assignment))
        assert made["a"] == expected["a"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("assignment", "column", "part"),
    [
        ("norm", 1, "no '='"),
        ("", 1, "no '='"),
        ("=1", 1, "not a path"),
        ("a..b=1", 1, "not a path"),
        ("a b=1", 1, "not a path"),
        (".".join("a" * 100) + "=1", 1, "not a path"),
        ("a=1\nb", 4, "a newline"),
        ("a=\x1b", 3, "escape"),
        ("a=\ud800", 3, "lone surrogate"),
        ("a=1, 2", 3, "not one value"),
        ("a=", 3, "not one value"),
        ("a=null", 3, "no value"),
        ("a=010", 3, "leading zero"),
        ("a={b: 1", 8, "closing bracket"),
        ("a=1], [2", 5, "text after"),
        ("a=!x 1", 3, "a tag"),
        ("a=*x", 3, "an alias of no anchor"),
        ("w.x=1", 3, "cannot be set"),
        ("l.x=1", 3, "cannot be set"),
    ],
)
def test_override_refuses(assignment: str, column: int, part: str) -> None:
    tree = parse("w: 1\nl: [1]\n", "s.yaml")
    with pytest.raises(SpecError) as caught:
        override(tree, assignment)
    first = caught.value.findings[0]
    assert first.place.file.startswith("--set") and (first.place.line, first.place.column) == (1, column)
    assert part in first.message


def test_render() -> None:
    tree = parse("blockc: 1\nattention: {heads: 32, kv_heads: 5}\n", "/x/specs/a.yaml")
    value, other = find(tree, ("attention", "kv_heads")), find(tree, ("attention", "heads"))
    fault = finding(
        KV_HEADS,
        value.place,
        "attention.kv_heads must divide attention.heads",
        expected="a divisor of 32",
        got="5",
        hint="try 4",
        others=[("heads", other.place)],
    )
    text = """\
specs/a.yaml:2:34: attention.kv_heads must divide attention.heads [BLC202]
  2 | attention: {heads: 32, kv_heads: 5}
    |                                  ^
  expected: a divisor of 32
  got: 5
  hint: try 4
  specs/a.yaml:2:20: heads"""
    assert render_finding(fault, "/x") == text
    assert str(SpecError([fault, fault])) == "\n".join([render_finding(fault)] * 2)
    assert render_finding(fault).startswith("/x/specs/a.yaml:2:34")


def carets(text: str) -> tuple[str, str]:
    """What stands above the carets, counted in characters, and the carets."""
    _, line, marks = text.split("\n")[:3]
    start = marks.index("^")
    return line[start : start + marks.count("^")], marks[start:].strip()


@pytest.mark.parametrize("char", list("\x1b\x07\x9b\u202e\u2066\u200b\u2028\ud800\r"))
def test_rendered_text_is_inert(char: str) -> None:
    nasty = f"a{char}b\n"
    place = Place(f"f{char}", 1, 7, 3, f"x{char}: {{y: bad}}")
    text = render_finding(
        finding(KV_HEADS, place, nasty, expected=nasty, got=nasty, hint=nasty, others=[(nasty, place)])
    )
    assert char not in text and ascii(char)[1:-1] in text
    assert text.count("\n") == 6
    text.encode()


def test_caret_columns() -> None:
    place = Place("f", 1, 7, 3, "x\x1b: {yyy: 1}")
    assert carets(render_finding(finding(KV_HEADS, place, "m"))) == ("yyy"[1:] + ":", "^^^")
    line = "\ta: bad"
    assert carets(render_finding(finding(KV_HEADS, Place("f", 1, 5, 3, line), "m"))) == ("bad", "^^^")
    wide = render_finding(finding(KV_HEADS, Place("f", 1, 4, 2, "日本 例x"), "m")).split("\n")
    assert wide[2] == "    | " + " " * 5 + "^^^"
    combining = render_finding(finding(KV_HEADS, Place("f", 1, 4, 1, "e\u0301 x"), "m")).split("\n")
    assert combining[2] == "    |   ^"


@pytest.mark.parametrize("at", [0, 79, 500, 960, 995])
def test_long_lines_are_clipped_around_the_caret(at: int) -> None:
    line = "a" * at + "BAD" + "a" * (1000 - at)
    text = render_finding(finding(KV_HEADS, Place("f", 1, at + 1, 3, line), "m"))
    assert carets(text) == ("BAD", "^^^")
    assert max(map(len, text.split("\n"))) < 180


def test_long_fields_are_clipped() -> None:
    assert len(render_finding(finding(KV_HEADS, Place("f", 1, 1), "m" * 100_000, got="g" * 100_000))) < 1000


def test_suggest() -> None:
    assert suggest("hedas", ["heads", "width"]) == "heads"
    assert suggest("zzz", ["heads", "width"]) is None
    assert suggest("h" * 1_000_000, ["heads"]) is None
    assert suggest("HEADS", ["heads", "width"]) == "heads"
    assert suggest("qwen", ["qwen2.5-coder-7b", "qwen3-0.6b", "gpt2"]) == "qwen3-0.6b"
    assert suggest("qw", ["qwen3-0.6b"]) is None  # two letters say little


def test_fuzz() -> None:
    """Any bytes give a tree or a SpecError, whose text can be written, within the line that it names."""
    rng = random.Random(0)
    sample = SAMPLE.encode()
    pieces = rb"""[ ] { } &a *a ! \ " ' # | % : - ? ~ --- ... << \U00110000""".split()
    pieces += [b"\t", b"\n", b": ", b"- ", b"? ", b"\0", b"\xff", b"\r", b"\xc2\x85", b"\xe2\x80\xa8"]
    for _ in range(4000):
        start = rng.randrange(len(sample) // 2)
        data = bytearray(sample[start if rng.random() < 0.5 else 0 : start + rng.randrange(20, 150)])
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data))
            piece = rng.choice(pieces) if rng.random() < 0.8 else bytes([rng.randrange(256)])
            data[at : at + rng.randrange(3)] = piece
        try:
            assert isinstance(parse(bytes(data), "f"), MappingNode)
        except SpecError as error:
            assert error.findings
            str(error).encode()
            for each in error.findings:
                assert 1 <= each.place.column <= len(each.place.text) + 1
