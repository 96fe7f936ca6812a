"""Which packages and providers that blockc uses are here, whether they work, and what to do if not.

Small functions ask the machine: `installed_version`, `least_versions`, `runtimes`, `onnxruntime_`, `why_no_links`.
Packages are imported only when they are tried, so that a broken package becomes a line of the report.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import blockc
from blockc.basics.distribution import NAME, WITH_CUDA, pip_command
from blockc.basics.floats import FLOATS
from blockc.graph.target import Target
from blockc.ort.kernels import oldest_release, parse_release

FORMAT = 1  # of the JSON
# What each package is for. Those in CORE are installed with blockc.
CORE = {
    "jinja2": "renders model.py, and chat templates",
    "numpy": "the oracle, and weights",
    "onnx": "model.onnx",
    "pydantic": "reads specs",
    "pyyaml": "reads specs",
    "typer": "the command line",
}
OPTIONAL = {
    "onnxruntime": "proves model.onnx, and runs it on the CPU",
    "onnxruntime-gpu": "the same, and with CUDA",
    "torch": "proves model.py",
    "safetensors": "Model.load in model.py",
    "tokenizers": "text for `blockc run`",
    "gguf": "GGUF checkpoints",
    "onnxruntime-genai": "runs what `blockc build --target genai` writes",
}
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
USED = (CPU, CUDA)  # the providers that blockc builds for
TOLERANCE = {CPU: 1e-5, CUDA: 5e-3}  # for an answer of about 1: in fp32, and in fp16 with fp16 sums
_REASON = 300  # characters


@dataclass(frozen=True)
class Package:
    name: str
    version: str | None
    use: str


@dataclass(frozen=True)
class ProviderHealth:
    """`works` is None for a provider that blockc does not use; `error` is the distance from the known answer."""

    name: str
    works: bool | None
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class HealthProblem:
    what: str
    fix: str


@dataclass(frozen=True)
class Health:
    blockc: str
    python: str
    packages: tuple[Package, ...]
    providers: tuple[ProviderHealth, ...]
    hard_links: str  # "" where the working folder has them, else why not
    problems: tuple[HealthProblem, ...]

    def __repr__(self) -> str:
        found = "; ".join(problem.what for problem in self.problems) or "no problem found"
        return f"<Health of blockc {self.blockc}, Python {self.python}: {found}>"

    def data(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def text(self) -> str:
        lines = [f"blockc {self.blockc}, Python {self.python}", ""]
        wide = max(len(p.name) for p in self.packages)
        lines += [f"{p.name:{wide}}  {p.version or '-':12}  {p.use}" for p in self.packages]
        lines += ["", *(f"{_describe_provider(p)}" for p in self.providers)]
        links = "possible" if not self.hard_links else f"not possible ({self.hard_links}): --weights packs"
        lines += [f"hard links in the working folder: {links}", ""]
        for problem in self.problems:
            lines += [f"problem: {problem.what}", f"    fix: {problem.fix}"]
        return "\n".join([*lines, *([] if self.problems else ["no problem found"])])


def _describe_provider(provider: ProviderHealth) -> str:
    if provider.works is None:
        return f"{provider.name}: available, but blockc does not use it"
    if provider.works:
        return f"{provider.name}: works, {provider.error:.1e} from the known answer"
    return f"{provider.name}: does not work: {provider.reason}"


def examine(folder: Path) -> Health:
    """Examines this interpreter's packages, its providers, and hard links in the folder."""
    packages = tuple(Package(name, installed_version(name), use) for name, use in (CORE | OPTIONAL).items())
    problems = [*_find_outdated(packages), *_find_duplicates(runtimes())]
    providers: tuple[ProviderHealth, ...] = ()
    if runtimes():
        try:
            listed = list(onnxruntime_().get_available_providers())
        except Exception as error:  # a package may be broken in any way
            problems.append(HealthProblem(f"onnxruntime cannot be imported: {_first_line(error)}", _REINSTALL))
        else:
            providers = tuple(try_provider(name) if name in USED else ProviderHealth(name, None) for name in listed)
    problems += [
        HealthProblem(f"{p.name} does not work: {p.reason}", FIXES[p.name]) for p in providers if p.works is False
    ]
    return Health(
        blockc.__version__, platform.python_version(), packages, providers, why_no_links(folder), tuple(problems)
    )


_REINSTALL = f"{pip_command('--force-reinstall', 'onnxruntime')}, or onnxruntime-gpu where that is wanted"
FIXES = {
    CPU: _REINSTALL,
    CUDA: f"it needs an NVIDIA driver (see nvidia-smi), CUDA and cuDNN: {pip_command(WITH_CUDA)}; "
    f"on a machine without such a device: `pip uninstall onnxruntime-gpu`, then {pip_command('onnxruntime')}",
}


# What is asked of the machine


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def least_versions() -> dict[str, str]:
    """The least version of each package: of onnxruntime what graphs need, of others what blockc's metadata has."""
    runtime = oldest_release(Target())
    measured = {"onnxruntime": runtime, "onnxruntime-gpu": runtime}
    try:
        said = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return measured
    found = (re.match(r"([\w.-]+)(?:\[[^\]]*\])? *>= *([\d.]+)", line) for line in said)
    return {match[1].lower(): match[2] for match in found if match} | measured


def runtimes() -> list[str]:
    """The installed packages that contain the module onnxruntime; each overwrites the others' files."""
    return sorted({name.lower() for name in metadata.packages_distributions().get("onnxruntime", [])})


def onnxruntime_() -> Any:
    return importlib.import_module("onnxruntime")


