"""Vectors of texts, scores of pairs and logits of classes, by graphs that read whole texts.

B texts of a batch, S tokens of its longest, D numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blockc.basics.errors import UsageError, escape
from blockc.graph.contract import IDS, LOGITS, MASK, POOLED, SEGMENTS, Port
from blockc.graph.target import Provider
from blockc.ir import Array
from blockc.runtime.cache import HostTensor, on_cpu
from blockc.runtime.opening import OpenModel, SessionError, open_encoder
from blockc.runtime.reading import DOCUMENT, QUERY, Reader, Tokens
from blockc.runtime.sampling import as_float32
from blockc.runtime.text import optional_object
from blockc.weights.labels import FILE as LABELS

BATCH = 32  # texts
_SCORES: dict[str, Callable[[Array], Array]] = {  # what labels.json may say that a logit becomes
    "identity": lambda logits: logits,
    "sigmoid": lambda logits: 1 / (1 + np.exp(-logits)),
    "tanh": np.tanh,
}
TOKENS = 1 << 14  # tokens of a batch with its padding; a longer text is a batch by itself


@dataclass(frozen=True)
class Ranked:
    """A document's place in the list that was given, its score, and a reranker's logit; None for a cosine."""

    index: int
    score: float
    logit: float | None = None


class Encoder:
    """A build that reads whole texts: an embedding model, a reranker, or a classifier.

    `cut` says how many texts of the last call had more tokens than `limit`, and lost their ends; with `strict` such a
    call raises SessionError. So does a folder that cannot be run, or that gives something else than is asked for.
    """

    def __init__(
        self, folder: Path | str, provider: Provider = "cpu", threads: int | None = None, prepack: bool | None = True
    ) -> None:
        """Opens a build. `prepack` copies matrices into the order of the kernels, as in `Session`."""
        self.folder = Path(folder)
        self.model: OpenModel = open_encoder(self.folder, provider, threads, prepack)
        self.reader = Reader(self.folder, self.model.context, self.model.vocab)
        said = optional_object(self.folder / LABELS)
        self.labels: tuple[str, ...] = tuple(map(str, said.get("labels") or ()))  # names of classes, if any are said
        self.activation = str(said.get("activation") or "sigmoid")  # what makes a logit a score
        self.cut = 0
        self.tokens = 0  # read in the last call, without padding

    @property
    def limit(self) -> int:
        """The most tokens of a text, special ones included."""
        return self.reader.limit

    @property
    def scores_pairs(self) -> bool:
        """Whether it reads a query and a document together, and gives one logit of both."""
        port = self._text_logits
        return port is not None and port.shape[-1] == 1

    @property
    def _text_logits(self) -> Port | None:
        port = self.model.contract.output(LOGITS)
        return port if port is not None and len(port.shape) == 2 else None

    def embed(
        self,
        texts: Sequence[str],
        batch: int = BATCH,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        strict: bool = False,
    ) -> Array:
        """The vectors of texts (N, D), float32, in their order.

        `prompt` stands before each text; `prompt_name` names one of the folder's prompts. By default that is the one
        that config_sentence_transformers.json calls the default, if any.
        """
        _refuse_text(texts, "texts")
        if prompt is not None and prompt_name is not None:
            raise UsageError("names a prompt, and prompt is one: give one of both", "prompt_name")
        port = self._vector_port()
        before = self.reader.prompt(prompt_name) if prompt is None else prompt
        return self._run(self.reader.read(texts, before), port, batch, strict)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        batch: int = BATCH,
        *,
        template: str | None = None,
        strict: bool = False,
    ) -> list[Ranked]:
        """The documents, best first; equal scores are in the order given.

        A model of one class reads the query with each document; the score is sigmoid(logit), or what labels.json says
        instead. With `template`, both are one text: it has {query} and {document} in it. An embedding model reads each
        by itself, behind its prompt for queries or for documents, else its default one; the score is the cosine of
        their vectors.
        """
        _refuse_text(documents, "documents")
        if self.scores_pairs:
            found = self._rank_pairs(query, documents, batch, template, strict)
        else:
            found = self._rank_vectors(query, documents, batch, template, strict)
        return sorted(found, key=lambda each: -(each.score if each.logit is None else each.logit))

    def classify(self, texts: Sequence[str], batch: int = BATCH, *, strict: bool = False) -> Array:
        """The logits of classes of texts (N, classes), float32; `labels` has the names of the classes."""
        _refuse_text(texts, "texts")
        port = self._text_logits
        if port is None:
            raise SessionError(f"{self.folder}: gives {self._told}, and no logits of a text")
        return self._run(self.reader.read(texts), port, batch, strict)

    def _rank_pairs(
        self, query: str, documents: Sequence[str], batch: int, template: str | None, strict: bool
    ) -> list[Ranked]:
        port = self._text_logits
        assert port is not None
        if self.activation not in _SCORES:
            raise SessionError(
                f"{self.folder / LABELS}: activation is {escape(self.activation)}, and of one logit that is no score: "
                f"expected {' or '.join(_SCORES)}"
            )
        logits = self._run(self.reader.read_pairs(query, documents, template), port, batch, strict)[:, 0]
        scores = _SCORES[self.activation](logits.astype(np.float64))
        return [Ranked(i, float(scores[i]), float(logits[i])) for i in range(len(documents))]

    def _rank_vectors(
        self, query: str, documents: Sequence[str], batch: int, template: str | None, strict: bool
    ) -> list[Ranked]:
        port = self._vector_port()
        if template is not None:
            raise UsageError(
                "is for a model that reads both texts at once, and this one gives a vector of each", "template"
            )
        asked = self.reader.read([query], self.reader.side_prompt(QUERY))
        held = self.reader.read(documents, self.reader.side_prompt(DOCUMENT))
        vectors = self._run([*asked, *held], port, batch, strict).astype(np.float64)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return [Ranked(i, float(score)) for i, score in enumerate(vectors[1:] @ vectors[0])]

    def _vector_port(self) -> Port:
        port = self.model.contract.output(POOLED)
        if port is not None:
            return port
        if self._text_logits is not None:
            use = "rerank documents with it" if self.scores_pairs else "classify texts with it, in Python"
            raise SessionError(f"{self.folder}: gives {self._told}, and no vector of a text: {use}")
        raise SessionError(
            f"{self.folder}: gives {self._told}, and nothing says which vector stands for a text: say `head: none` and "
            "`pool`, such as {type: mean}, in the spec, and build it again"
        )

    @property
    def _told(self) -> str:
        contract = self.model.contract
        if (port := self._text_logits) is not None:
            count = port.shape[-1]
            return "one logit of a text" if count == 1 else f"logits of {count} classes"
        return "logits of each token" if contract.output(LOGITS) else "the hidden states of each token"

    def _run(self, read: Sequence[Tokens], port: Port, batch: int, strict: bool) -> Array:
        """An output of texts (N, D), float32. Texts of like length are read together."""
        if batch < 1:
            raise UsageError(f"{batch}: expected a number of texts, 1 or more", "batch")
        self.cut, self.tokens = sum(each.cut for each in read), sum(len(each.ids) for each in read)
        if strict and self.cut:
            raise SessionError(f"{self.told_of_cut}: shorten them, or leave strict out")
        made = np.zeros((len(read), self.model.width(port)), np.float32)
        for rows in _batches([len(each.ids) for each in read], batch):
            made[rows] = self._call([read[i] for i in rows], port)
        return made

    @property
    def told_of_cut(self) -> str:
        """Which texts of the last call were too long; empty where none was."""
        if not self.cut:
            return ""
        texts = "1 text has" if self.cut == 1 else f"{self.cut} texts have"
        return f"{texts} more than {self.limit} tokens, the limit by {self.reader.limited_by}"

    def _call(self, read: Sequence[Tokens], port: Port) -> Array:
        """An output of a batch (B, D), padded on the right to its longest text."""
        model, longest = self.model, max(len(each.ids) for each in read)
        given = {name: np.zeros((len(read), longest), np.int64) for name in (IDS, MASK, SEGMENTS)}
        for i, each in enumerate(read):
            held = slice(0, len(each.ids))
            given[IDS][i, held], given[SEGMENTS][i, held], given[MASK][i, held] = each.ids, each.segments, 1
        made = HostTensor(model.type_of(port.dtype))
        made.reshape(len(read), model.width(port))
        binding: Any = model.session.io_binding()
        for each in model.contract.inputs:
            binding.bind_ortvalue_input(each.name, on_cpu(given[each.name], model.type_of(each.dtype)))
        binding.bind_ortvalue_output(port.name, made.value)
        model.session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return as_float32(made.array)


def _batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Which texts are read together: the longest first, so many at most, and so many tokens with their padding."""
    rows: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if rows and (len(rows) == most or (len(rows) + 1) * lengths[rows[0]] > TOKENS):
            yield rows
            rows = []
        rows.append(i)
    if rows:
        yield rows


def _refuse_text(texts: Sequence[str], name: str) -> None:
    if isinstance(texts, str):
        raise UsageError("is one text: give a list of them", name)
