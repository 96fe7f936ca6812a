"""What an installed blockc brings with it, and the commands that install the rest.

The name in the public index is not ours yet. Until it is, an extra is installed from a clone, and each message says
so.
"""

from __future__ import annotations

import shlex
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

import blockc
from blockc.basics.errors import BlockcError

NAME = "blockc"  # of the distribution
PUBLISHED = False  # whether that name in the public index is ours

# The extra of pyproject.toml that brings a package, by the name that it is imported under.
EXTRAS = {
    "torch": "torch",
    "safetensors": "torch",
    "onnxruntime": "cpu",
    "onnxruntime_genai": "genai",
    "gguf": "gguf",
    "tokenizers": "run",
    "matplotlib": "bench",
}
WITH_CUDA = "onnxruntime-gpu[cuda,cudnn]"  # what the extra cuda brings


def pip_command(*words: str) -> str:
    """The command that installs packages, as messages print it. Every message takes it from here."""
    return f"`pip install {shlex.join(words)}`"


def extra_command(*names: str) -> str:
    """The command that installs blockc with these extras, and where it works."""
    extras = f"[{','.join(names)}]" if names else ""
    return pip_command(f"{NAME}{extras}") if PUBLISHED else f"{pip_command(f'.{extras}')} in a clone of {NAME}"


def missing_message(package: str | None, wanted: str | None = None) -> str:
    """The message for a package that cannot be imported. `wanted` is the extra for the whole task, if there is one."""
    if name := wanted or EXTRAS.get((package or "").partition(".")[0]):
        return f"the package {package} is missing: {extra_command(name)}"
    return f"the package {package} is missing, which comes with {NAME}: {extra_command()}"


class MissingPackageError(BlockcError, ImportError):
    """A package that is needed is not installed. The message says how to install it."""


@contextmanager
def require_packages(wanted: str | None = None) -> Generator[None]:
    """Turns a failed import in its block, or in a function that it decorates, into a MissingPackageError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(missing_message(error.name, wanted), name=error.name) from error


def layout_names() -> tuple[str, ...]:
    """The checkpoint layouts that a spec can name."""
    return _yaml_names("layouts")


def model_types() -> tuple[str, ...]:
    """The model types whose config.json is imported."""
    return _yaml_names("layouts", "config")


@cache
def _yaml_names(*folder: str) -> tuple[str, ...]:
    """The names of the YAML files in a folder; a file that begins with _ is shared by the others."""
    found = (entry.name for entry in files("blockc").joinpath(*folder).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml") and name[0] != "_"))


def specs() -> dict[str, Path]:
    """The specs that come with blockc, by name."""
    inside = Path(blockc.__file__).parent / "specs"
    folder = inside if inside.is_dir() else inside.parent.parent / "specs"
    return dict(sorted((path.stem, path) for path in folder.glob("*.yaml")))
