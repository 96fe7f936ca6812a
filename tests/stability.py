"""What docs/stability.md promises, as data: what is frozen in data/stability/, and what blockc has now.

    python -m tests.stability

adds to the data what has come since, at a release. Nothing there is changed or taken away by it: what blockc no longer
has is listed, the file stays as it is, and the command ends with 1.

language.json    the keys of a spec and their words, since 0.1.0
specs/           the specs that came with a release; meanings.json: what they mean
api.json         the names of blockc.api
commands.json    the command line
outputs.json     the keys of each output that programs read
manifests/       manifest.json of each format of a build's folder
codes.txt        the codes of findings, which `python -m tests.bad.renew` adds to
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import inspect
import io
import json
import os
import shutil
import sys
import tempfile
import typing
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import tokenizers
import typer

from blockc import api
from blockc.cli import app, run_guarded
from blockc.graph.target import Target
from blockc.ir import parameters_of
from blockc.products.manifest import FORMAT, MANIFEST
from tests.checkpoints import save, tensors, twin
from tests.paths import ROOT

HERE = ROOT / "tests" / "data" / "stability"
SPECS = HERE / "specs"
# Of these the attributes that docs/stability.md names are promised; of all other classes each public one is.
PARTLY = {
    "Compiled": ("graph_txt", "model_py", "onnx", "parameters", "resolved_yaml", "spec", "warnings"),
    "Policy": ("keys",),
    "Report": ("batch", "context", "depth", "dtype", "json", "memory", "name", "parameters", "vocab", "width"),
    "Spec": ("layers", "name", "top"),
}
MADE = ("Target",)  # classes that a caller makes
Tree = Any  # of JSON


def build(folder: Path) -> Path:
    """A build whose manifest has every key: linked weights with digests, a product."""
    small = twin("llama3-8b")
    checkpoint = save(folder / "weights" / "model.safetensors", tensors(small)).parent
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 2}')
    target = Target("cpu", logits="last")
    out = folder / "out"
    api.build(small, out, target=target, proof=False, weights=checkpoint, mode="link", deep=True, products=["genai"])
    return out


def save_tokenizer(folder: Path) -> None:
    """Of two words."""
    made: Any = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))


# What there is now


def language() -> dict[str, list[str]]:
    """Each key of a spec by its path, with the words that may stand there."""
    schema = api.schema()
    found: dict[str, set[str]] = {}

    def walk(node: dict[str, Any], at: str, inside: frozenset[str]) -> None:
        if (name := node.get("$ref")) is not None:
            if name not in inside:
                walk(_at(schema, name), at, inside | {name})
            return
        for word in [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]:
            found.setdefault(at, set()).add(str(word))
        for key, value in node.get("properties", {}).items():
            found.setdefault(f"{at}.{key}".lstrip("."), set())
            walk(value, f"{at}.{key}".lstrip("."), inside)
        for value in (each for word in ("anyOf", "oneOf", "allOf") for each in node.get(word, ())):
            walk(value, at, inside)
        for word, below in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(node.get(word), dict):
                walk(node[word], at + below, inside)

    walk(schema, "", frozenset())
    return {key: sorted(words) for key, words in sorted(found.items())}


def _at(schema: dict[str, Any], reference: str) -> dict[str, Any]:
    for word in filter(None, reference.removeprefix("#").split("/")):
        schema = schema[word]
    return schema


def meanings() -> dict[str, dict[str, Any]]:
    """What each frozen spec means: its hash, its parameters, and their names and shapes, as model.py has them."""
    return {path.stem: meaning(path) for path in sorted(SPECS.glob("*.yaml"))}


def meaning(path: Path) -> dict[str, Any]:
    model = api.compile(path)
    shapes = {name: list(param.shape) for name, param in sorted(parameters_of(model.function).items())}
    return {
        "semantic_hash": model.decoder.semantic_hash,
        "parameters": model.parameters,
        "names_and_shapes": hashlib.sha256(json.dumps(shapes).encode()).hexdigest(),
    }


def names() -> dict[str, Any]:
    """Of blockc.api: what a function takes, what a class has, and what an error is."""
    return {name: _named(name, getattr(api, name)) for name in sorted(api.__all__)}


def _named(name: str, value: Any) -> dict[str, Any]:
    if inspect.isfunction(value):
        return {"takes": _taken(value)}
    bases = {
        base.__name__
        for base in value.__mro__[1:-1]
        if base.__name__ in api.__all__ or hasattr(builtins, base.__name__)
    }
    own = {key for base in value.__mro__ if base.__module__.startswith("blockc") for key in vars(base)}
    fields = {*getattr(value, "__dataclass_fields__", ()), *getattr(value, "model_fields", ())}
    has = PARTLY.get(name) or sorted(key for key in own | fields if not key.startswith("_"))
    assert set(has) <= own | fields, f"{name} has not all of {has}"
    return {"is": sorted(bases), "has": list(has)} | ({"takes": _taken(value)} if name in MADE else {})


def _taken(value: Any) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    for at, parameter in enumerate(inspect.signature(value).parameters.values()):
        by_name = parameter.kind is parameter.KEYWORD_ONLY
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        taken[parameter.name] = {"place": "by name" if by_name else at, "required": required} | _default(parameter)
    return taken


def _default(parameter: inspect.Parameter) -> dict[str, str]:
    """Where it is a value that text can say."""
    value = parameter.default
    plain = value is None or isinstance(value, bool | int | float | str | tuple)
    return {"default": repr(value)} if plain else {}


def commands() -> dict[str, Any]:
    """The commands, their arguments and options, and the words that these take."""
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for each in app.registered_commands:
        assert each.callback is not None
        name = each.name or each.callback.__name__
        words = {key: _words(p.annotation) for key, p in inspect.signature(each.callback).parameters.items()}
        found[name] = {"takes": dict(_options(group.commands[name].params, words))}
    return dict(sorted(found.items()))


def _words(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is typing.Literal:
        return sorted(map(str, typing.get_args(annotation)))
    return sorted({word for inner in typing.get_args(annotation) for word in _words(inner)})


def _options(params: list[Any], words: dict[str, list[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    places = count()
    for each in params:
        kind = "flag" if getattr(each, "is_flag", False) else "values" if each.nargs == -1 else "value"
        said: dict[str, Any] = {"required": each.required, "kind": kind}
        said |= {"words": words[each.name]} if words[each.name] else {}
        argument = not each.opts[0].startswith("-")
        named = [f"argument {next(places)}"] if argument else [*each.opts, *each.secondary_opts]
        yield from ((name, said) for name in named)


OUTPUTS = (
    "check wrong.yaml --format json",
    "check wrong.yaml --format sarif",
    "check wrong.yaml --format github",
    "show smollm3-3b.yaml --json --device-memory 80GB",
    "list --json",
    "diff gpt2.yaml llama3-8b.yaml --json",
    "verify block-4x4.yaml --json",
    "doctor --json",
    "verify build/out --quality --against build/out --text text.txt --window 8 --json",
)


def outputs() -> dict[str, dict[str, str]]:
    """The types of all that a program finds in an output, by path."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for path in SPECS.glob("*.yaml"):
            shutil.copy(path, folder)
        text = Path("llama3-8b.yaml").read_text(encoding="utf-8")
        Path("wrong.yaml").write_text(text.replace("kv_heads: 8", "kv_heads: 5"), encoding="utf-8")
        Path("text.txt").write_text("b a a b " * 8)
        save_tokenizer(build(Path("build")))
        return {line: shape(_output(line)) for line in OUTPUTS}


