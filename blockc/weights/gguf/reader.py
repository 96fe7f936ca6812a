"""GGUF files, whole or split into parts, read through the `gguf` package. Tensors are dequantised one at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blockc.basics import floats
from blockc.basics.errors import CheckpointError, escape, shorten
from blockc.basics.jsonfile import dump_json
from blockc.ir import Array, Blocks
from blockc.weights.gguf.codes import ENCODINGS
from blockc.weights.gguf.metadata import Metadata
from blockc.weights.gguf.tokenizer import generation_config, tokenizer_json
from blockc.weights.quantise import Codes
from blockc.weights.safetensors import HEAD, Shape, describe_empty, describe_foreign
from blockc.weights.special import GENERATION

MAGIC = b"GGUF"
FLOATS = frozenset(("F64", *(one.safetensors for one in floats.FLOATS.values())))  # GGUF has the same names
PIECE = 1 << 19  # bytes of codes that are read at a time
SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


@dataclass(frozen=True)
class EncodedTensor:
    """A tensor in blocks of one of GGUF's kinds. `rows` is its shape as stored, in numbers of the dtype `stored`."""

    path: Path
    offset: int
    rows: Shape
    stored: np.dtype[Any]
    kind: Any  # gguf.GGMLQuantizationType
    shape: Shape
    turned = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[Array]:
        yield self.read().reshape(-1)

    def read(self) -> Array:
        from gguf.quants import dequantize

        data = self._read(self.offset, int(np.prod(self.rows)))
        try:
            return np.asarray(dequantize(data.reshape(self.rows), self.kind), np.float32).reshape(self.shape)
        except NotImplementedError:
            raise CheckpointError(f"{self.path}: blocks of {self.kind.name} are not read") from None

    @property
    def coding(self) -> str:
        """GGUF's name of the codes, empty for floats."""
        return "" if self.kind.name in FLOATS else self.kind.name

    @property
    def blocks(self) -> Blocks | None:
        """The blocks in which `codes` gives a matrix; None where it cannot."""
        return ENCODINGS[self.kind.name].blocks if self.kind.name in ENCODINGS and len(self.shape) == 2 else None

    def codes(self, order: Array) -> Iterator[Codes]:
        """Codes, scales and lows of these rows of a matrix, in that order. A piece is read with the rows between."""
        encoding, width = ENCODINGS[self.kind.name], self.rows[-1]
        step = max(1, PIECE // width)
        for start in range(0, len(order), step):
            part = order[start : start + step]
            first, last = int(part.min()), int(part.max())
            rows = self._read(self.offset + first * width, (last + 1 - first) * width).reshape(-1, width)
            yield encoding.codes(rows[part - first])

    def _read(self, offset: int, count: int) -> Array:
        data = np.fromfile(self.path, self.stored, count, offset=offset)
        if data.size != count:
            raise CheckpointError(f"{self.path} has become shorter while it was read")
        return data


@dataclass(frozen=True)
class GGUF:
    """A file, or all parts of a split one; the metadata is that of the first part."""

    architecture: str
    tensors: Mapping[str, EncodedTensor]
    values: Mapping[str, Any]

    @property
    def metadata(self) -> Metadata:
        """The metadata of the model. Where rope is scaled, a tensor may hold the divisors of its frequencies."""
        scaled = self.tensors.get("rope_freqs.weight")
        factors = None if scaled is None else tuple(scaled.read().reshape(-1).tolist())
        return Metadata(self.architecture, self.values, factors)

    def companions(self) -> dict[str, bytes]:
        """tokenizer.json if the metadata has all of it, the ids of special tokens, and the chat template."""
        found: dict[str, bytes] = {}
        if ids := generation_config(self.values):
            found[GENERATION] = dump_json(ids)
        if isinstance(template := self.values.get("tokenizer.chat_template"), str):
            found["chat_template.jinja"] = template.encode()
        if (tokenizer := tokenizer_json(self.values)) is not None:
            found["tokenizer.json"] = (json.dumps(tokenizer, ensure_ascii=False, indent=2) + "\n").encode()
        return found


@dataclass(frozen=True)
class _Part:
    path: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, EncodedTensor]

    def number(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) else None