def why_no_links(folder: Path) -> str:
    """Why the folder cannot have hard links; empty if it can."""
    try:
        with tempfile.TemporaryDirectory(prefix=".blockc-doctor-", dir=folder) as inside:
            (Path(inside) / "a").touch()
            os.link(Path(inside) / "a", Path(inside) / "b")
    except OSError as error:
        return error.strerror or str(error)
    return ""


# What follows


def _find_outdated(packages: tuple[Package, ...]) -> list[HealthProblem]:
    least = least_versions()
    found: list[HealthProblem] = []
    for package in packages:
        floor = least.get(package.name, "0")
        if package.version is None and package.name in CORE:
            found.append(HealthProblem(f"{package.name} is missing", pip_command(f"{package.name}>={floor}")))
        elif package.version is not None and parse_release(package.version) < parse_release(floor):
            what = f"{package.name} is {package.version}, and blockc needs {floor} or later"
            found.append(HealthProblem(what, pip_command("-U", f"{package.name}>={floor}")))
    return found


def _find_duplicates(found: list[str]) -> list[HealthProblem]:
    if len(found) < 2:
        return []
    what = f"{' and '.join(found)} are both installed: they overwrite each other's files, so both may be broken"
    return [
        HealthProblem(
            what,
            f"`pip uninstall {' '.join(found)}`, then one of them alone: {pip_command(WITH_CUDA)} for CUDA, "
            f"{pip_command('onnxruntime')} without",
        )
    ]


# A provider that is listed may still not start; then onnxruntime silently uses the CPU.


def try_provider(name: str) -> ProviderHealth:
    """Runs the known graph on a provider in a new session."""
    printed: list[str] = []
    try:
        with _capture_output(printed):
            outcome = _answer(name)
    except Exception as error:  # onnxruntime's errors have no common base
        return ProviderHealth(name, False, reason=_first_line(error))
    if isinstance(outcome, list):
        loud = next((line for line in printed if "error" in line.lower()), "")
        reason = f"onnxruntime would run on {', '.join(outcome)}"
        return ProviderHealth(name, False, reason=f"{reason}: {_first_line(loud)}" if loud else reason)
    if not outcome <= TOLERANCE[name]:  # NaN is wrong too
        return ProviderHealth(name, False, outcome, f"its numbers are {outcome:.2g} from the known answer")
    return ProviderHealth(name, True, outcome)


def _answer(name: str) -> float | list[str]:
    """The distance from the known answer; or the session's providers, if this one is not the first of them."""
    import numpy as np

    runtime = onnxruntime_()
    if name == CUDA:
        runtime.preload_dlls()
    real = np.float16 if name == CUDA else np.float32
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(known_graph(name == CUDA), options, providers=[name])
    if session.get_providers()[:1] != [name]:
        return list(session.get_providers())
    past = np.zeros((1, 1, 0, 16), real)
    out = session.run(["out"], {"x": known_input().astype(real), "past_key": past, "past_value": past})[0]
    return float(np.abs(out.astype(np.float64) - known_answer()).max())


def known_input() -> Any:
    """x (1, 3, 4): rows of ones and zeros."""
    import numpy as np

    return np.array([[[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]]], np.float64)


def known_graph(half: bool) -> bytes:
    """out = causal attention of the parts of x @ w: two query heads on one key-value head, 16 wide."""
    import numpy as np
    from onnx import helper, numpy_helper

    real = FLOATS["fp16" if half else "fp32"]
    past = [helper.make_tensor_value_info(f"past_{kind}", real.onnx, [1, 1, "past", 16]) for kind in ("key", "value")]
    attend = helper.make_node(
        "GroupQueryAttention",
        ["joined", "", "", "past_key", "past_value", "last", "total"],
        ["out", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=2,
        kv_num_heads=1,
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["joined"]), attend],
        "known",
        [helper.make_tensor_value_info("x", real.onnx, [1, 3, 4]), *past],
        [
            helper.make_tensor_value_info("out", real.onnx, [1, 3, 32]),
            *(
                helper.make_tensor_value_info(f"present_{kind}", real.onnx, [1, 1, "t", 16])
                for kind in ("key", "value")
            ),
        ],
        [
            numpy_helper.from_array(_matrix().astype(real.numpy), "w"),
            numpy_helper.from_array(np.array([2], np.int32), "last"),
            numpy_helper.from_array(np.array(3, np.int32), "total"),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _matrix() -> Any:
    """w (4, 64): queries of head 0 and 1, keys, values, 16 columns each.

    Queries of head 0 score 0 with every key, those of head 1 score ln(i + 1) with key i; all numbers of value i are i.
    """
    import numpy as np

    w = np.zeros((4, 64))
    w[3, 16] = 4.0  # head 1's queries are 4 in the first place; scores are divided by sqrt(16)
    w[:3, 32] = np.log([1, 2, 3])
    w[:3, 48:] = np.array([[0], [1], [2]])
    return w


def known_answer() -> Any:
    """(1, 3, 32): head 0 gives the mean of the values so far, head 1 their mean weighted by 1, 2, 3."""
    import numpy as np

    means = [[0, 0], [1 / 2, 2 / 3], [1, 8 / 6]]
    return np.repeat(np.array([means]), 16, axis=-1)


@contextmanager
def _capture_output(lines: list[str]) -> Generator[None]:
    """Collects what a library prints on both streams, also from C."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file, redirect_stdout(StringIO()) as printed:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += [*file.read().decode(errors="replace").splitlines(), *printed.getvalue().splitlines()]


def _first_line(what: object) -> str:
    """The first line of an error, without the positions in onnxruntime's sources at its start."""
    line = (str(what).strip() or type(what).__name__).splitlines()[0]
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    return line.rpartition("FAIL : ")[2][:_REASON]
