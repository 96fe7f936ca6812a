"""How long the commands take against what they may take: the best of five runs of each, on this machine.

`{many}` is a folder of 200 specs.

python -m benchmarks.limits
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMITS = {
    "--help": 0.25,
    "check specs/": 1.5,
    "check {many}": 2.0,
    "build specs/llama3.1-405b.yaml --no-verify --out {out}": 5.0,
}


def many(folder: Path) -> None:
    """200 specs: those that come with blockc, again and again."""
    texts = itertools.cycle([path.read_bytes() for path in sorted((ROOT / "specs").glob("*.yaml"))])
    for i in range(200):
        (folder / f"{i}.yaml").write_bytes(next(texts))


def seconds(command: str) -> float:
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as specs:
        if "{many}" in command:
            many(Path(specs))
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "blockc", *command.format(out=out, many=specs).split()],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - start


def main() -> int:
    over = 0
    for command, limit in LIMITS.items():
        best = min(seconds(command) for _ in range(5))
        over += best > limit
        print(f"{best:6.2f} s of {limit:4.2f}  blockc {command.replace(' --out {out}', '')}")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
