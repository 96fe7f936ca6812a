"""What editors and services read: the JSON schema, the hooks of pre-commit, the action of GitHub, the job of GitLab."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import yaml

from blockc.cli import app
from blockc.diagnostics import CODES, Code
from blockc.diagnostics.examples import BASE, change_base, example_file
from blockc.language.spec import from_tree, resolve_to_yaml
from blockc.language.spec.keys import Document
from blockc.language.spec.schema import language_schema
from blockc.source import SpecError, parse, to_plain
from tests import spec_text
from tests.bad.renew import of_a_file
from tests.paths import ROOT
from tests.spec_variants import VARIANTS

SPECS = sorted((ROOT / "specs").glob("*.yaml"))
SCHEMA: dict[str, Any] = json.loads((ROOT / "blockc.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def faults(text: str | bytes) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(to_plain(parse(text, "s.yaml")))]


# The schema


def test_the_committed_schema_is_current() -> None:
    """blockc schema > blockc.schema.json writes it anew."""
    assert language_schema() == SCHEMA
    assert json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n" == (ROOT / "blockc.schema.json").read_text("utf-8")


def test_the_schema_is_one_and_all_that_it_refers_to_is_there() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    text = json.dumps(SCHEMA)
    named = set(re.findall(r'"\$ref": "#/definitions/(\w+)"', text))
    assert named == set(SCHEMA["definitions"])
    assert "null" not in text and '"title"' not in text.replace('"title": "A transformer, for blockc"', "")


def properties(said: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key that an editor proposes; what `if`, `then` and `not` say of keys explains none."""
    if isinstance(said, list):
        for each in said:
            yield from properties(each)
    elif isinstance(said, dict):
        yield from said.get("properties", {}).items()
        for key, inner in said.items():
            if key not in ("if", "then", "not", "allOf") or "$ref" in json.dumps(inner):
                inner = list(inner.values()) if key in ("properties", "definitions") else inner
                yield from properties(inner)


def test_every_key_is_explained() -> None:
    found = list(properties(SCHEMA))
    assert {key for key, _ in found} >= {*Document.model_fields, "theta", "residual", "sum", "min", "kinds", "std"}
    for key, said in found:
        assert isinstance(said, dict) and len(said.get("description", "")) > 15, key
    for key, said in found:
        assert set(said) - {"description"}, f"{key} may be anything"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_schema_takes_the_specs(path: Path) -> None:
    assert faults(path.read_bytes()) == []
    assert faults((ROOT / "generated" / path.stem / "spec.resolved.yaml").read_bytes()) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_schema_takes_what_a_check_takes(variant: str) -> None:
    """In the words that the spec has, and resolved: `none` in a kind, a bias of none."""
    wanted = ["'0o17' is not valid under any of the given schemas"] if variant == "text" else []  # of no layout
    text = spec_text.changed(VARIANTS[variant])
    assert faults(text) == wanted
    assert faults(resolve_to_yaml(from_tree(parse(text, "s.yaml")))) == wanted


# What depends on two values, on a file or on another place of the spec: the schema cannot see it.
UNSEEN = {
    *("BLC201", "BLC202", "BLC204", "BLC205", "BLC206", "BLC207", "BLC209", "BLC213", "BLC215", "BLC216", "BLC217"),
    *("BLC218", "BLC219", "BLC220", "BLC221", "BLC222", "BLC223", "BLC226", "BLC232", "BLC233", "BLC234", "BLC235"),
    *("BLC227", "BLC228", "BLC229", "BLC230", "BLC236", "BLC238", "BLC240", "BLC242", "BLC243"),
    *("BLC244", "BLC245", "BLC246", "BLC301"),
}


def readable(code: Code) -> bool:
    if not of_a_file(code) or code.severity != "error":
        return False
    try:
        parse(example_file(code, code.bad), "s.yaml")
    except SpecError:
        return False
    return True


@pytest.mark.parametrize("code", [code for code in CODES.values() if readable(code)], ids=lambda code: code.name)
def test_the_schema_refuses_what_it_can_see(code: Code) -> None:
    assert faults(example_file(code, code.good)) == []
    assert bool(faults(example_file(code, code.bad))) != (code.name in UNSEEN)


