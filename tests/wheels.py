"""The wheel, and an environment that holds it and its hard dependencies alone.

Without a network: pip installs the wheel by itself, and what its metadata asks for, and what that asks for, is linked
file by file from the environment of the tests. So nothing that the wheel does not ask for is in reach, and `pip check`
finds the environment whole.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.paths import ROOT


def built(folder: Path) -> Path:
    """The wheel, made by the project's backend."""
    _python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(folder: Path, wheel: Path) -> Path:
    """A new environment in `folder`; the folder of its commands."""
    _python("-m", "venv", "--without-pip", str(folder))
    (site,) = folder.glob("lib/*/site-packages")
    python = folder / "bin" / "python"
    pip = ("-m", "pip", "--disable-pip-version-check", "--python", str(python))
    _python(*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    (own,) = metadata.distributions(path=[str(site)])
    for name in _asked(own.requires or []):
        _link(metadata.distribution(name), site)
    _python(*pip, "check")
    return python.parent


def _asked(requirements: list[str]) -> set[str]:
    """The names of all that these ask for, without extras."""
    found: set[str] = set()
    while requirements:
        requirement = Requirement(requirements[0])
        name = canonicalize_name(requirement.name)
        requirements = requirements[1:]
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            requirements = requirements + (metadata.distribution(name).requires or [])
    return found


def _link(distribution: metadata.Distribution, site: Path) -> None:
    for file in distribution.files or []:
        if ".." not in file.parts and file.suffix != ".pyc":
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).symlink_to(Path(str(file.locate())).absolute())


def _python(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
