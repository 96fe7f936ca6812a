"""A virtual environment for each peer, with the versions that its file in requirements/ pins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OWN = "blockc"  # the environment that this runs in

# llama.cpp for the vector units that /proc/cpuinfo names. Left to itself it also takes the matrix units of some
# processors, whose kernels crash there.
_FLAGS = {
    "sse4_2": "SSE42", "avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "bmi2": "BMI2",
    "avx512_vbmi": "AVX512_VBMI", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16",
}  # fmt: skip
_AVX512 = {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}


class Missing(Exception):
    """A peer that cannot be installed here, and why."""


def python(cache: Path, name: str, requirements: Path | None = None) -> str:
    """The interpreter of an environment, which is made first where it is not there yet. Raises Missing.

    `requirements` is the file that pins it, where that is not among those of the peers.
    """
    if name == OWN:
        return sys.executable
    pinned = requirements or HERE / "requirements" / f"{name}.txt"
    folder, wanted = cache / "environments" / name, pinned.read_text()
    done = folder / "installed.txt"
    if not (done.is_file() and done.read_text() == wanted):
        _made(folder, pinned)
        done.write_text(wanted)
    return str(folder / "bin" / "python")


def pins() -> dict[str, dict[str, str]]:
    """The version of each package that is pinned, by environment."""
    files = sorted((HERE / "requirements").glob("*.txt"))
    return {file.stem: dict(line.split("==") for line in file.read_text().split()) for file in files}


def _made(folder: Path, requirements: Path) -> None:
    print(f"installing {folder.name}, once", flush=True)
    environment = os.environ | {"CMAKE_ARGS": llama_flags(Path("/proc/cpuinfo").read_text())}
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*install, "-r", str(requirements)]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            raise Missing(said[-1].removeprefix("ERROR: ")[:200] if said else f"pip ended with {done.returncode}")


def llama_flags(cpuinfo: str) -> str:
    """What cmake is told, of what the processor says it has."""
    (line,) = {line for line in cpuinfo.splitlines() if line.startswith("flags")}
    has = set(line.partition(":")[2].split())
    on = [f"-DGGML_{word}=ON" for flag, word in _FLAGS.items() if flag in has]
    if has >= _AVX512:
        on.append("-DGGML_AVX512=ON")
    return " ".join(["-DGGML_NATIVE=OFF", *on, "-DLLAVA_BUILD=OFF", "-DMTMD_BUILD=OFF"])
