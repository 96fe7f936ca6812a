"""What every command of the command line shares: exit codes, arguments, and how it speaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
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
        metavar="SPEC",
        help="A spec file, a config.json or its folder, or the name of a spec that comes with blockc.",
        show_default=False,
    ),
]
NOTHING: list[str] = []


def there(path: Path) -> Path:
    if not path.exists():
        stop(USAGE, f"{plain(str(path))}: no such file or folder")
    return path


def spec_file(path: Path) -> Path:
    """A spec's file; a name alone is that of a spec that comes with blockc."""
    from blockc import api

    if not path.exists() and str(path) in (specs := api.bundled()):
        return specs[str(path)]
    if there(path).is_dir():
        stop(USAGE, f"{plain(str(path))}: is a folder, and one spec is wanted")
    return path


def model_file(path: Path) -> Path:
    """A spec's file as above, or what is imported: a config.json or a folder with one."""
    from blockc.importing import config_file

    return path if config_file(path) is not None and path.exists() else spec_file(path)


def print_findings(findings: tuple[Finding, ...]) -> None:
    from blockc.source import render

    for finding in findings:
        print(render(finding), file=sys.stderr)


def plain(text: str) -> str:
    """No control character of a name reaches the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def stop(code: int, message: str) -> NoReturn:
    print(f"blockc: {message}", file=sys.stderr)
    raise typer.Exit(code)


# typer carries a click of its own in some versions: the base of its BadParameter is that click's error of usage.
_UsageError: Any = typer.BadParameter.__bases__[0]


def guarded(run: Callable[[], Any]) -> int:
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except typer.Exit as error:
        return error.exit_code
    except _UsageError as error:
        error.show()
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # the reader of our output has gone, of which typer makes an exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        return _said(error)


def _said(error: Exception) -> int:
    """What an error is to the user: the spec's fault, the machine's, or ours."""
    from blockc.errors import BlockcError
    from blockc.source import SpecError

    if isinstance(error, SpecError):
        print_findings(error.findings)
        return WRONG
    if isinstance(error, BlockcError):
        print(f"blockc: {plain(str(error))}", file=sys.stderr)
        return WRONG
    if isinstance(error, OSError):
        where = f"{plain(str(error.filename))}: " if error.filename else ""
        print(f"blockc: {where}{error.strerror or error}", file=sys.stderr)
        return ENVIRONMENT
    if isinstance(error, ModuleNotFoundError):
        print(f"blockc: the package {error.name} is missing", file=sys.stderr)
        return ENVIRONMENT
    print(
        f"blockc: this is a fault of blockc: {type(error).__name__}: {error}\nrun again with --debug", file=sys.stderr
    )
    return ENVIRONMENT
