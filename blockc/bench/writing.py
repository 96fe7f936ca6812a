"""Tokens a second on a text of one's own, token by token and by prompt lookup.

A candidate writes on from the text, each time the likeliest token, until as many as were asked for are written or one
ends the text. In each turn every candidate writes once plain and once by lookup, and the next turn has the other order.
The prompt and the first token are not timed, so that a text of n tokens has n - 1 in its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blockc.basics.distribution import require_packages
from blockc.bench.quality import read_text
from blockc.bench.turns import Worker, WorkerError, order_of_turn
from blockc.runtime import SessionError
from blockc.runtime.text import TOKENIZER_FILE, Tokenizer

TOKENS, LOOKUP = 128, 7  # to write; of a draft


@dataclass(frozen=True)
class Prompt:
    """A text to write on from: at most `new` tokens, by drafts of at most `lookup` tokens; 0: only without.

    `required`: a candidate that has no lookup is refused, and not measured without.
    """

    name: str
    text: str
    new: int
    lookup: int
    required: bool

    @property
    def lookups(self) -> tuple[int, ...]:
        """What each text of a turn is written with: 0 is none."""
        return (0, self.lookup) if self.lookup else (0,)


@dataclass(frozen=True)
class Start:
    """A prompt as a candidate reads it: its tokens, those that end a text, and the folder of the tokenizer."""

    ids: tuple[int, ...]
    stop: tuple[int, ...]
    tokenizer: Path


@dataclass(frozen=True)
class Written:
    """One text: its tokens, and the milliseconds of those after the first; the steps of the model, and its drafts."""

    tokens: tuple[int, ...]
    ms: float
    steps: int
    drafted: int = 0
    kept: int = 0

    @property
    def token_ms(self) -> float:
        return self.ms / (len(self.tokens) - 1)


@dataclass
class Writing:
    """What a candidate wrote: by lookup, 0 for none, a text of each turn. `lacks` says why there is none by lookup.

    `rounds`: several tokens of a call are rounded otherwise than one, so that texts by lookup may be other ones.
    """

    start: Start
    lacks: str = ""
    rounds: bool = False
    texts: dict[int, list[Written]] = field(default_factory=dict[int, list[Written]])

    def median(self, lookup: int) -> float | None:
        """Milliseconds a token; None if there is no such text."""
        texts = self.texts.get(lookup)
        return float(np.median([each.token_ms for each in texts])) if texts else None

    def ratio(self, lookup: int) -> float:
        """How many times as fast a text by lookup is: the median of the turns' own ratios."""
        return float(np.median([plain.token_ms / drafted.token_ms for plain, drafted in self._pairs(lookup)]))

    def parts_at(self, lookup: int) -> int | None:
        """The first token, from 1 on, at which a text by lookup is another; None if all are the same."""
        found = (find_difference(plain.tokens, drafted.tokens) for plain, drafted in self._pairs(lookup))
        return min(filter(None, found), default=None)

    def _pairs(self, lookup: int) -> Iterator[tuple[Written, Written]]:
        return zip(self.texts[0], self.texts[lookup], strict=True)


def find_difference(one: Sequence[int], two: Sequence[int]) -> int | None:
    """The first token, from 1 on, in which two texts differ, or which one of them lacks; None if they are the same."""
    if one == two:
        return None
    pairs = enumerate(zip(one, two, strict=False), 1)
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)) + 1)


def read_prompt(path: Path, new: int | None, lookup: int | None) -> Prompt:
    """Reads a text in UTF-8. None: as many tokens as are usual, and lookup where there is one. Raises SessionError."""
    name, text = read_text(path)
    return Prompt(name, text, TOKENS if new is None else new, LOOKUP if lookup is None else lookup, bool(lookup))


@require_packages("run")
def encode_prompt(prompt: Prompt, folders: Iterable[Path]) -> dict[Path, Start]:
    """The prompt in tokens of each folder's tokenizer; a folder that has none reads those of the first one that has.

    Raises SessionError, MissingPackageError.
    """
    held = list(dict.fromkeys(folders))
    own = [folder for folder in held if (folder / TOKENIZER_FILE).exists()]
    starts = {folder: _encode(prompt, folder) for folder in own or held[:1]}
    return {folder: starts.get(folder) or next(iter(starts.values())) for folder in held}


def _encode(prompt: Prompt, folder: Path) -> Start:
    tokenizer = Tokenizer(folder)
    ids = tuple(tokenizer.encode(prompt.text))
    if not ids:
        raise SessionError(f"{prompt.name}: has no token, and one or more are a prompt")
    return Start(ids, tuple(tokenizer.stop), folder)


def prepare_writing(worker: Worker, prompt: Prompt, start: Start, context: int | None) -> Writing:
    """Asks whether a candidate has lookup. Raises WorkerError for what it cannot write, before anything is measured."""
    whole = len(start.ids) + prompt.new
    if context is not None and whole > context:
        figures = f"{prompt.name} has {len(start.ids)} tokens, and with {prompt.new} more {whole}"
        raise WorkerError(f"{worker.name}: {figures}, and its context is {context}")
    answer = worker.ask("drafts", most=prompt.lookup)
    if prompt.required and answer["lacks"]:
        raise WorkerError(f"{worker.name}: {answer['lacks']}")
    return Writing(start, answer["lacks"], answer["rounds"])


def write_by_turns(workers: Mapping[str, Worker], texts: Mapping[str, Writing], prompt: Prompt, turns: int) -> None:
    """Lets all candidates write, by name. Raises WorkerError."""
    for turn in range(turns):
        for name in order_of_turn(workers, turn):
            made = texts[name]
            for lookup in order_of_turn((0,) if made.lacks else prompt.lookups, turn):
                made.texts.setdefault(lookup, []).append(_write(workers[name], made.start, prompt.new, lookup))


def _write(worker: Worker, start: Start, new: int, lookup: int) -> Written:
    answer = worker.ask("write", ids=start.ids, new=new, stop=start.stop, lookup=lookup)
    if len(answer["tokens"]) < 2:
        raise WorkerError(f"{worker.name}: the first token that it writes ends the text, so there is none to time")
    return Written(tuple(answer["tokens"]), answer["ms"], *answer["drafts"])