TAKEN = [
    "attention: {heads: 4, kv_heads: none, head_dim: none, window: none, rope: none, bias: none}\npositions: none\n",
    "mlp: {type: swiglu, width: 192, bias: []}\n",
    "layers: {first: [{a: 1}], pattern: [a+b], last: [b], kinds: {a: {}, b: {attention: {window: 8}}}}\n",
    "attention: {rope: {theta: 1e4, pairing: half}}\n"
    "layers: {pattern: [a], kinds: {a: {attention: {heads: 4}, parts: {x: {norm: {eps: 1e-6}}, y: none}}}}\n",
    "norm: {type: rms, eps: 1e-5}\nblock: [attention, [{residual: [mlp]}, {sum: [[a_norm], [{residual: [x]}]]}]]\n",
    "expect: {parameters: {min: 1, max: 2e9}, kv_values_per_token: {max: 0}, layers: {a: 1}}\n",
    "init: {std: 0.02}\nembedding: {scale: sqrt_width}\nhead: {tied: false, bias: true, softcap: 30}\n",
    "embedding: {scale: {rsqrt: 2}}\n",
    "checkpoint: none\nlayers: none\nexpect: none\n",
    "norm: none\nblock: [attention, mlp]\n",
]
REFUSED = [
    "attention: {heads: true}\npositions: none\n",
    "embedding: {scale: {}}\n",
    "embedding: {scale: {rsqrt: 0}}\n",
    "attention: {heads: 4, window: 0}\npositions: none\n",
    "attention: {heads: 4, rope: {theta: 1e4}}\n",
    "attention: {heads: 4, rope: {theta: 1e4, pairing: half, scaling: {type: llama3, factor: 8}}}\n",
    "attention: none\npositions: null_\n",
    "mlp: {type: gelu, width: 4, bias: [gate]}\n",
    "norm: {type: rms, eps: 1e-5, offset: 1, bias: true, placement: pre}\n",
    "norm: {type: rms, eps: -1, placement: pre}\n",
    "norm: {type: rms, eps: 1e-5}\n",
    "head: {bias: true}\n",
    "checkpoint: lama\n",
    "expect: {parameters: {}}\n",
    "expect: {parameters: {maximum: 1}}\n",
    "expect: {kv_values_per_token: 1.5}\n",
    "layers: {pattern: [a]}\n",
    "layers: {pattern: [A], kinds: {a: {}}}\n",
    "layers: {pattern: [a], kinds: {A: {}}}\n",
    "layers: {pattern: [a], kinds: {a: {width: 3}}}\n",
    "layers: {pattern: [{a: 1, b: 2}], kinds: {a: {}, b: {}}}\n",
    "norm: {type: rms, eps: 1e-5}\nblock: []\n",
    "norm: {type: rms, eps: 1e-5}\nblock: [{residual: [a], sum: [[b], [c]]}]\n",
    "norm: {type: rms, eps: 1e-5}\nblock: [{sum: [[b]]}]\n",
    "parts: {x: {norm: {placement: pre}}}\n",
    "parts: {none: {mlp: {width: 8}}}\n",
    "depth: 10001\n",
]


@pytest.mark.parametrize("keys", TAKEN)
def test_the_schema_takes_what_the_language_has(keys: str) -> None:
    assert faults(change_base(keys)) == []


@pytest.mark.parametrize("keys", REFUSED)
def test_the_schema_refuses(keys: str) -> None:
    assert faults(change_base(keys)) != []


def test_an_unknown_key_is_refused_everywhere() -> None:
    """In every mapping of the language, whichever class it is of."""
    for name, model in {"Document": SCHEMA, **SCHEMA["definitions"]}.items():
        if "properties" in model:
            assert model["additionalProperties"] is False, name


# pre-commit

HOOKS: list[dict[str, str]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


def run(command: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, cwd=cwd, env={**os.environ, "PATH": path, **env}, capture_output=True, text=True)


@pytest.mark.costly
@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_runs_and_fails_where_it_should(hook: dict[str, str], tmp_path: Path) -> None:
    """As pre-commit calls it: the entry, and the files that changed."""
    assert {"id", "name", "entry", "language", "files"} <= set(hook) and hook["language"] == "python"
    (tmp_path / "specs").mkdir()
    good, bad = "specs/good.yaml", "specs/bad.yml"
    (tmp_path / good).write_text(BASE)
    (tmp_path / bad).write_text("name: a\nblockc: 1\n")
    assert all(re.search(hook["files"], file) for file in (good, bad, f"a/{good}"))
    assert not re.search(hook["files"], "other/a.yaml") and not re.search(hook["files"], "specs/a.py")
    assert run([*shlex.split(hook["entry"]), good], tmp_path).returncode == 0
    assert run([*shlex.split(hook["entry"]), good, bad], tmp_path).returncode == 1


# The action

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, CHECK = ACTION["runs"]["steps"]


def test_no_input_becomes_part_of_a_script() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for step in (INSTALL, CHECK):
        assert "${{" not in step["run"] and step["shell"] == "bash"
    assert INSTALL["env"] == {"ACTION": "${{ github.action_path }}"}
    assert CHECK["env"] == {name.upper(): f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]}
    assert all(said["description"] and "default" in said for said in ACTION["inputs"].values())