def _output(line: str) -> Tree:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        run_guarded(lambda: app(line.split(), standalone_mode=False))
    return _annotation(said.getvalue()) if line.endswith("github") else json.loads(said.getvalue())


def _annotation(text: str) -> Tree:
    """::error file=F,line=1,title=T::message"""
    _, command, message = text.splitlines()[0].split("::", 2)
    level, _, properties = command.partition(" ")
    return {level: dict(each.split("=", 1) for each in properties.split(",")), "message": message}


_TYPES: dict[type, str] = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"
}  # fmt: skip


def shape(value: Tree) -> dict[str, str]:
    """The types that stand at each path: findings[].line -> number."""
    found: dict[str, set[str]] = {}

    def walk(value: Tree, at: str) -> None:
        found.setdefault(at or "$", set()).add(_TYPES[type(value)])
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{at}.{key}".lstrip("."))
        elif isinstance(value, list):
            for inner in value:
                walk(inner, f"{at}[]")

    walk(value, "")
    return {at: "|".join(sorted(types)) for at, types in sorted(found.items())}


# What was promised, and what became of it

FROZEN = {
    "language.json": language,
    "meanings.json": meanings,
    "api.json": names,
    "commands.json": commands,
    "outputs.json": outputs,
}


def frozen(name: str) -> Tree:
    path = HERE / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def broken(before: Tree, now: Tree, at: str = "") -> list[str]:
    """What was there and is not, or is another; and what a caller must say now and need not before."""
    if isinstance(before, dict) and isinstance(now, dict):
        gone = [f"{at}/{key}: gone" for key in before if key not in now]
        asked = [
            f"{at}/{key}: required, and was not there"
            for key in now
            if key not in before and isinstance(now[key], dict) and now[key].get("required")
        ]
        kept = [fault for key in before if key in now for fault in broken(before[key], now[key], f"{at}/{key}")]
        return gone + asked + kept
    if isinstance(before, list) and isinstance(now, list):
        return [f"{at}/{each}: gone" for each in before if each not in now]
    if isinstance(before, str) and isinstance(now, str) and set(now.split("|")) <= set(before.split("|")):
        return []  # of the types that an output was said to have
    if at.endswith("/required") and (before, now) == (True, False):
        return []  # a caller may still say it
    return [] if before == now else [f"{at}: {now}, and was {before}"]