def is_gguf(path: Path) -> bool:
    """Whether a file is GGUF: by its suffix, or by its first bytes, since files of a download cache have no suffix."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix.lower() == ".gguf" or (path.suffix != ".safetensors" and file.read(4) == MAGIC)


def find_models(folder: Path) -> list[Path]:
    """The GGUF models of a folder; of a split model its first part."""
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf" and path.is_file())
    split = {path: SPLIT.fullmatch(path.name) for path in found}
    whole = {name[1]: path for path, name in reversed(split.items()) if name}
    return [path for path in found if not (name := split[path]) or whole[name[1]] == path]


def read_gguf(path: Path) -> GGUF:
    """Reads the header of a GGUF file; for any part of a split file, the headers of all parts.

    Raises CheckpointError; ModuleNotFoundError without the `gguf` package.
    """
    parts = _read_parts(path)
    values = parts[0].values
    architecture, kind = values.get("general.architecture"), values.get("general.type", "model")
    tensors: dict[str, EncodedTensor] = {}
    for part in parts:
        if twice := tensors.keys() & part.tensors.keys():
            raise CheckpointError(f"{part.path}: tensor {escape(min(twice))} is in another part too")
        tensors |= part.tensors
    if kind != "model":
        raise CheckpointError(f"{path}: a GGUF file of the type {escape(kind)}, and not a model")
    if not isinstance(architecture, str) or not tensors:
        raise CheckpointError(f"{path}: a GGUF file without {'tensors' if architecture else 'general.architecture'}")
    total = parts[0].number("split.tensors.count")
    if len(parts) > 1 and total is not None and total != len(tensors):
        raise CheckpointError(f"{path}: the {len(parts)} parts hold {len(tensors)} tensors together, expected {total}")
    return GGUF(architecture, tensors, values)


def _read_parts(path: Path) -> list[_Part]:
    named = _read_part(path)
    count, number = named.number("split.count") or 1, named.number("split.no") or 0
    if count <= 1:
        return [named]
    name = SPLIT.fullmatch(path.name)
    if name is None or (int(name[2]), int(name[3])) != (number + 1, count):
        expected = f"NAME-{number + 1:05}-of-{count:05}.gguf"
        raise CheckpointError(
            f"{path}: part {number + 1} of {count} of a split GGUF file, under another name than its parts have: call"
            f" it {expected}, with the other parts beside it"
        )
    paths = [path.with_name(f"{name[1]}-{i + 1:05}-of-{count:05}{name[4]}") for i in range(count)]
    if absent := [each.name for each in paths if not each.is_file()]:
        raise CheckpointError(
            "\n  ".join([f"{path}: part {number + 1} of {count}, and these are not beside it:", *shorten(absent)])
        )
    parts = [named if each == path else _read_part(each) for each in paths]
    for i, part in enumerate(parts):
        if (part.number("split.no"), part.number("split.count")) != (i, count):
            raise CheckpointError(f"{part.path}: not part {i + 1} of {count}, as its name says: it is of another file")
    return parts


def _read_part(path: Path) -> _Part:
    import gguf

    _recognise(path)
    try:
        reader: Any = _make_reader_class(gguf.GGUFReader)(path)
        values = {name: item.contents() for name, item in reader.fields.items()}
        tensors = {str(t.name): _locate_tensor(path, t) for t in reader.tensors}
    except (ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a GGUF file that can be read: {escape(error)}") from None
    if empty := [name for name, tensor in tensors.items() if 0 in tensor.shape]:
        raise CheckpointError(describe_empty(path, empty))
    return _Part(path, values, tensors)


def _recognise(path: Path) -> None:
    """Raises CheckpointError for anything but a GGUF file of this byte order, and says what the file is."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    if head[:4] != MAGIC:
        raise CheckpointError(f"{path}: not a GGUF file{describe_foreign(head)}")
    version = int.from_bytes(head[4:8], "little")
    if version and not version & 0xFFFF:
        raise CheckpointError(
            f"{path}: a big-endian GGUF file, for other processors: turn a copy of it with"
            f" `gguf-convert-endian {path.name} little`, which comes with the package gguf"
        )
    if version == 1:
        raise CheckpointError(f"{path}: a GGUF file of version 1, of 2023, which is no longer read: convert it again")


def _make_reader_class(base: Any) -> Any:
    """The package's reader, made to raise ValueError at the end of the file, where it would otherwise never stop."""

    class Reader(base):
        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
            found = super()._get(offset, dtype, count, *order, **named)
            if len(found) != int(count):
                raise ValueError(f"the file ends before the data at byte {offset}")
            return found

    return Reader


def _locate_tensor(path: Path, tensor: Any) -> EncodedTensor:
    """GGUF counts axes from the innermost one."""
    from gguf.quants import quant_shape_from_byte_shape

    shape = tuple(int(n) for n in reversed(tensor.shape))
    rows = tuple(int(n) for n in tensor.data.shape)
    if (
        0 not in shape
        and tensor.data.dtype == np.uint8
        and tuple(quant_shape_from_byte_shape(rows, tensor.tensor_type)) != shape
    ):
        raise ValueError(f"{tensor.name} is {shape}, but its blocks are {rows}")
    return EncodedTensor(path, int(tensor.data_offset), rows, tensor.data.dtype, tensor.tensor_type, shape)
