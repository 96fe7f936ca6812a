"""The parent process: it starts workers on the same cores, and asks them in turns, A B A B."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from blockc.basics.distribution import missing_message
from blockc.basics.errors import BlockcError

T = TypeVar("T")
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def cores(most: int | None = None) -> list[int]:
    """One logical core of each physical one that this process may use; empty where the system cannot pin."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    found: dict[str, int] = {}
    for core in sorted(os.sched_getaffinity(0)):
        path = Path(_SIBLINGS.format(core))
        found.setdefault(path.read_text() if path.is_file() else str(core), core)
    return list(found.values())[:most]


class WorkerError(BlockcError):
    """A worker that ended, or answered with an error; `environment`: the machine lacks something."""

    def __init__(self, message: str, environment: bool = False) -> None:
        super().__init__(message)
        self.environment = environment


class Worker:
    """A process that answers requests, one after another. Raises WorkerError, which has the worker's name."""

    def __init__(self, name: str, command: Sequence[str], pinned: Sequence[int]) -> None:
        self.name = name
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 closed with the worker
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                text=True,
                preexec_fn=(lambda: os.sched_setaffinity(0, pinned)) if pinned else None,
            )
        except OSError as error:
            raise WorkerError(f"{name}: {command[0]}: {error.strerror or error}", environment=True) from None

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            print(json.dumps({"do": do, **request}), file=stdin, flush=True)
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{self.name}: its process {self._last_words()}", environment=True)
        try:
            answer: dict[str, Any] = dict(json.loads(line))
        except (ValueError, TypeError):
            raise WorkerError(f"{self.name}: answered {line[:80]!r}, which is not a JSON object") from None
        if "error" in answer:
            why = missing_message(str(answer["missing"]), "cpu") if "missing" in answer else answer["error"]
            raise WorkerError(f"{self.name}: {why}", bool(answer.get("environment")))
        return answer

    def _last_words(self) -> str:
        code = self.process.wait()
        if code < 0:
            return f"was ended by signal {-code}, perhaps for lack of memory"
        self.said.seek(0)
        lines = self.said.read().decode("utf-8", "replace").strip().splitlines()
        return f"ended with exit code {code}{': ' + lines[-1][:300] if lines else ''}"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.said.close()


@contextmanager
def start_workers(commands: Mapping[str, Sequence[str]], pinned: Sequence[int]) -> Generator[dict[str, Worker]]:
    """Starts workers, by name, and ends them whatever happens."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, command in commands.items():
            workers[name] = Worker(name, command, pinned)
            stack.callback(workers[name].close)
        yield workers


def order_of_turn(items: Iterable[T], turn: int) -> list[T]:
    """The order of workers in a turn: each pair of turns starts one worker later, and every second turn is reversed.

    The worker before leaves the machine in a state that changes a measure by up to a seventh.
    """
    held = list(items)
    first = turn // 2 % max(len(held), 1)
    turned = held[first:] + held[:first]
    return turned[::-1] if turn % 2 else turned


def ask_by_turns(workers: Mapping[str, Worker], turns: int, do: str, **request: Any) -> dict[str, list[dict[str, Any]]]:
    """Answers by worker, one of each turn. In each turn every worker answers once, in that turn's order."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    for turn in range(turns):
        for name in order_of_turn(workers, turn):
            answers[name].append(workers[name].ask(do, **request))
    return answers


def join_answers(answers: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    """The lists under one key, one after another; empty for a worker that does not have the key."""
    return [item for answer in answers for item in answer.get(key, ())]


def worker_command(module: str, *arguments: str) -> list[str]:
    """The command line of one of blockc's own workers."""
    return [sys.executable, "-m", module, *arguments]