def act(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The second step with these inputs, blockc being where the first one puts it."""
    assert set(inputs) <= set(ACTION["inputs"])
    given = {name: inputs.get(name, said["default"]) for name, said in ACTION["inputs"].items()}
    bin_ = folder / "tmp" / "blockc" / "bin"
    if not bin_.exists():
        bin_.mkdir(parents=True)
        (bin_ / "blockc").symlink_to(Path(sys.executable).parent / "blockc")
    env = {name.upper(): value for name, value in given.items()}
    return run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", CHECK["run"]], folder,
               **env, RUNNER_TEMP=str(folder / "tmp"))  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "a b.yaml").write_text(BASE)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "bad.yaml").write_text(BASE.replace("heads: 4", "heads: 5"))
    (tmp_path / "wide.yaml").write_text(BASE.replace("width: 192", "width: 170"))
    (tmp_path / "policy.yaml").write_text("policy: 1\nparameters: {max: 1}\n")
    return tmp_path


@pytest.mark.costly
def test_the_action_checks(checkout: Path) -> None:
    assert act(checkout).returncode == 0
    done = act(checkout, paths="specs/a b.yaml\n\nmore/*.yaml\n")
    assert done.returncode == 1
    assert re.search(r"^::error file=more/bad\.yaml,line=7,", done.stdout, re.MULTILINE)
    assert act(checkout, paths="wide.yaml").returncode == 0
    assert act(checkout, paths="wide.yaml", strict="true").returncode == 1
    done = act(checkout, policy="policy.yaml", format="junit", output="out.xml")
    assert (done.returncode, done.stdout) == (1, "")
    assert "BLC310" in (checkout / "out.xml").read_text()


@pytest.mark.parametrize(
    "inputs",
    [
        {"paths": ""},
        {"strict": "yes"},
        {"format": "xml"},
        {"paths": "$(touch hit)"},
        {"paths": "`touch hit`; touch hit"},
        {"paths": "--output=hit\nspecs"},
        {"policy": "'; touch hit; '"},
        {"strict": "true; touch hit"},
        {"format": "json --output hit"},
    ],
)
def test_an_input_is_a_word_and_nothing_else(inputs: dict[str, str], checkout: Path) -> None:
    assert act(checkout, **inputs).returncode == 2
    assert not (checkout / "hit").exists()


def test_the_action_installs_itself(tmp_path: Path) -> None:
    """python3 makes a venv, whose own Python gets the checkout: with spaces in its path, and nothing else."""
    stub = tmp_path / "bin" / "python3"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\nmkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "$0|$1|$2|$#" >> "$LOG"\n'
                    'for last; do :; done; echo "$last" >> "$LOG"\n')  # fmt: skip
    stub.chmod(0o755)
    env = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
    command = ["bash", "-eo", "pipefail", "-c", INSTALL["run"]]
    temp, own = tmp_path / "t t", tmp_path / "own checkout"
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **env, "RUNNER_TEMP": str(temp), "ACTION": str(own)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text().splitlines() == [
        f"{stub}|-m|venv|3", f"{temp}/blockc", f"{temp}/blockc/bin/python|-m|pip|6", str(own),
    ]  # fmt: skip


# The docs of them


def snippets(page: str) -> list[Any]:
    text = (ROOT / "docs" / page).read_text()
    return [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def test_the_docs_use_inputs_and_hooks_that_are_there() -> None:
    shown = snippets("ci.md")
    steps = [step for each in shown for step in (each if isinstance(each, list) else jobs(each)) if "uses" in step]
    ours = [step.get("with", {}) for step in steps if step["uses"].startswith("OWNER/blockc@")]
    assert len(ours) == 2 and all(set(given) <= set(ACTION["inputs"]) for given in ours)
    (hooks,) = (each["repos"][0]["hooks"] for each in shown if isinstance(each, dict) and "repos" in each)
    assert [hook["id"] for hook in hooks] == [hook["id"] for hook in HOOKS]
    table = re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\|", (ROOT / "docs" / "ci.md").read_text(), re.MULTILINE)
    assert dict(table) == {name: said["default"] for name, said in ACTION["inputs"].items()}


def jobs(shown: Any) -> list[dict[str, Any]]:
    return [step for job in (shown or {}).get("jobs", {}).values() for step in job["steps"]]


def test_the_job_of_gitlab_runs(checkout: Path) -> None:
    """Its lines but the installation, in a folder of the shape that it is for."""
    (job,) = (each["specs"] for each in snippets("ci.md") if isinstance(each, dict) and "specs" in each)
    install, *lines = job["script"]
    assert install.startswith("pip install")
    done = run(["bash", "-e", "-c", "\n".join(lines)], checkout)
    assert done.returncode == 1, done.stderr
    report = ElementTree.parse(checkout / job["artifacts"]["reports"]["junit"])
    assert report.find(".//failure") is not None


def test_the_commands_that_texts_name_are_there() -> None:
    names = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    for file in ("docs/ci.md", "docs/policy.md", ".pre-commit-hooks.yaml", "action.yml"):
        used = re.findall(r"(?:^|[`$-] |entry: |[`/])blockc\"? (\w+)", (ROOT / file).read_text(), re.MULTILINE)
        assert used and set(used) <= {*names, "check"}, file
