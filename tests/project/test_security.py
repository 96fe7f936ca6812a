"""Foreign input runs no code: what blockc's source and emitted Python consist of, and the limits of what is read."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockc import api
from blockc.checks.checking import check_text
from blockc.language.spec import from_tree
from blockc.pipeline.compiled import compile_spec
from blockc.products import folder
from blockc.source import parse
from tests.paths import ROOT
from tests.spec_text import made
from tests.spec_variants import VARIANTS

OURS = sorted((ROOT / "blockc").rglob("*.py"))
BLOCK = (ROOT / "specs" / "block-4x4.yaml").read_text()

# What no source of blockc calls or imports.
BUILTINS = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "code", "codeop", "runpy", "ctypes"}
METHODS = {
    "os": {"system", "popen", "execv", "execve", "execvp", "execl", "spawnv", "spawnl", "posix_spawn"},
    "yaml": {"load", "load_all", "unsafe_load", "full_load", "unsafe_load_all", "full_load_all"},
    "torch": {"load", "save", "hub"},
    "subprocess": {"getoutput", "getstatusoutput"},
}
# And what stands in one place alone, which is why.
ONCE = {
    "exec_module": ["proof/runners.py"],  # model.py, of which blockc has the text
    "from_string": ["runtime/template.py"],  # in the sandbox
    "Popen": ["bench/turns.py", "diff/revision.py"],  # workers of its own, and git
}
OF_ITS_OWN = {"bench/machine.py": ["ctypes"]}  # the loop that reads memory, which it compiles itself


def breaches(tree: ast.AST) -> Iterator[str]:
    own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    ours = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and str(n.module).startswith("blockc."))
    own |= {a.asname or a.name for n in ours for a in n.names}
    for n in ast.walk(tree):
        match n:
            case ast.Call(func=ast.Name(id=name)) if name in BUILTINS - own:
                yield name
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in METHODS.get(module, ()):
                yield f"{module}.{name}"
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module for _ in names[:1] if module.split(".")[0] in MODULES)
                yield from (f"{module}.{a.name}" for a in names if a.name in METHODS.get(module, ()))
            case ast.keyword(arg="shell" | "allow_pickle" | "trust_remote_code", value=value):
                yield from [] if isinstance(value, ast.Constant) and not value.value else [f"{n.arg}="]
            case _:
                pass


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("eval('1')", "eval"),
        ("yaml.load(x)", "yaml.load"),
        ("from yaml import load", "yaml.load"),
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("f(x, shell=True)", "shell="),
        ("f(x, shell=y)", "shell="),
        ("torch.load(x)", "torch.load"),
        ("np.load(x, allow_pickle=True)", "allow_pickle="),
    ],
)
def test_the_check_sees(source: str, found: str) -> None:
    assert found in list(breaches(ast.parse(source)))


def test_no_source_of_blockc_runs_what_it_reads() -> None:
    places: dict[str, list[str]] = {name: [] for name in ONCE}
    for path in OURS:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert list(breaches(tree)) == OF_ITS_OWN.get(path.relative_to(ROOT / "blockc").as_posix(), []), path
        for n in ast.walk(tree):
            if isinstance(n, ast.Attribute) and n.attr in ONCE:
                places[n.attr].append(path.relative_to(ROOT / "blockc").as_posix())
    assert places == ONCE


# Emitted Python

SYNTAX = {
    "Add", "And", "AnnAssign", "Assign", "Attribute", "BinOp", "BitAnd", "BitOr", "BoolOp", "Call", "ClassDef",
    "Compare", "Constant", "Dict", "DictComp", "Div", "Eq", "Expr", "FloorDiv", "For", "FormattedValue", "FunctionDef",
    "GeneratorExp", "Gt", "GtE", "If", "IfExp", "Import", "ImportFrom", "In", "Invert", "Is", "IsNot", "JoinedStr",
    "List", "ListComp", "Load", "Lt", "LtE", "MatMult", "Mod", "Module", "Mult", "Name", "Not", "NotEq", "NotIn", "Or",
    "Pow", "Raise", "Return", "SetComp", "Slice", "Starred", "Store", "Sub", "Subscript", "Tuple", "USub", "UnaryOp",
    "With", "alias", "arg", "arguments", "comprehension", "keyword", "withitem",
}  # fmt: skip
IMPORTS = {
    "collections.abc": {"Callable", "Iterable", "Sequence"},
    "dataclasses": {"dataclass"}, "functools": {"partial"}, "json": None, "math": None, "pathlib": {"Path"},
    "safetensors.torch": {"load_file"}, "torch": {"Tensor", "nn"}, "torch.nn.functional": None,
    "torch.utils.checkpoint": {"checkpoint"}, "typing": {"Any", "Self"},
}  # fmt: skip
CALLED = {
    "FileNotFoundError", "KeyError", "Path", "ValueError", "any", "dict", "float", "hasattr", "isinstance", "len",
    "enumerate", "int", "iter", "load_file", "max", "partial", "range", "set", "sorted", "sum", "super", "tuple", "zip",
}  # fmt: skip
# Of the modules, what is reached: torch has os and sys among its attributes.
REACHED = {
    "torch": {
        "Size", "Tensor", "arange", "bfloat16", "bool", "cat", "compiler", "device", "dtype", "empty", "empty_like",
        "equal", "expm1", "export", "float32", "float64", "library", "minimum", "no_grad", "ones", "ones_like", "ops",
        "log", "promote_types", "searchsorted",
        "split", "sigmoid", "stack", "tanh", "tensor", "where", "zeros", "zeros_like",
    },
    "nn": {"Embedding", "LayerNorm", "Linear", "Module", "ModuleList", "Parameter", "RMSNorm", "init"},
    "F": {
        "binary_cross_entropy_with_logits", "cross_entropy", "gelu", "grouped_mm", "layer_norm", "linear", "normalize",
        "pad", "relu", "rms_norm", "scaled_dot_product_attention", "silu", "softmax", "softplus", "tanh",
    },
    "json": {"loads"},
    "math": {"ceil", "expm1", "inf", "log", "log2", "pi"},
}  # fmt: skip
METHODS_REFUSED = {
    "apply", "apply_", "load", "map_", "numpy", "open", "register_forward_hook", "save", "storage", "tofile",
    "unlink", "write_bytes", "write_text",
}  # fmt: skip


def strange(source: str) -> list[str]:
    """What emitted Python has and should not."""
    tree = ast.parse(source)
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)} | {"cls"}
    local = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    local |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    found: list[str] = []
    for n in ast.walk(tree):
        if type(n).__name__ not in SYNTAX:
            found.append(type(n).__name__)
        match n:
            case ast.Import(names=names):
                found += [f"import {a.name}" for a in names if a.name not in IMPORTS]
            case ast.ImportFrom(module=module, names=names):
                allowed = IMPORTS.get(str(module)) or set()
                found += [f"from {module} import {a.name}" for a in names if a.name not in allowed]
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in REACHED and module not in local:
                found += [] if name in REACHED[module] else [f"{module}.{name}"]
            case ast.Attribute(attr=name) if name in METHODS_REFUSED:
                found.append(f".{name}")
            case ast.Call(func=ast.Name(id=name)) if name not in CALLED | defined | local:
                found.append(f"{name}()")
            case ast.Name(id=name) if name.startswith("__"):
                found.append(name)
            case _:
                pass
        if isinstance(n, ast.Attribute) and n.attr.startswith("_"):
            bare = isinstance(n.value, ast.Call) and isinstance(n.value.func, ast.Name) and n.value.func.id == "super"
            found += [] if n.attr in ("__init__", "_apply") and bare else [f".{n.attr}"]
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "generated").glob("*/model.py")), ids=lambda path: path.parent.name)
def test_emitted_python_is_of_few_kinds(path: Path) -> None:
    assert strange(path.read_text(encoding="utf-8")) == []


@pytest.mark.costly
def test_so_is_that_of_every_kind_of_spec() -> None:
    for name, text in VARIANTS.items():
        source = made(text.replace('checkpoint: "0o17"', "")).model_py()
        assert strange(source) == [], name


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "from torch import hub",
        "torch.os.system('id')",
        "torch.load('x')",
        "open('/etc/passwd')",
        "eval('1')",
        "x.__class__",
        "Path('x').write_text('')",
        "lambda: 0",
        "nn.Module._call_impl",
        "__builtins__",
    ],
)
def test_the_list_refuses(line: str) -> None:
    source = (ROOT / "generated" / "gpt2" / "model.py").read_text(encoding="utf-8")
    assert strange(f"{source}\n{line}\n")


@pytest.mark.parametrize(
    "text",
    [
        'x"""\nimport os\nos.system("id")\n"""',
        "{{ 7 * 7 }}",
        "{% include '/etc/passwd' %}",
        "\\",
        '"""',
        "'''",
        "%s{0.__class__}",
    ],
)
def test_a_description_is_a_text(text: str) -> None:
    source = _emitted(text)
    assert strange(source) == []
    assert _without_texts(ast.parse(source)) == _without_texts(ast.parse(_emitted("plain")))


