"""quality: how far a build's predictions are from those of another, its reference, on the same text.

    KL          sum_v p_v (log p_v - log q_v)   p: the reference's distribution of the next token, q: the build's; nats
    same        whether p and q have the same largest token
    perplexity  exp(-mean log q of the token that follows)

The text is cut into windows of as many tokens. Each window is a row that starts with an empty cache. Both builds read
its tokens one by one, in decode steps of several rows, so builds with any cache and with logits of the last token alone
are measured as they are used.

A figure's 95 % interval is a bootstrap over windows: 1,000 times, n - 1 of the n windows are drawn with replacement,
the same ones for all figures of both builds. (With n instead of n - 1, intervals of few windows would be too narrow.)

N windows, S predictions of each, R rows of a step, V vocab.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from blockc.basics.errors import UsageError
from blockc.basics.jsonfile import FileError, read_bounded, reason_of
from blockc.basics.progress import Progress, no_progress
from blockc.bench.opening import open_session
from blockc.graph.target import Provider
from blockc.ir import Array
from blockc.runtime import Session, SessionError, TopLogits
from blockc.runtime.text import Tokenizer
from blockc.source import escape_text

VERSION = 1
WINDOW = 256  # tokens
TEXT = "alice.txt"
_LONGEST = 1 << 24  # bytes of a text
_ROWS = 32  # windows that are read together
_DRAWS, _SEED = 1000, 0
_ENDS = (0.025, 0.975)


@dataclass(frozen=True)
class Interval:
    """A figure, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Quality:
    """A build's predictions beside those of `against`. `ratio` is that of the two perplexities."""

    folder: str
    against: str
    text: str
    windows: int
    window: int
    predictions: int
    kl: Interval
    kl_median: Interval
    same: Interval
    perplexity: Interval
    perplexity_against: Interval
    ratio: Interval

    def __repr__(self) -> str:
        return f"<Quality: KL {self.kl}, {self.same} same next token, perplexity x {self.ratio}>"

    def data(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    def table(self) -> str:
        """The figures for a terminal."""
        rows = [
            ("KL, nats", self.kl),
            ("KL, median", self.kl_median),
            ("same next token", self.same),
            ("perplexity", self.perplexity),
            ("of the reference", self.perplexity_against),
            ("ratio of the two", self.ratio),
        ]
        head = (
            f"{escape_text(self.folder)} against {escape_text(self.against)}: {self.predictions:,} predictions in "
            f"{self.windows} windows of {self.window} tokens of {self.text}"
        )
        lines = [f"{name:24}{each.value:>9.4g}   {each.low:.4g} to {each.high:.4g}" for name, each in rows]
        return "\n".join([head, "", f"{'':24}{'':9}   95 % interval", *lines])


@dataclass(frozen=True)
class Scores:
    """What the figures are made of, for each prediction: (N, S). A loss is -log of the next token's probability."""

    kl: Array
    same: Array
    loss: Array
    loss_against: Array


def measure_quality(
    folder: Path,
    against: Path,
    text: Path | None = None,
    window: int | None = None,
    provider: Provider = "cpu",
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Quality:
    """Measures a build beside its reference. Raises SessionError, and UsageError for a window that does not fit."""
    name, words = read_text(text)
    folders = (folder, against)
    sessions = [open_session(each, provider, threads, shared=False) for each in folders]
    _refuse_unlike(folders, sessions)
    first, ids = _tokens_of(folders, words)
    fits = min(session.context for session in sessions)
    size = min(WINDOW, fits) if window is None else window
    if not len(first) + 2 <= size <= fits:
        raise UsageError(f"{size}: expected from {len(first) + 2} tokens to the model's context, {fits}", "window")
    windows = cut_windows(first, ids, size)
    if len(windows) < 2:
        raise SessionError(f"{name}: {len(ids)} tokens, and an interval takes two windows of {size} at least")
    mine, other = (_reader(*each) for each in zip(folders, sessions, strict=True))
    scores = score(mine, other, windows, len(first), progress)
    return summarise(scores, str(folder), str(against), name, size)


def read_text(path: Path | None) -> tuple[str, str]:
    """(The name of a text; the text itself, by default the one that comes with blockc.) Raises SessionError."""
    if path is None:
        return TEXT, files("blockc").joinpath("texts", TEXT).read_text(encoding="utf-8")
    try:
        return escape_text(path.name), read_bounded(path, _LONGEST).decode()
    except UnicodeDecodeError:
        raise SessionError(f"{path}: not a text in UTF-8") from None
    except (FileError, OSError) as error:
        raise SessionError(reason_of(path, error)) from None


def _refuse_unlike(folders: tuple[Path, Path], sessions: list[Session]) -> None:
    """Raises SessionError for builds whose logits cannot be compared."""
    for folder, session in zip(folders, sessions, strict=True):
        if top := session.model.contract.top:
            raise SessionError(f"{folder}: gives the {top} highest logits alone: build it with --logits last or all")
    mine, other = (session.model.vocab for session in sessions)
    if mine != other:
        raise SessionError(
            f"{folders[0]} predicts one of {mine} tokens and {folders[1]} one of {other}: their distributions cannot "
            "be compared"
        )


def _tokens_of(folders: tuple[Path, Path], text: str) -> tuple[list[int], list[int]]:
    """(The tokens that begin every text; those of the text.) Raises SessionError if two tokenizers differ."""
    tokenizers = [Tokenizer(folder) for folder in folders]
    held = [each.known.get_vocab(with_added_tokens=True) for each in tokenizers]
    read = [each.encode(text) for each in tokenizers]
    if held[0] != held[1] or read[0] != read[1]:
        what = "vocabularies" if held[0] != held[1] else "tokens of the text"
        raise SessionError(
            f"{folders[0]} and {folders[1]}: their {what} differ, so their predictions cannot be compared"
        )
    ids = tokenizers[0].encode(text, special=False)
    starts = (i for i in range(len(read[0]) - len(ids) + 1) if read[0][i : i + len(ids)] == ids)
    return read[0][: next(starts, 0)], ids


def cut_windows(first: list[int], ids: list[int], size: int) -> Array:
    """(N, size): pieces of the text one after another, each after the tokens that begin a text. The rest is left."""
    step = size - len(first)
    count = len(ids) // step
    pieces = np.array(ids[: count * step], np.int64).reshape(count, step)
    return np.concatenate([np.tile(np.array(first, np.int64), (count, 1)), pieces], axis=1)


Step = Callable[[Array, bool], Array]  # (the next tokens (R); whether they start rows) to logits (R, V)


def _reader(folder: Path, session: Session) -> Step:
    def step(tokens: Array, starts: bool) -> Array:
        if starts:
            session.reset()
        logits = session.decode(tokens)
        assert not isinstance(logits, TopLogits)
        if not np.isfinite(logits).all():
            raise SessionError(f"{folder}: its logits are not all numbers")
        return logits

    return step


def score(mine: Step, other: Step, windows: Array, first: int, progress: Progress = no_progress) -> Scores:
    """Reads all windows with both. The text begins at token `first` of each; predictions of its tokens are scored."""
    begin, size = max(first, 1), windows.shape[1]  # without a token before it, the text's first is not predicted
    made = np.zeros((4, len(windows), size - begin))
    groups = np.array_split(np.arange(len(windows)), -(-len(windows) // _ROWS))
    whole = len(groups) * (size - 1)
    for i, rows in enumerate(groups):
        for at in range(size - 1):
            logits, expected = (step(windows[rows, at], at == 0) for step in (mine, other))
            if at + 1 >= begin:
                made[:, rows, at + 1 - begin] = compare(logits, expected, windows[rows, at + 1])
            progress("comparing", i * (size - 1) + at + 1, whole)
    return Scores(*made)


def compare(logits: Array, against: Array, following: Array) -> Array:
    """KL, same, loss and the reference's loss, (4, R), from logits (R, V) and the tokens (R) that follow."""
    x, y = (each.astype(np.float64) for each in (logits, against))
    q, p = _normaliser(x), _normaliser(y)
    kl = np.einsum("rv,rv->r", np.exp(y - p), y - x) - (p - q)[:, 0]
    rows = np.arange(len(following))
    same = x.argmax(-1) == y.argmax(-1)
    return np.stack([kl, same, q[:, 0] - x[rows, following], p[:, 0] - y[rows, following]])


def _normaliser(x: Array) -> Array:
    """log sum_v exp x_v, (R, 1)."""
    most = x.max(-1, keepdims=True)
    return most + np.log(np.exp(x - most).sum(-1, keepdims=True))


def summarise(scores: Scores, folder: str, against: str, text: str, window: int) -> Quality:
    """The figures, with their intervals."""
    count, each = scores.kl.shape
    drawn = draw_windows(count)
    medians = np.array([np.median(scores.kl[rows]) for rows in drawn])
    kl, same, loss, before = (of.mean(1) for of in (scores.kl, scores.same, scores.loss, scores.loss_against))
    return Quality(
        folder=folder,
        against=against,
        text=text,
        windows=count,
        window=window,
        predictions=count * each,
        kl=mean_of(kl, drawn),
        kl_median=_interval(np.median(scores.kl), medians),
        same=mean_of(same, drawn),
        perplexity=mean_of(loss, drawn, np.exp),
        perplexity_against=mean_of(before, drawn, np.exp),
        ratio=mean_of(loss - before, drawn, np.exp),
    )


def draw_windows(count: int) -> Array:
    """The windows of each draw of the bootstrap."""
    return np.random.RandomState(_SEED).randint(count, size=(_DRAWS, count - 1))


def mean_of(windows: Array, drawn: Array, then: Callable[[Array], Array] = np.asarray) -> Interval:
    """The mean of the windows' own means (N), or what `then` makes of it."""
    return _interval(then(windows.mean()), then(windows[drawn].mean(1)))


def _interval(value: Any, draws: Array) -> Interval:
    return Interval(*map(float, (value, *np.quantile(draws, _ENDS))))
