"""Special tokens: the ids that begin, end and pad a text, from the files of a checkpoint.

generation_config.json comes first, since it says how to run the model; then config.json, which has the same keys; then
the tokens that the tokenizer's own files name. A build has no config.json, so its ids are added to the build's
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
Files = Mapping[str, Mapping[str, Any]]  # the content of each file by its name; missing files are left out


class SpecialError(BlockcError):
    """A file names a token that the model does not have."""


def special_ids(
    name: Name, files: Files, number: Callable[[str], int | None], vocab: int | None = None, at: Path = Path()
) -> tuple[int, ...]:
    """The ids from the first file that has them; empty where none has. `number` gives a token's id in tokenizer.json.

    `vocab` is the size of the model's vocabulary, if known; `at` is the folder of the files. Raises SpecialError.
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
    """(generation_config.json with the ids that only config.json has, or None where there are none; notes on them.)

    A bos or pad that is no token, such as -1, stands for none and is left out. Such an eos raises SpecialError.
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
    """A key's value; in the config of a larger model, the language model's own config comes second."""
    inner = held.get("text_config")
    return inner.get(key) if held.get(key) is None and isinstance(inner, dict) else held.get(key)


def _is_token(said: Any, vocab: int | None) -> bool:
    return type(said) is int and said >= 0 and (vocab is None or said < vocab)


def _refuse(path: Path, key: str, ids: list[Any], vocab: int | None) -> None:
    tokens = "a token is a number from 0 up" if vocab is None else f"the model's tokens are 0 to {vocab - 1}"
    for said in ids:
        if not _is_token(said, vocab):
            raise SpecialError(f"{path}: {key} is {json.dumps(said)}, and {tokens}")
