"""Runs builds with weights, measures how fast and how good they are, and examines this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockc.basics.distribution import require_packages
from blockc.basics.errors import UsageError
from blockc.basics.progress import Progress, no_progress

if TYPE_CHECKING:
    from blockc.bench.measure import Bench
    from blockc.bench.quality import Quality
    from blockc.checks.doctor import Health
    from blockc.graph.target import Provider
    from blockc.ir import Array
    from blockc.runtime.encoder import Ranked


@require_packages("run")
def run(
    folder: Path | str,
    prompts: Sequence[str],
    *,
    tokens: int = 128,
    provider: Provider = "cpu",
    threads: int | None = None,
    temperature: float = 0.0,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    chat: bool = False,
    system: str | None = None,
    prepack: bool = False,
    capture: bool = False,
    lookup: int = 0,
) -> list[str]:
    """The text that the build writes after each prompt: at most `tokens` tokens, fewer if one of them ends the text.

    With a temperature above 0, tokens are drawn; else each is the likeliest. With `chat`, a prompt is a message to an
    assistant in the checkpoint's template, after the system message `system`. `prepack` copies matrices into the order
    of the kernels; those in codes always are. `capture` runs decode steps as a CUDA graph. `lookup` drafts up to so
    many tokens from the one prompt's own text, and checks them in one step, as `Session.generate` says. Raises
    SessionError if the folder cannot be run. `blockc.runtime.Session` gives token by token.
    """
    from blockc.runtime import Session
    from blockc.runtime.chat import prompt_ids
    from blockc.runtime.sampling import choose_sampler
    from blockc.runtime.stream import TextStream
    from blockc.runtime.text import Tokenizer

    if isinstance(prompts, str):
        raise UsageError("is one text: give a list of them", "prompts")
    if tokens < 1:
        raise UsageError(f"{tokens}: expected 1 or more", "tokens")
    if system is not None and not chat:
        raise UsageError("is a message to an assistant: give chat=True too", "system")
    choose = choose_sampler(temperature, top_k, top_p, seed)
    session = Session(folder, provider, threads, prepack or None, capture)
    tokenizer = Tokenizer(Path(folder), session.model.vocab)
    read = [prompt_ids(Path(folder), tokenizer, text, chat, system) for text in prompts]
    streams = [TextStream(tokenizer, ids) for ids in read]
    texts = [""] * len(read)
    for step in session.generate(read, tokens, tokenizer.stop, choose, lookup) if read else ():
        for i, token in enumerate(step):
            if token is not None and token not in tokenizer.stop:
                texts[i] += streams[i].push(token)
    return [text + stream.rest() for text, stream in zip(texts, streams, strict=True)]


@require_packages("run")
def embed(
    folder: Path | str,
    texts: Sequence[str],
    *,
    batch: int = 32,
    prompt_name: str | None = None,
    strict: bool = False,
    provider: Provider = "cpu",
    threads: int | None = None,
    prepack: bool = False,
) -> Array:
    """The vectors of texts (N, D), float32, in their order, from a build whose spec has a pool and no head.

    `prompt_name` names one of the model's prompts, which then stands before each text. A text that is too long is read
    up to the model's limit; with `strict` it is refused. Raises SessionError. `blockc.runtime.Encoder` does the same
    again and again with one open build.
    """
    from blockc.runtime import Encoder

    return Encoder(folder, provider, threads, prepack or None).embed(
        texts, batch, prompt_name=prompt_name, strict=strict
    )


@require_packages("run")
def rerank(
    folder: Path | str,
    query: str,
    documents: Sequence[str],
    *,
    batch: int = 32,
    template: str | None = None,
    strict: bool = False,
    provider: Provider = "cpu",
    threads: int | None = None,
    prepack: bool = False,
) -> list[Ranked]:
    """The documents by their fit to a query, best first: each with its `index` in the list given and its `score`.

    A build with one class reads the query with each document, and the score is sigmoid(logit); a build with vectors
    reads each text by itself, and the score is their cosine. `Encoder.rerank` says what a template is. Raises
    SessionError.
    """
    from blockc.runtime import Encoder

    return Encoder(folder, provider, threads, prepack or None).rerank(
        query, documents, batch, template=template, strict=strict
    )


def _quiet(_: str) -> None:
    """Says nothing."""


@require_packages("cpu")
def bench(
    folder: Path | str,
    against: Sequence[Path | str] = (),
    *,
    prefill: Sequence[int] = (128, 512),
    decode: Sequence[int] = (128, 1024),
    encode: Sequence[int] | None = None,
    batch: Sequence[int] = (32, 1),
    threads: int | None = None,
    turns: int = 5,
    provider: Provider = "cpu",
    ops: bool = False,
    text: Path | str | None = None,
    lookup: int | None = None,
    tokens: int | None = None,
    said: Callable[[str], None] = _quiet,
) -> Bench:
    """Measures prefill and decode of builds in turns, each in its own process, beside the machine's floor.

    `prefill` and `decode` are lengths in tokens. Builds without a cache, such as encoders, read batches of texts
    instead: `encode` has the tokens of a text, 16, 128 and 512 by default as far as they are within the context, and
    `batch` the texts of a batch.

    `ops` adds what a decode step takes by operator, by onnxruntime's own profile, on the CPU alone. `text` is a file in
    UTF-8 after which each build writes `tokens` more tokens, 128 by default, token by token and with `lookup` as
    `Session.generate` has it. None is lookup of 7 for the builds that have it; a number is for all of them, 0 for none.

    `said` is called with a line for each step. The result's `text()` and `data()` are what the command prints. Raises
    SessionError and WorkerError.
    """
    from blockc.bench.asked import Asked
    from blockc.bench.measure import find_entries, measures_of, run_bench
    from blockc.bench.writing import read_prompt

    if bad := [n for n in (turns, *([] if threads is None else [threads])) if n < 1]:
        raise UsageError(f"{bad[0]}: expected numbers of turns and threads, 1 or more")
    asked = Asked(prefill, decode, encode, batch, ops, text is not None)
    if ops and provider == "cuda":
        raise UsageError("is for the CPU: of cuda, onnxruntime's profile has the launches of kernels alone", "ops")
    _refuse_writing(text is not None, lookup, tokens)
    prompt = None if text is None else read_prompt(Path(text), tokens, lookup)
    found = find_entries(Path(folder), [Path(other) for other in against])
    measures = measures_of(found, asked)
    return run_bench(
        found, measures, provider=provider, threads=threads, turns=turns, ops=ops, prompt=prompt, said=said
    )


def _refuse_writing(text: bool, lookup: int | None, tokens: int | None) -> None:
    """Raises UsageError for arguments that do not fit a text, or without one."""
    given = {"lookup": lookup, "tokens": tokens}
    if idle := [name for name, value in given.items() if value is not None and not text]:
        raise UsageError("is for a text: give that too", idle[0])
    if lookup is not None and lookup < 0:
        raise UsageError(f"{lookup}: expected 0 or more", "lookup")
    if tokens is not None and tokens < 2:
        raise UsageError(f"{tokens}: expected 2 or more, since the first one is not timed", "tokens")


@require_packages("run")
def quality(
    folder: Path | str,
    against: Path | str,
    text: Path | str | None = None,
    *,
    window: int | None = None,
    provider: Provider = "cpu",
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Quality:
    """How far a build's predictions are from those of `against`, usually the same weights in fp32, on the same text.

    `text` is a file in UTF-8; without one it is chapters of a book that come with blockc. It is read in windows of
    `window` tokens, 256 by default or the model's context if that is less. Each folder is a build with weights, or has
    another tool's model.onnx, and a tokenizer.json. Raises SessionError, for instance if their vocabularies differ.
    """
    from blockc.bench.quality import measure_quality

    at = None if text is None else Path(text)
    return measure_quality(Path(folder), Path(against), at, window, provider, threads, progress)


def doctor(folder: Path | str = ".") -> Health:
    """Examines packages and providers that blockc uses, and hard links in the folder, with a fix for each problem."""
    from blockc.checks.doctor import examine

    return examine(Path(folder))
