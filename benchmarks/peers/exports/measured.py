"""Runs a program as python does, and writes the most memory that it held: measured.py PEAK.json (-m MODULE | FILE) ...

{"peak": bytes} of this process, or of the largest one that it started and waited for.
"""

from __future__ import annotations

import json
import resource
import runpy
import sys
from pathlib import Path


def peak() -> int:
    (own,) = (
        line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return 1024 * max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


def main() -> None:
    target, first, *rest = sys.argv[1:]
    try:
        if first == "-m":
            name, *arguments = rest
            sys.argv = [name, *arguments]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [first, *rest]
            runpy.run_path(first, run_name="__main__")
    finally:
        Path(target).write_text(json.dumps({"peak": peak()}))


if __name__ == "__main__":
    main()