def together(before: Tree, now: Tree) -> Tree:
    """What was there as it was, and what has come."""
    if isinstance(before, dict) and isinstance(now, dict):
        every = dict.fromkeys(sorted([*before, *now]))
        return {key: together(before.get(key, now.get(key)), now.get(key, before.get(key))) for key in every}
    if isinstance(before, list) and isinstance(now, list):
        return sorted({*before, *now})
    return before


def text(tree: Tree, at: str = "") -> str:
    """JSON in which what fits stands on a line."""
    line = json.dumps(tree, ensure_ascii=False)
    if not isinstance(tree, dict):
        return line
    if len(at + line) < 110 and not any(isinstance(value, dict) for value in tree.values()):
        return line
    inner = (f"{at} {json.dumps(key, ensure_ascii=False)}: {text(value, at + ' ')}" for key, value in tree.items())
    return "{\n" + ",\n".join(inner) + f"\n{at}}}"


def renewed(name: str) -> list[str]:
    """Adds to a file what has come; where something is gone it says so, and the file stays as it is."""
    before, now = frozen(name), FROZEN[name]()
    if faults := broken(before, now):
        return [f"{name}: {fault}" for fault in faults]
    (HERE / name).write_text(text(together(before, now)) + "\n", encoding="utf-8")
    return []


def main() -> int:
    for path in sorted((ROOT / "specs").glob("*.yaml")):
        if not (SPECS / path.name).exists():
            shutil.copy(path, SPECS)
    if not (own := HERE / "manifests" / f"{FORMAT}.json").exists():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(build(Path(folder)) / MANIFEST, own)
    faults = [fault for name in FROZEN for fault in renewed(name)]
    print("\n".join(faults) or "nothing that was promised is gone")
    return 1 if faults else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
