"""The command line. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from blockc.source import Finding

app = typer.Typer(
    name="blockc",
    help="A compiler for transformer models: one YAML spec, the same function in PyTorch and ONNX, proved.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

OK, WRONG, USAGE, ENVIRONMENT, INTERRUPTED = 0, 1, 2, 3, 130

Set = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Say a key of the spec anew, such as norm.placement=post."),
]
SpecPath = Annotated[
    Path,
    typer.Argument(
        metavar="SPEC", help="A spec file, or the name of a spec that comes with blockc.", show_default=False
    ),
]
NOTHING: list[str] = []


class Logits(StrEnum):
    all = "all"
    last = "last"


class Provider(StrEnum):
    cpu = "cpu"


class Dtype(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    fp8 = "fp8"
    int8 = "int8"


class Float(StrEnum):
    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    context.obj = debug


@app.command()
def check(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Spec files, or folders of them.", show_default=False)
    ],
    assignments: Set = NOTHING,
) -> None:
    """Read specs and say what is wrong, at file:line:column. Exit code 1 if anything is."""
    from blockc import api

    files = [file for path in paths for file in api.spec_files(_there(path))]
    if not files:
        _stop(USAGE, f"no spec files below {', '.join(map(str, paths))}")
    wrong = 0
    for file in files:
        findings = api.check(file, assignments)
        wrong += bool(findings)
        _print_findings(findings)
        if not findings:
            print(f"{_plain(str(file))}: ok")
    if wrong:
        _stop(WRONG, f"{wrong} of {len(files)} specs are wrong")


@app.command()
def build(
    spec: SpecPath,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; generated/<name> by default.")
    ] = None,
    logits: Annotated[
        Logits, typer.Option(help="model.onnx gives logits of all tokens or of the last one.")
    ] = Logits.all,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Write without proving the twin.")] = False,
    require_proof: Annotated[
        bool, typer.Option("--require-proof", help="Fail where a backend to prove with is missing.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A .safetensors or .gguf file, or a folder: model.onnx then has weights."),
    ] = None,
    dtype: Annotated[
        Float | None, typer.Option(help="What a model with weights computes in; fp32 by default.", show_default=False)
    ] = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="Copy the weights to model.onnx.data instead of linking their files.")
    ] = False,
    ep: Annotated[
        Provider | None,
        typer.Option(
            help="Write model.onnx in the operators of this provider of onnxruntime; portable ONNX by default."
        ),
    ] = None,
    assignments: Set = NOTHING,
) -> None:
    """Write model.py, model.onnx and their report, all or nothing, and prove the spec's tiny twin."""
    from blockc import api

    if weights is None and (pack or dtype is not None):
        _stop(USAGE, f"{'--pack' if pack else '--dtype'} speaks of weights: give them with --weights PATH")

    if ep is not None and dtype not in (None, Float.fp32):
        _stop(USAGE, f"--ep {ep.value} is for fp32, and --dtype says {dtype.value if dtype else ''}")
    if no_verify and require_proof:
        _stop(USAGE, "--no-verify and --require-proof say opposite things")
    if assignments and out is None:
        _stop(USAGE, "--set makes another model: say where it goes with --out DIR")
    model = api.compile(_file(spec), assignments)
    try:
        built = api.build(
            model,
            out,
            logits=logits.value,
            proof=not no_verify,
            require_proof=require_proof,
            weights=None if weights is None else _there(weights),
            mode="pack" if pack else "link",
            dtype="fp32" if dtype is None else dtype.value,
            dialect="standard" if ep is None else "ort",
        )
    except api.NotProvedError as error:
        _stop(ENVIRONMENT if error.proof.holds else WRONG, f"{error}; nothing was written")
    for note in built.notes:
        print(_plain(note))
    for path in built.files:
        print(f"{path}  {path.stat().st_size:,} bytes")
    print(built.line)


