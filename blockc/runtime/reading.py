"""Texts and pairs of texts to the tokens of an encoder, by the files that lie beside it.

tokenizer.json says which special tokens stand around a text or between two. sentence_bert_config.json or
tokenizer_config.json says where a text is cut, and config_sentence_transformers.json what stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blockc.basics.errors import UsageError, escape
from blockc.runtime.opening import SessionError
from blockc.runtime.text import TOKENIZER_FILE, optional_object, read_tokenizer, whole_text
from blockc.weights.companions import PROMPTS, SENTENCE
from blockc.weights.special import TOKENIZER

# The names under which a file has the prompt of each side of a search; the first that is there is taken.
QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")


@dataclass(frozen=True)
class Tokens:
    """A text as the model reads it. `cut`: it had more tokens than the limit."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    cut: bool


class Reader:
    """Tokenises texts for an encoder of a context and a vocabulary. Raises SessionError.

    `limit` is the most tokens of a text, special ones included, and `limited_by` says whence it is.
    """

    def __init__(self, folder: Path, context: int, vocab: int) -> None:
        self.known: Any = read_tokenizer(folder / TOKENIZER_FILE)
        sentence, tokenizer = (optional_object(folder / name) for name in (SENTENCE, TOKENIZER))
        self.vocab = vocab
        self.lower = sentence.get("do_lower_case") is True
        limits = [(context, "the model's context")]
        for name, held, key in ((SENTENCE, sentence, "max_seq_length"), (TOKENIZER, tokenizer, "model_max_length")):
            said = held.get(key)
            if isinstance(said, int | float) and not isinstance(said, bool) and said >= 1:
                limits.append((int(said), f"{key} of {name}"))
                break
        self.limit, self.limited_by = min(limits, key=lambda each: each[0])
        self.side = "left" if tokenizer.get("truncation_side") == "left" else "right"
        self._limit()
        self._read_prompts(folder / PROMPTS)

    def _limit(self) -> None:
        self.known.enable_truncation(self.limit, direction=self.side)

    def _read_prompts(self, path: Path) -> None:
        held = optional_object(path)
        prompts, usual = held.get("prompts") or {}, held.get("default_prompt_name")
        if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
            raise SessionError(f"{path}: prompts: expected an object of texts")
        if usual is not None and usual not in prompts:
            raise SessionError(f"{path}: default_prompt_name is {escape(usual)!r}, and no prompt has that name")
        self.prompts: dict[str, str] = prompts
        self.usual: str | None = usual

    def prompt(self, name: str | None) -> str:
        """The text of a prompt, by default of the one that the folder names, if any. Raises UsageError."""
        name = self.usual if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = f"expected {' or '.join(map(escape, sorted(self.prompts)))}" if self.prompts else "it has none"
            raise UsageError(f"{escape(name)}: no prompt of the model has that name: {known}", "prompt_name")
        return self.prompts[name]

    def side_prompt(self, names: Sequence[str]) -> str:
        """The prompt of queries or of documents; the default one, if any, where the folder has none for that side."""
        return self.prompt(next((name for name in names if name in self.prompts), None))

    def read(self, texts: Sequence[str], prompt: str = "") -> list[Tokens]:
        """Each text behind a prompt, without white space at both ends."""
        return self._encode([self._whole(prompt + text).strip() for text in texts])

    def read_pairs(self, query: str, documents: Sequence[str], template: str | None = None) -> list[Tokens]:
        """The query with each document: as the tokenizer joins two texts, or one text by a template."""
        query = self._whole(query)
        others = [self._whole(text) for text in documents]
        if template is None:
            return self._encode([(query, other) for other in others])
        fitted = [self._fit(template, query, other) for other in others]
        read = self._encode([text for text, _ in fitted])
        return [replace(tokens, cut=tokens.cut or cut) for tokens, (_, cut) in zip(read, fitted, strict=True)]

    def _fit(self, template: str, query: str, document: str) -> tuple[str, bool]:
        """The template's text within the limit: of what is too long, the end of the document is cut."""
        text, cut = fill_template(template, query, document), False
        while (over := self._count(text) - self.limit) > 0:
            ends = [end for _, end in self._encode_whole(document, special=False).offsets]
            if over >= len(ends):
                raise SessionError(
                    f"the template and the query leave no room for a document: {over - len(ends)} tokens too many, "
                    f"and {self.limited_by} is {self.limit}"
                )
            document, cut = document[: min(ends[len(ends) - over - 1], len(document) - 1)], True
            text = fill_template(template, query, document)
        return text, cut

    def _count(self, text: str) -> int:
        return len(self._encode_whole(text).ids)

    def _encode_whole(self, text: str, special: bool = True) -> Any:
        """A text without a limit."""
        self.known.no_truncation()
        try:
            return self.known.encode(text, add_special_tokens=special)
        finally:
            self._limit()

    def _whole(self, text: str) -> str:
        text = whole_text(text)
        return text.lower() if self.lower else text

    def _encode(self, texts: Sequence[str | tuple[str, str]]) -> list[Tokens]:
        try:
            found = self.known.encode_batch(list(texts))
        except Exception as error:  # such as special tokens that alone are more than the limit
            raise SessionError(f"the tokenizer cannot read these texts: {error}") from None
        made = [Tokens(tuple(each.ids), tuple(each.type_ids), bool(each.overflowing)) for each in found]
        for i, each in enumerate(made):
            if not each.ids:
                raise SessionError(f"text {i + 1} of {len(made)} is empty, and this tokenizer adds no tokens to it")
            if bad := [token for token in each.ids if token >= self.vocab]:
                raise SessionError(
                    f"tokenizer.json gives token {bad[0]}, and the model has {self.vocab}: it is another model's"
                )
        return made


def fill_template(template: str, query: str, document: str) -> str:
    """The template with both texts in their places, which may hold these words themselves. Raises UsageError."""
    for name in ("{query}", "{document}"):
        if (count := template.count(name)) != 1:
            raise UsageError(f"has {name} {count} times: expected once", "template")
    before, _, after = template.partition("{query}")
    return before.replace("{document}", document) + query + after.replace("{document}", document)
