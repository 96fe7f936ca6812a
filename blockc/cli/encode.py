"""blockc run --embed and --rerank: vectors of texts, and documents in the order of their fit to a query."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from blockc.cli.common import ENVIRONMENT, USAGE, WRONG, plain_line, stop
from blockc.cli.files import STDIN
from blockc.cli.terminal import write_text
from blockc.graph.target import Provider

if TYPE_CHECKING:
    from blockc.ir import Array
    from blockc.runtime import Encoder, Ranked

Format = Literal["text", "json", "npy"]
BATCH = 32  # texts, as runtime.encoder.BATCH, which is slow to import
SHOWN = 4  # numbers of a vector that are printed for people
WIDE = 60  # characters of a text beside them
_EITHER = "--embed or --rerank"
# What each option goes with.
FOR = {
    "--document": "--rerank", "--template": "--rerank", "--prompt-name": "--embed", "--batch": _EITHER,
    "--strict": _EITHER, "--format": _EITHER, "--output": _EITHER,
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """The options of --embed and --rerank."""

    embed: Sequence[str]
    rerank: str | None
    documents: Sequence[str]
    prompt_name: str | None
    template: Path | None
    batch: int
    strict: bool
    format: Format
    output: Path | None

    @property
    def option(self) -> str:
        """What is asked for; empty where nothing of an encoder is."""
        return "--embed" if self.embed else "--rerank" if self.rerank is not None else ""

    @property
    def idle(self) -> list[str]:
        """The options that go with something else than is asked for."""
        on = {
            "--document": bool(self.documents), "--template": self.template is not None,
            "--prompt-name": self.prompt_name is not None, "--batch": self.batch != BATCH, "--strict": self.strict,
            "--format": self.format != "text", "--output": self.output is not None,
        }  # fmt: skip
        fits = {self.option, _EITHER} if self.option else set[str]()
        return [option for option, said in on.items() if said and FOR[option] not in fits]

    def refuse(self, of_prompts: Sequence[str]) -> None:
        """Ends the command where options do not fit; `of_prompts` are those given that make a model write."""
        if self.embed and self.rerank is not None:
            stop(USAGE, "--embed and --rerank ask for two things: give one of them")
        if of_prompts:
            stop(USAGE, f"{of_prompts[0]} is for a model that writes text, and {self.option} is not: leave one out")
        if self.idle:
            stop(USAGE, f"{self.idle[0]} is for {FOR[self.idle[0]]}")
        if self.rerank is not None and not self.documents:
            stop(USAGE, "--rerank needs documents: give them with --document TEXT, or --document - for standard input")
        if self.format == "npy" and self.rerank is not None:
            stop(USAGE, "--format npy is for vectors, and --rerank gives scores: choose json")
        if self.format == "npy" and self.output is None:
            stop(USAGE, "--format npy is for a file: say which with --output FILE")


def run(folder: Path, provider: Provider, threads: int | None, prepack: bool | None, asked: Asked) -> None:
    """Opens the model, and prints what is asked for."""
    from blockc.basics.distribution import missing_message

    try:
        from blockc.runtime import Encoder, ProviderError, SessionError
        from blockc.runtime.text import whole_text
    except ModuleNotFoundError as error:
        stop(ENVIRONMENT, missing_message(error.name, "run"))
    try:
        template = None if asked.template is None else _read_template(asked.template)
        texts = _read_texts(asked.documents if asked.rerank is not None else asked.embed, asked)
        encoder = Encoder(folder, provider, threads, prepack)
        if asked.rerank is None:
            _print_vectors(encoder, texts, asked)
        else:
            _print_ranked(encoder, whole_text(asked.rerank), texts, template, asked)
    except ModuleNotFoundError as error:
        stop(ENVIRONMENT, missing_message(error.name, "run"))
    except ProviderError as error:
        stop(ENVIRONMENT, str(error))
    except SessionError as error:
        stop(WRONG, str(error))


def _read_texts(given: Sequence[str], asked: Asked) -> list[str]:
    """The texts of an option; - stands for those on standard input, one a line."""
    from blockc.runtime.text import whole_text

    if list(given).count(STDIN) > 1:
        option = "--document" if asked.rerank is not None else "--embed"
        stop(USAGE, f"{option} - reads standard input, so it can be given once")
    texts: list[str] = []
    for text in given:
        texts += [line.rstrip("\r\n") for line in sys.stdin] if text == STDIN else [text]
    return [whole_text(text) for text in texts]


def _read_template(path: Path) -> str:
    """The text of a file, without the line break at its end."""
    from blockc.basics.jsonfile import FileError, read_bounded, reason_of
    from blockc.runtime import SessionError

    try:
        return read_bounded(path).decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise SessionError(f"{path}: not a text in UTF-8") from None
    except (FileError, OSError) as error:
        raise SessionError(reason_of(path, error)) from None


def _print_vectors(encoder: Encoder, texts: Sequence[str], asked: Asked) -> None:
    """Prints the vector of each text, or writes all to a file."""
    started = time.perf_counter()
    vectors = encoder.embed(texts, asked.batch, prompt_name=asked.prompt_name, strict=asked.strict)
    took = time.perf_counter() - started
    if asked.format == "npy":
        _write(_npy(vectors), asked.output)
    elif asked.format == "json":
        _write(json.dumps([_shortest(vector) for vector in vectors]) + "\n", asked.output)
    else:
        _write("".join(_vector_line(text, vector) for text, vector in zip(texts, vectors, strict=True)), asked.output)
    _print_figures(encoder, "text", len(texts), took)


def _print_ranked(encoder: Encoder, query: str, documents: Sequence[str], template: str | None, asked: Asked) -> None:
    """Prints documents, best first, each behind its score."""
    started = time.perf_counter()
    ranked = encoder.rerank(query, documents, asked.batch, template=template, strict=asked.strict)
    took = time.perf_counter() - started
    if asked.format == "json":
        _write(json.dumps([_as_object(each, documents) for each in ranked], ensure_ascii=False) + "\n", asked.output)
    else:
        _write("".join(f"{each.score:.4f}  {plain_line(documents[each.index])}\n" for each in ranked), asked.output)
    _print_figures(encoder, "document", len(documents), took)
    of_logit = "model's logit"
    if encoder.activation != "identity":
        of_logit = f"{encoder.activation} of the {of_logit}"
    how = of_logit if encoder.scores_pairs else "cosine of the query's vector and the document's"
    print(f"score: the {how}", file=sys.stderr)


def _vector_line(text: str, vector: Array) -> str:
    """The first numbers of a vector, how many there are, and the beginning of its text."""
    numbers = " ".join(f"{number: .4f}" for number in vector[:SHOWN])
    more = " ..." if len(vector) > SHOWN else ""
    said = plain_line(text)
    said = said if len(said) <= WIDE else said[: WIDE - 3] + "..."
    return f"[{numbers}{more}] of {len(vector)}  {said}\n"


def _shortest(vector: Array) -> list[float]:
    """The fewest digits that are read as the same float32."""
    return [float(str(number)) for number in vector]


def _as_object(each: Ranked, documents: Sequence[str]) -> dict[str, Any]:
    logit = {} if each.logit is None else {"logit": each.logit}
    return {"index": each.index, "score": each.score, **logit, "document": documents[each.index]}


def _write(said: str | bytes, output: Path | None) -> None:
    from blockc.authoring.specfiles import write_whole

    if output is not None:
        write_whole(output, said)
    elif isinstance(said, str):
        write_text(said)


def _npy(vectors: Array) -> bytes:
    import numpy as np

    held = io.BytesIO()
    np.save(held, vectors)
    return held.getvalue()


def _print_figures(encoder: Encoder, what: str, count: int, took: float) -> None:
    if encoder.told_of_cut:
        print(f"blockc: {encoder.told_of_cut}: the rest was not read", file=sys.stderr)
    many = f"1 {what}" if count == 1 else f"{count:,} {what}s"
    print(f"{many}, {encoder.tokens:,} tokens in {took:.2f} s", file=sys.stderr)