@app.command()
def show(
    specs: Annotated[
        list[Path], typer.Argument(metavar="SPEC...", help="One spec, or several for a row each.", show_default=False)
    ],
    expanded: Annotated[
        bool, typer.Option("--expanded", help="The block algebra that the spec's words stand for.")
    ] = False,
    graph: Annotated[bool, typer.Option("--graph", help="The graph, function by function.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
    context: Annotated[
        int | None, typer.Option(metavar="T", min=1, help="Tokens; the spec's context by default.")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="B", min=1, help="Sequences.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="Of weights, cache and activations.")] = Dtype.bf16,
    device_memory: Annotated[
        str | None, typer.Option(metavar="M", help="Memory of one device, such as 80GB or 80GiB.")
    ] = None,
    assignments: Set = NOTHING,
) -> None:
    """Draw the block, list its matrices, and count parameters, FLOPs, cache and memory."""
    from blockc import api
    from blockc.show import expanded as expand
    from blockc.show import rows

    if sum((expanded, graph, as_json)) > 1:
        _stop(USAGE, "--expanded, --graph and --json are three answers: ask for one")
    memory = _bytes(device_memory) if device_memory else None
    models = [api.compile(_file(spec), assignments) for spec in specs]
    figures = [api.figures(m, context=context, batch=batch, dtype=dtype.value, device_memory=memory) for m in models]
    if as_json:
        data = [f.json() for f in figures]
        print(json.dumps(data[0] if len(data) == 1 else data, indent=2))
    elif expanded or graph:
        print("\n".join(expand(m.decoder) if expanded else m.graph_txt() for m in models), end="")
    elif len(models) == 1:
        print(api.show(models[0], figures[0]))
    else:
        print(rows(figures))


@app.command()
def verify(
    path: Annotated[
        Path, typer.Argument(metavar="SPEC|DIR", help="A spec file, or the folder of a build.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The golden matrix as JSON.")] = False,
    assignments: Set = NOTHING,
) -> None:
    """Run the golden matrix: every backend on every variant against the float64 oracle."""
    from blockc import api

    checked = api.verify(path if path.is_dir() else _file(path), assignments)
    if checked.changed:
        _stop(WRONG, "\n".join(f"{_plain(str(path / name))}: changed since it was built" for name in checked.changed))
    if checked.outdated:
        _stop(WRONG, "\n".join(f"{_plain(str(path / name))}: not what its spec gives now" for name in checked.outdated))
    proof = checked.proof
    assert proof is not None
    print(json.dumps(proof.data(), indent=2) if as_json else proof.table())
    if not proof.holds:
        raise typer.Exit(WRONG)
    if proof.missing:
        raise typer.Exit(ENVIRONMENT)


@app.command()
def trace(
    spec: SpecPath,
    tokens: Annotated[str, typer.Option(metavar="IDS", help="Token ids, such as 3,1,4.")],
    seed: Annotated[int, typer.Option(help="Of the random parameters.")] = 0,
    assignments: Set = NOTHING,
) -> None:
    """Print the residual stream after each addition, for the last token. A large spec is traced on its twin."""
    from blockc import api

    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", tokens):
        _stop(USAGE, f"--tokens {tokens}: expected ids such as 3,1,4")
    model = api.twin(api.compile(_file(spec), assignments))
    try:
        steps = api.trace(model, [int(t) for t in tokens.split(",")], seed)
    except ValueError as error:
        _stop(USAGE, f"--tokens {tokens}: {error}")
    wide = max(len(step.name) for step in steps)
    print(f"{model.spec.name}, width {model.spec.top.width}: the stream of the last token")
    print(f"{'after':{wide}}  {'rms':>8}  {'largest':>8}  first values")
    for step in steps:
        last = step.stream[-1]
        print(
            f"{step.name:{wide}}  {step.rms[-1]:8.4f}  {abs(last).max():8.4f}  "
            + " ".join(f"{v:8.4f}" for v in last[:6])
        )


@app.command()
def schema() -> None:
    """Print the JSON schema of the spec language, for editors."""
    from blockc.spec import Document

    print(json.dumps(Document.model_json_schema(), indent=2))


def _there(path: Path) -> Path:
    if not path.exists():
        _stop(USAGE, f"{_plain(str(path))}: no such file or folder")
    return path


def _file(path: Path) -> Path:
    """A spec's file; a name alone is that of a spec that comes with blockc."""
    from blockc import api

    if not path.exists() and str(path) in (specs := api.bundled()):
        return specs[str(path)]
    if _there(path).is_dir():
        _stop(USAGE, f"{_plain(str(path))}: is a folder, and one spec is wanted")
    return path


_UNITS = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def _bytes(text: str) -> int:
    """192GB is 192e9, 192GiB is 192 * 2^30."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    if not found or found[2].upper() not in _UNITS or float(found[1]) == 0:
        _stop(USAGE, f"--device-memory {text}: expected a size such as 80GB or 80GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _print_findings(findings: tuple[Finding, ...]) -> None:
    from blockc.source import render

    for finding in findings:
        print(render(finding), file=sys.stderr)


def _plain(text: str) -> str:
    """No control character of a name reaches the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _stop(code: int, message: str) -> NoReturn:
    print(f"blockc: {message}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    """Runs a command; every error becomes a message and an exit code."""
    sys.exit(_guarded(lambda: app(standalone_mode=False)))


# typer carries a click of its own in some versions: the base of its BadParameter is that click's error of usage.
_UsageError: Any = typer.BadParameter.__bases__[0]


def _guarded(run: Callable[[], Any]) -> int:
    try:
        code = run()
        return code if isinstance(code, int) else OK
    except typer.Exit as error:
        return error.exit_code
    except _UsageError as error:
        error.show()
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        return _said(error)


def _said(error: Exception) -> int:
    """What an error is to the user: the spec's fault, the machine's, or ours."""
    from blockc.folder import FolderError
    from blockc.source import SpecError
    from blockc.weights import CheckpointError, LayoutError

    if isinstance(error, SpecError):
        _print_findings(error.findings)
        return WRONG
    if isinstance(error, FolderError | CheckpointError | LayoutError):
        print(f"blockc: {_plain(str(error))}", file=sys.stderr)
        return WRONG
    if isinstance(error, OSError):
        where = f"{_plain(str(error.filename))}: " if error.filename else ""
        print(f"blockc: {where}{error.strerror or error}", file=sys.stderr)
        return ENVIRONMENT
    if isinstance(error, ModuleNotFoundError):
        print(f"blockc: the package {error.name} is missing", file=sys.stderr)
        return ENVIRONMENT
    print(
        f"blockc: this is a fault of blockc: {type(error).__name__}: {error}\nrun again with --debug", file=sys.stderr
    )
    return ENVIRONMENT
