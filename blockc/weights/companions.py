"""The small files that a runtime needs beside the weights. They are untrusted, and checked as they are read.

config.json is not one of them, and lies in a build only where a product needs it: the spec replaces it, and must agree
with it. Special tokens that only config.json has are added to generation_config.json, and what it says of a
classifier's logits becomes labels.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockc.basics.errors import CheckpointError
from blockc.basics.jsonfile import FileError, dump_json, parse_json_object, read_bounded, read_json_object, reason_of
from blockc.weights.labels import FILE as LABELS
from blockc.weights.labels import read_labels
from blockc.weights.special import CONFIG, GENERATION, TOKENIZER, TOKENS, SpecialError, complete_generation

SENTENCE = "sentence_bert_config.json"  # the tokens after which a text is cut, of sentence-transformers
PROMPTS = "config_sentence_transformers.json"  # what stands before a text, and how two vectors are compared
COMPANIONS = ("tokenizer.json", TOKENIZER, TOKENS, GENERATION, "chat_template.jinja", SENTENCE, PROMPTS, LABELS)
MAX_COMPANION = 1 << 28  # bytes


def read_companions(folder: Path) -> dict[str, bytes]:
    """The companions in the folder of a checkpoint, by name. Raises CheckpointError."""
    held = {name: read_companion(folder, name) for name in COMPANIONS}
    return {name: data for name, data in held.items() if data is not None}


def with_config(folder: Path, held: dict[str, bytes]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """(The companions, with generation_config.json and labels.json completed from config.json; a note for each change.)

    Raises CheckpointError, also where one of the two files names an eos token that the model does not have.
    """
    config = _read_config(folder / CONFIG)
    generation = parse_json_object(held[GENERATION], str(folder / GENERATION)) if GENERATION in held else {}
    try:
        made, told = complete_generation(generation, config, folder)
    except SpecialError as error:
        raise CheckpointError(str(error)) from None
    labels, left = ({}, ()) if LABELS in held else read_labels(config)
    added = {**({GENERATION: made} if made is not None else {}), **({LABELS: labels} if labels else {})}
    return {**held, **{name: dump_json(data) for name, data in added.items()}}, (*told, *left)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        return {}
    except (FileError, OSError) as error:
        raise CheckpointError(reason_of(path, error)) from None


def read_companion(folder: Path, name: str) -> bytes | None:
    """A file beside the weights, or None. Raises CheckpointError."""
    path = folder / name
    if path.is_symlink():
        _refuse_link_out(path)
    try:
        data = read_bounded(path, MAX_COMPANION)
        if path.suffix == ".json":
            parse_json_object(data, str(path))
        else:
            data.decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: not a text in UTF-8") from None
    except (FileError, OSError) as error:
        raise CheckpointError(reason_of(path, error)) from None
    return data


def _refuse_link_out(path: Path) -> None:
    """Raises CheckpointError for a link that leads neither into its own folder nor to a blob of the Hub's cache.

    Companions are copied into a build, so any other link could copy any file of this machine there.
    """
    target, folder = path.resolve(), path.parent.resolve()
    if not target.exists():
        raise CheckpointError(f"{path}: a link to {target}, which is not there")
    if not target.is_relative_to(folder) and target.parent.name != "blobs":
        raise CheckpointError(f"{path}: a link that leaves the checkpoint, to {target}: put a copy of the file there")
