"""What every command of the command line shares: exit codes, arguments, global options, and how commands end."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from blockc.cli import terminal
from blockc.cli.terminal import clean_lines, plain_line, say

if TYPE_CHECKING:
    from blockc.graph.quant import Quant
    from blockc.pipeline.compiled import Compiled
    from blockc.source import Finding

OK, WRONG, USAGE, ENVIRONMENT, INTERRUPTED = 0, 1, 2, 3, 130


# Global options, which may be before or after a command's name


class _Globals:
    """The global options of this call."""

    debug = False


def _debug(value: bool) -> None:
    _Globals.debug = _Globals.debug or value


def _version(value: bool) -> None:
    if value:
        import blockc

        print(f"blockc {blockc.__version__}")
        raise typer.Exit(OK)


def _globals(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_debug, is_eager=True)
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The global options. Their callbacks have already handled them."""


Command = TypeVar("Command", bound=Callable[..., None])


class App(typer.Typer):
    """An application in which every command also takes the global options."""

    def command(self, name: str | None = None, **named: Any) -> Callable[[Command], Command]:
        def register(function: Command) -> Command:
            own, shared = (inspect.signature(each, eval_str=True) for each in (function, _globals))

            @wraps(function)
            def run(**given: Any) -> None:
                function(**{key: value for key, value in given.items() if key in own.parameters})

            parameters = [
                each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                for each in (*own.parameters.values(), *shared.parameters.values())
            ]
            del run.__wrapped__  # typer would read the parameters there
            run.__signature__ = own.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
            run.__annotations__ = {each.name: each.annotation for each in parameters}
            super(App, self).command(name, **named)(run)
            return function

        return register


app = App(
    name="blockc",
    help="A compiler for transformer models: one YAML spec, the same function in PyTorch and ONNX, proved.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.callback()(_globals)


# Arguments of several commands


def complete_spec(incomplete: str) -> list[str]:
    """Names of specs that complete a word; if there are none, the shell completes files."""
    from blockc.basics.distribution import specs

    return [name for name in specs() if name.startswith(incomplete)]


Set = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the spec to another value: norm.placement=post."),
]
SpecPath = Annotated[
    Path,
    typer.Argument(
        metavar="SPEC",
        help="A spec file, a config.json or its folder, or the name of a spec that comes with blockc.",
        show_default=False,
        autocompletion=complete_spec,
    ),
]
Quantised = Annotated[
    str | None,
    typer.Option(
        "--quant",
        metavar="RECIPE",
        help="Store matrices in 4 or 8 bits: int8, int4 or int4:quality; int4:128 for blocks of 128.",
        show_default=False,
    ),
]
QuantisedBy = Annotated[
    Path | None,
    typer.Option(
        "--quant-policy",
        metavar="FILE",
        help="Store matrices as this file says, pattern by pattern.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and warnings.")]
NOTHING: list[str] = []


# How commands end


def print_findings(findings: tuple[Finding, ...]) -> None:
    from blockc.source import render_finding

    for finding in findings:
        print(render_finding(finding), file=sys.stderr)


def stop(code: int, message: str) -> NoReturn:
    """Ends the command with a message of one or more lines."""
    say(message)
    raise typer.Exit(code)


def read_recipe(quant: str | None, policy: Path | None, model: Compiled) -> Quant | None:
    """The recipe of --quant or --quant-policy; None without either."""
    if quant is not None and policy is not None:
        stop(USAGE, "--quant and --quant-policy each say how matrices are stored: choose one")
    if policy is not None:
        from blockc import api

        return api.quant_policy(policy, model)
    if quant is None:
        return None
    from blockc.graph.quant import parse_quant

    return parse_quant(quant)


def require_path(path: Path) -> Path:
    if not path.exists():
        stop(USAGE, f"{plain_line(str(path))}: no such file or folder")
    return path


# Some versions of typer contain their own click, so UsageError is found as the base of typer's BadParameter.
_UsageError: Any = typer.BadParameter.__bases__[0]


def run_guarded(run: Callable[[], Any]) -> int:
    """Runs a command and returns its exit code. Every error becomes a message; a closed pipe changes no exit code."""
    _Globals.debug = False
    code = _run(run)
    try:
        terminal.flush()
    except OSError as error:
        return code or _report(error)
    return code


def _run(run: Callable[[], Any]) -> int:
    try:
        code = run()
        return code if isinstance(code, int) else OK
    except typer.Exit as error:
        return error.exit_code
    except _UsageError as error:
        print(clean_lines(_usage_message(error)), file=sys.stderr)
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as error:  # raised by shell completion
        return error.code if isinstance(error.code, int) else OK
    except Exception as error:
        if _Globals.debug:
            raise
        return _report(error)


def _usage_message(error: Any) -> str:
    """click's message, with pydantic's errors about numbers and choices in blockc's words."""
    text = io.StringIO()
    if hasattr(error.__cause__, "errors"):
        error.message = _describe_expected(error.__cause__.errors()[0])
    error.show(file=text)
    return text.getvalue().rstrip("\n")


def _describe_expected(fault: Any) -> str:
    from blockc.basics.expected import describe_expected

    own = fault.get("ctx", {}).get("error")  # typer's own sentence
    return str(own) if own else f"expected {describe_expected(fault)}, got {fault['input']}"


def _report(error: Exception) -> int:
    """Prints an error and returns its exit code: wrong input, wrong usage, or the environment."""
    from blockc.basics.distribution import MissingPackageError, missing_message
    from blockc.basics.errors import BlockcError, UsageError
    from blockc.source import SpecError

    if isinstance(error, SpecError):
        print_findings(error.findings)
        return WRONG
    if isinstance(error, BlockcError):
        say(error.as_typed if isinstance(error, UsageError) else str(error))
        return (
            USAGE if isinstance(error, UsageError) else ENVIRONMENT if isinstance(error, MissingPackageError) else WRONG
        )
    if isinstance(error, OSError):
        where = f"{plain_line(str(error.filename))}: " if error.filename else ""
        say(f"{where}{error.strerror or error}")
        return ENVIRONMENT
    if isinstance(error, ModuleNotFoundError):
        say(missing_message(error.name))
        return ENVIRONMENT
    say(f"this is a bug in blockc: {type(error).__name__}: {error}\nrun again with --debug")
    return ENVIRONMENT
