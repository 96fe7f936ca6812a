"""Mutation testing: what is drawn of a piece of code, what of it is killed, and that what is explained is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import mutants
from tests.mutation import ROOMS, ROOT, drawn, explained

MODULE = """\
def least(x):
    return x if x < 3 else 3
"""
TEST = """\
import blockc

def test_least():
    assert [blockc.least(x) for x in (2, 5)] == [2, 3]

def test_without_an_end():
    while True:
        pass
"""
SCRIPT = """
import sys
from pathlib import Path
from tests.mutants import mutants
from tests.mutation import Copy

copy = Copy(Path(sys.argv[1]), Path(sys.argv[2]))
for mutant in mutants(copy.tree / "blockc.py", "blockc.py"):
    print(mutant.after, "|", copy.killed(mutant, [["test_it.py::test_least"]]))
    assert (copy.tree / "blockc.py").read_text() == Path(sys.argv[2], "blockc.py").read_text()
print(copy.passes(["test_it.py"], 2))
"""


def changes(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "m.py"
    path.write_text(text)
    return [mutant.after for mutant in mutants(path, "m.py")]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a = b <= c", ["a = (b < c)"]),
        ("a = b is not None", ["a = (b is None)"]),
        ("a = b or c", ["a = (b and c)", "a = False or c", "a = b or False"]),
        ("a = b - c", ["a = (b + c)"]),
        ("a = not b", ["a = (b)"]),
        ("a = 7", ["a = 8"]),
        ("a = True", ["a = False"]),
        ("a = (b, *c)", ["a = (*(), *c)", "a = (b, *())"]),
        ("a = any(b)", ["a = all(b)"]),
        ("a = f(b, c=d)", ["a = f(b, **{})"]),
        ("a = b if c else d", ["a = b if True else d", "a = b if False else d"]),
        ("a = [b for b in c if b]", ["a = [b for b in c if True]", "a = [b for b in c if False]"]),
        ("def f(a=0):\n    g(a)", ["pass", "def f(a=1):"]),
        ("match a:\n    case 1 if b:\n        pass", ["case 1 if True:", "case 1 if False:"]),
        ("'''1 < 2'''\nimport a\nassert a < 1\nb: Literal[1]\nc = f'{1 + 2}'\nd = isinstance(a, B | C)", []),
        ("@f(a=1)\nclass A:\n    def __repr__(self):\n        return 1", []),
        ("f(a, message='b' + 'c', hint='b' if c else '')", []),
        ("zip(a, b, strict=True)", []),
        ("A = Mapping[str, B]", []),
    ],
)
def test_what_is_drawn(tmp_path: Path, text: str, wanted: list[str]) -> None:
    assert changes(tmp_path, text) == wanted


def test_a_mutant_is_the_file_with_one_change(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text("class A:\n    def f(self, b):\n        «»  \n".replace("«»", 'c = "«»"; return b < 3  # why'))
    mutant = mutants(path, "m.py")[0]
    assert mutant.key == ("m.py", "A.f", 'c = "«»"; return b < 3 # why', 'c = "«»"; return (b <= 3) # why')
    assert mutant.text == path.read_text().replace("b < 3", "(b <= 3)") and mutant.line == 3


@pytest.mark.costly
def test_what_a_test_sees_is_killed_and_the_rest_survives(tmp_path: Path) -> None:
    tree = tmp_path / "from"
    (tree / "tests").mkdir(parents=True)
    (tree / "blockc.py").write_text(MODULE)
    (tree / "tests" / "test_it.py").write_text(TEST)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(tree)]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    by = "tests/test_it.py::test_least"
    assert done.stdout.splitlines() == [
        f"return x if True else 3 | {by}",
        f"return x if False else 3 | {by}",
        "return x if (x <= 3) else 3 | ",  # the same function
        "return x if x < 4 else 3 | ",
        f"return x if x < 3 else 4 | {by}",
        "False",
    ], done.stderr


def test_every_explained_mutant_still_stands() -> None:
    """A mutant whose code is gone is taken from the table of docs/mutation.md."""
    files = {file for file, *_ in explained()}
    assert set(explained()) <= {mutant.key for file in files for mutant in mutants(ROOT / file, file)}
    assert all(explained().values())


def test_as_many_are_drawn_of_each_room_the_same_ones_for_a_seed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "blockc", tmp_path / "blockc", ignore=shutil.ignore_patterns("__pycache__"))
    chosen = drawn(tmp_path, 10, 1)
    assert [sum(each == room for each, _ in chosen) for room in ROOMS] == [2, 2, 3, 3]
    assert chosen == drawn(tmp_path, 10, 1) != drawn(tmp_path, 10, 2)
    (tmp_path / "blockc" / "language" / "algebra.py").write_text("a = 1\n")
    assert [m.after for room, m in drawn(tmp_path, 4, 1) if room == "algebra"] == ["a = 2"]