def _emitted(description: str) -> str:
    line = f"description: {json.dumps(description)}"
    text = re.sub(r"^description: .*$", lambda _: line, BLOCK, flags=re.MULTILINE)
    return compile_spec(from_tree(parse(text, "x.yaml"))).model_py()


def _without_texts(tree: ast.AST) -> str:
    for n in ast.walk(tree):
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant):
            n.value.value = ""
    return ast.dump(tree)


@pytest.mark.parametrize(
    "name",
    ['x"""\nimport os', "../../x", "/etc/x", "CON", "x" * 300, "{{7*7}}", "__import__", "a b", "-rf", ".hidden", "ｘ"],
)
def test_a_name_is_a_word(name: str) -> None:
    text = BLOCK.replace("name: block-4x4", f"name: {json.dumps(name)}")
    assert any("name" in finding.message for finding in check_text(text, "x.yaml"))


# A build's folder


def test_the_python_of_a_foreign_build_is_not_run(tmp_path: Path) -> None:
    """Its manifest agrees with it: whoever made the folder made both."""
    out, mark = tmp_path / "out", tmp_path / "ran"
    api.build(api.compile(ROOT / "specs" / "block-4x4.yaml"), out, proof=False)
    source = (out / "model.py").read_text() + f"\nopen({str(mark)!r}, 'w').close()\n"
    (out / "model.py").write_text(source)
    manifest = json.loads((out / folder.MANIFEST).read_text())
    manifest["files"]["model.py"] = folder.digest(source.encode())
    (out / folder.MANIFEST).write_text(json.dumps(manifest))
    assert folder.check_build(out).outdated == ("model.py",)
    assert not mark.exists()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"files": ' + "9" * 5000 + "}", "\xff", "null"])
def test_a_foreign_manifest_is_no_fault_of_ours(text: str, tmp_path: Path) -> None:
    (tmp_path / folder.MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(folder.FolderError, match="not a manifest"):
        folder.check_build(tmp_path)


def test_a_manifest_of_any_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / folder.MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(folder.FolderError, match="larger than 16,777,216 bytes"):
        folder.check_build(tmp_path)


# The figures of docs/security.md

ROW = re.compile(r"^\| .* \| ([\d,]+) \| `([\w.]+)\.(\w+)` \|$", re.MULTILINE)


def test_the_limits_are_those_of_the_documentation() -> None:
    rows = ROW.findall((ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
    for figure, module, name in rows:
        assert getattr(importlib.import_module(f"blockc.{module}"), name) == int(figure.replace(",", "")), name
    listed = {f"{module}.{name}" for _, module, name in rows}
    limits = {
        ".".join((*path.relative_to(ROOT / "blockc").with_suffix("").parts, target.id))
        for path in OURS
        for n in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(n, ast.Assign)
        for target in n.targets
        if isinstance(target, ast.Name) and re.match(r"_?(MAX_|MOST|LIMIT|WAIT)", target.id)
    }
    assert limits <= listed and len(listed) == len(rows) > 10
