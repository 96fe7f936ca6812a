"""Prompt lookup: drafts of the next tokens from the text itself, checked in one step.

Where the last tokens of a text occurred before, what followed them there is a draft of what follows now. The model
reads the draft in one call, which costs little more than a call with one token, and each drafted token that is the one
the model would have chosen is kept. Source: Saxena, Prompt Lookup Decoding, 2023.

The text is that without drafts, token for token, where a product of several rows is rounded as that of one row. This is
so of floats up to the last bits. A draft is one token at each place, so the acceptance rule of speculative sampling
(Leviathan et al. 2023) becomes: draw a token as ever, and go on if it is the drafted one. The draws are then the same
too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blockc.runtime.sampling import Choose, Logits, TopLogits, as_float32, keeps_nothing

if TYPE_CHECKING:
    from blockc.runtime.session import Session

LONGEST, SHORTEST = 3, 2  # tokens at the end of the text that are looked up
START = 4  # tokens of the first draft
WINDOW = 8  # drafts by which it is judged whether to go on
PAUSE = 32  # tokens of text without drafts after they cost more than they gained
# What a drafted token adds to a step, as a share of a step with one token: measured in benchmarks/lookup.py. A product
# of floats reads its matrix once for all rows; one of codes computes each row.
OF_FLOATS, OF_CODES = 0.06, 0.25


class Occurrences:
    """Where each run of two or three tokens of a text occurred last, but for the run that ends it."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}  # the place after a run
        for token in text:
            self.append(token)

    def append(self, token: int) -> None:
        """Adds a token. What ended the text before it is now followed by it."""
        for size in range(SHORTEST, LONGEST + 1):
            if len(self.text) >= size:
                self.after[tuple(self.text[-size:])] = len(self.text)
        self.text.append(token)

    def draft(self, most: int) -> list[int]:
        """So many tokens that followed the text's last three, else its last two, where they occurred last; else none.

        Where the text ends first, the draft goes on with its own beginning: a text that repeats itself, repeats.
        """
        for size in range(LONGEST, SHORTEST - 1, -1):
            at = self.after.get(tuple(self.text[-size:])) if len(self.text) >= size else None
            if at is not None:
                period = len(self.text) - at
                return [self.text[at + i % period] for i in range(most)]
        return []


@dataclass
class Pace:
    """How many tokens to draft: more while drafts are right, none for a while after they cost more than they gained.

    It goes by counts alone, and not by a clock, so that a text does not depend on the machine.
    """

    most: int
    cost: float  # of a drafted token, in steps with one token
    size: int = field(init=False)
    pause: int = 0  # tokens
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque[tuple[int, int]](maxlen=WINDOW))

    def __post_init__(self) -> None:
        self.size = min(START, self.most)

    @property
    def next(self) -> int:
        """The length of the next draft."""
        return 0 if self.pause else self.size

    def record(self, drafted: int, kept: int) -> None:
        """Takes the result of a step: how many tokens were drafted, and how many of them were right."""
        self.pause = max(self.pause - kept - 1, 0)
        if not drafted:
            return
        self.recent.append((drafted, kept))
        if kept == drafted:
            self.size = min(2 * self.size, self.most)
        elif 2 * kept < drafted:
            self.size = max(self.size // 2, 1)
        gained, spent = sum(kept for _, kept in self.recent), self.cost * sum(drafted for drafted, _ in self.recent)
        if len(self.recent) == WINDOW and gained < spent:
            self.pause = PAUSE
            self.recent.clear()


@dataclass
class Drafts:
    """What drafts came to: steps of the model, that of the prompt too, tokens drafted, and how many were kept.

    The text has steps + kept tokens, also where it ends inside a draft.
    """

    steps: int = 0
    drafted: int = 0
    kept: int = 0


def generate_by_lookup(
    session: Session, prompt: Sequence[int], new: int, stop: Collection[int], sampler: Choose, most: int
) -> Iterator[int]:
    """The tokens of one row after its prompt, as `Session.generate` yields them, by drafts of at most `most` tokens."""
    text = Occurrences(prompt)
    pace = Pace(most, OF_CODES if session.model.rounds else OF_FLOATS)
    drafts = session.drafts = Drafts()
    lent = keeps_nothing(sampler)
    draft: list[int] = []
    logits: Logits = session.prefill([prompt], room=new - 1)
    left = new
    while True:
        kept = 0
        drafts.steps += 1
        drafts.drafted += len(draft)
        assert not isinstance(logits, TopLogits)  # refused before
        for kept in range(len(draft) + 1):
            token = int(sampler(as_float32(logits[kept : kept + 1], lent))[0])
            text.append(token)
            left -= 1
            yield token
            if token in stop or not left:
                return
            if kept == len(draft) or draft[kept] != token:
                break
            drafts.kept += 1
        pace.record(len(draft), kept)
        read = len(text.text) - 1  # the newest token is in no cache yet
        if session.lengths[0] > read:
            session.rewind(read)
        draft = text.draft(min(pace.next, left - 1))
        while draft and session.find_conflict(read, read + 1 + len(draft)):
            draft.pop()
        if session.find_conflict(read, read + 1):
            session.reset()
            logits = session.prefill([text.text], room=left - 1)
        else:
            logits = session.extend_lent([text.text[-1], *draft])
