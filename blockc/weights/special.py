"""Special tokens: the ids that begin, end and fill up a text, as the files of a checkpoint say them.

generation_config.json comes first, as what a model is to be run with; then config.json, which has the same keys; then
the token that the tokenizer's own files name. A build has no config.json: what it says is written into the build's
generation_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from blockc.basics.errors import BlockcError

GENERATION, CONFIG = "generation_config.json", "config.json"
TOKENIZER, TOKENS = "tokenizer_config.json", "special_tokens_map.json"

FILES = (GENERATION, CONFIG, TOKENIZER, TOKENS)
Name = Literal["bos", "eos", "pad"]
Files = Mapping[str, Mapping[str, Any]]  # by name, what each holds; a file that is not there is left out


class SpecialError(BlockcError):
    """A file names a token that is none of the model's."""


def special_ids(
    name: Name, files: Files, number: Callable[[str], int | None], vocab: int | None = None, at: Path = Path()
) -> tuple[int, ...]:
    """The ids of the first file that says them; empty where none does. `number` is a token's id in tokenizer.json.

    `vocab` is how many tokens the model has, where that is known; `at` is where the files lie. Raises SpecialError.
    """
    for file in (GENERATION, CONFIG):
        if (said := _config_value(files.get(file, {}), f"{name}_token_id")) is not None:
            ids = said if isinstance(said, list) else [said]
            _refuse(at / file, f"{name}_token_id", ids, vocab)
            return tuple(ids)
    for file in (TOKENIZER, TOKENS):
        if (token := special_token(name, files.get(file, {}))) is not None:
            found = number(token)
            if found is None and name == "eos":
                raise SpecialError(
                    f"{at / file}: eos_token is {json.dumps(token)}, and tokenizer.json has no such token: "
                    f'say in {GENERATION} which token ends a text, as {{"eos_token_id": ID}}'
                )
            _refuse(at / file, f"{name}_token", [] if found is None else [found], vocab)
            return () if found is None else (found,)
    return ()


def special_token(name: str, held: Mapping[str, Any]) -> str | None:
    """The text of a token that tokenizer_config.json or special_tokens_map.json names."""
    token = held.get(f"{name}_token")
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def complete_generation(
    generation: Mapping[str, Any], config: Mapping[str, Any], at: Path = Path()
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """generation_config.json with what config.json alone says, or None where that is nothing; what to tell of it.

    A bos or pad that is no token, as -1 is, is left out: it says that there is none. Raises SpecialError for such eos.
    """
    vocab = _config_value(config, "vocab_size")
    vocab = vocab if type(vocab) is int and vocab > 0 else None
    special_ids("eos", {GENERATION: generation, CONFIG: config}, lambda _: None, vocab, at)
    added: dict[str, Any] = {}
    left: list[str] = []
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        said = _config_value(config, key)
        if said is None or generation.get(key) is not None:
            continue
        if key == "eos_token_id" or _is_token(said, vocab):
            added[key] = said
        else:
            left.append(f"{CONFIG}: {key} is {json.dumps(said)}, which is no token of the model: left out")
    told = f"{GENERATION}: {', '.join(f'{key} {said}' for key, said in added.items())} added, from {CONFIG}"
    return ({**generation, **added}, (told, *left)) if added else (None, tuple(left))


def _config_value(held: Mapping[str, Any], key: str) -> Any:
    """Of a config that holds a language model's within it, its own word comes first."""
    inner = held.get("text_config")
    return inner.get(key) if held.get(key) is None and isinstance(inner, dict) else held.get(key)


def _is_token(said: Any, vocab: int | None) -> bool:
    return type(said) is int and said >= 0 and (vocab is None or said < vocab)


def _refuse(path: Path, key: str, ids: list[Any], vocab: int | None) -> None:
    tokens = "a token is a number from 0 up" if vocab is None else f"the model's tokens are 0 to {vocab - 1}"
    for said in ids:
        if not _is_token(said, vocab):
            raise SpecialError(f"{path}: {key} is {json.dumps(said)}, and {tokens}")
