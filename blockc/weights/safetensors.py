"""Safetensors files: untrusted when read, written whole or not at all. NumPy only; pickled weights are never opened.

8 bytes: n, little-endian | n bytes: JSON {name: {dtype, shape, data_offsets}} | the tensors, without holes
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np

from blockc.basics.errors import CheckpointError, escape, shorten
from blockc.basics.floats import FLOATS
from blockc.basics.jsonfile import FileError, parse_json_object, read_bounded, reason_of
from blockc.ir import Array

Shape = tuple[int, ...]

MAX_HEADER = 100_000_000  # bytes; the format's own bound
MAX_RANK = 8
LONGEST_AXIS = 1 << 31
HEAD = 64  # bytes that tell what a file is that holds no weights
CHUNK = 1 << 22  # numbers that are read at a time
CACHED = 1 << 20  # bytes that a processor's cache holds
F8 = "F8_E4M3"  # a sign, four bits of exponent, three of mantissa; no infinity
DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F64": "<f8",
} | {one.safetensors: one.numpy for one in FLOATS.values()} | {F8: "u1"}  # fmt: skip
_BITS = frozenset((F8, *(one.safetensors for one in FLOATS.values() if one.as_bits)))
WORDS = {np.dtype(code): word for word, code in DTYPES.items() if word not in _BITS}


# What a file without weights is, by its first bytes, and what to do about it.
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a git-lfs pointer instead of the weights: fetch them with `git lfs pull`"),
    (b"<", "an HTML page, which some sites send instead of a file: download the file itself"),
    (b"{", "JSON text"),
    (b"GGUF", "a GGUF file: call it .gguf"),
    (b"PK\x03\x04", "an archive as torch.save writes it: pickled weights are never opened"),
    (b"\x80", "a pickle: pickled weights are never opened"),
    (b"\x1f\x8b", "a gzip archive: unpack it"),
)


@dataclass(frozen=True)
class FileFacts:
    """Identifies the file that was read, to see later whether it changed: its size, time and header's hash."""

    path: Path
    size: int
    mtime_ns: int
    header: str  # sha256, hexadecimal


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's place in its file: `length` bytes of the dtype `word`, starting at `offset`."""

    path: Path
    offset: int
    length: int
    word: str
    shape: Shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of arrays that are read: float32 for bf16 and fp8."""
        return np.dtype(np.float32 if self.word in _BITS else DTYPES[self.word])

    def read_raw(self, step: int = CHUNK) -> Iterator[Array]:
        """Yields the stored numbers in flat pieces; bf16 as bits. Nothing is mapped or kept."""
        left = math.prod(self.shape)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            while left:
                part = np.fromfile(file, DTYPES[self.word], min(step, left))
                if not part.size:
                    raise CheckpointError(f"{self.path} has become shorter while it was read")
                left -= part.size
                yield part

    def stream(self, held: int = 1, size: int = CACHED) -> Iterator[Array]:
        """Yields pieces of `size` bytes in `held` buffers, used in turn: a piece is valid for `held` steps."""
        memories = [np.empty(size // np.dtype(DTYPES[self.word]).itemsize, DTYPES[self.word]) for _ in range(held)]
        left = self.length
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            for numbers in cycle(memories):
                memory = numbers.data.cast("B")[:left]
                if not left:
                    return
                if _fill(file, memory) < len(memory):
                    raise CheckpointError(f"{self.path} has become shorter while it was read")
                left -= len(memory)
                yield numbers[: len(memory) // numbers.itemsize]

    def chunks(self, step: int = CHUNK) -> Iterator[Array]:
        return (widen(part, self.word) for part in self.read_raw(step))

    def read(self) -> Array:
        (whole,) = self.read_raw(math.prod(self.shape))
        return widen(whole, self.word).reshape(self.shape)


def _fill(file: FileIO, memory: memoryview) -> int:
    """Reads until the memory is full or the file ends; returns the number of bytes read."""
    done = 0
    while done < len(memory) and (read := file.readinto(memory[done:])):
        done += read
    return done


def widen(flat: Array, word: str) -> Array:
    """Converts the bits of bf16 and fp8 to float32; returns any other dtype as it is."""
    if word == F8:
        return _E4M3[flat]
    if word != "BF16":
        return flat
    wide = flat.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _e4m3() -> Array:
    """The numbers of all 256 bytes."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(exponent > 0, np.ldexp(8 + mantissa, exponent - 10), np.ldexp(mantissa, -9))
    size = np.where(bits & 127 == 127, np.nan, size)
    return np.where(bits & 128, -size, size).astype(np.float32)


_E4M3 = _e4m3()


def read_safetensors(path: Path) -> dict[str, Array]:
    """Tensors by name, from a .safetensors file or from a folder that holds model.safetensors or its index.

    bf16 becomes float32; other dtypes are read-only views of the mapped file. Raises CheckpointError.
    """
    tensors, files = locate_tensors(path)
    maps = {file.path: np.asarray(np.memmap(file.path, np.uint8, "r")) for file in files if file.size}
    spans = {name: maps[t.path][t.offset : t.offset + t.length].view(DTYPES[t.word]) for name, t in tensors.items()}
    return {name: widen(spans[name], t.word).reshape(t.shape) for name, t in tensors.items()}


def locate_tensors(path: Path) -> tuple[dict[str, StoredTensor], list[FileFacts]]:
    """(Each tensor's place; the files) at a path that `read_safetensors` takes. Only headers are read."""
    try:
        if not path.is_dir():
            return locate_in_files([path])
        if (path / "model.safetensors").is_file():
            return locate_in_files([path / "model.safetensors"])
        return _locate_in_shards(path / "model.safetensors.index.json")
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


def locate_in_files(paths: Iterable[Path]) -> tuple[dict[str, StoredTensor], list[FileFacts]]:
    """The same for several files; no tensor may be in two of them."""
    tensors: dict[str, StoredTensor] = {}
    files: list[FileFacts] = []
    for path in paths:
        facts, found = _read_header(path)
        files.append(facts)
        if twice := tensors.keys() & found.keys():
            raise CheckpointError(f"{path}: tensor {escape(min(twice))} is in another file too")
        tensors |= found
    return tensors, files


def _locate_in_shards(index: Path) -> tuple[dict[str, StoredTensor], list[FileFacts]]:
    try:
        data = read_bounded(index, MAX_HEADER)
    except FileNotFoundError:
        raise CheckpointError(f"{index.parent} holds neither model.safetensors nor {index.name}") from None
    except (FileError, OSError) as error:
        raise CheckpointError(reason_of(index, error)) from None
    shards = _as_object(_parse_json(data, str(index)).get("weight_map"))
    if not shards:
        raise CheckpointError(f"{index}: has no weight_map, which names a .safetensors file beside it for each tensor")
    for name, file in shards.items():
        if not isinstance(file, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+\.safetensors", file):
            what = f"tensor {escape(name)} has {escape(json.dumps(file))}"
            raise CheckpointError(f"{index}: weight_map names a .safetensors file beside it for each tensor; {what}")
    tensors: dict[str, StoredTensor] = {}
    files: list[FileFacts] = []
    for shard in sorted({str(shard) for shard in shards.values()}):
        facts, found = _read_header(index.parent / shard)
        files.append(facts)
        if stray := [name for name in found if shards.get(name) != shard]:
            raise CheckpointError(f"{index}: tensor {escape(stray[0])} of {shard} is not listed for it")
        tensors |= found
    if absent := shards.keys() - tensors.keys():
        raise CheckpointError(f"{index}: no file holds {', '.join(shorten([escape(name) for name in sorted(absent)]))}")
    return tensors, files


def _read_header(path: Path) -> tuple[FileFacts, dict[str, StoredTensor]]:
    """8 bytes of header length, a JSON header, and the tensors' bytes without holes."""
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: not a .safetensors file; pickled weights (.bin, .pt) are never opened")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        size = status.st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER, size - 8):
            file.seek(0)
            if what := describe_foreign(file.read(HEAD)):
                raise CheckpointError(f"{path}: not a safetensors file{what}")
            raise CheckpointError(f"{path}: a header of {length} bytes in a file of {size}")
        text = file.read(length)
    header = _parse_json(text, f"{path}: header")
    start = 8 + length
    header.pop("__metadata__", None)
    shapes = {name: _as_counts(_as_object(entry).get("shape")) or () for name, entry in header.items()}
    if empty := [name for name, shape in shapes.items() if 0 in shape and max(shape) <= LONGEST_AXIS]:
        raise CheckpointError(describe_empty(path, empty))
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for begin, stop, name, dtype, shape in sorted(_read_entry(path, name, entry) for name, entry in header.items()):
        if begin != end:
            fault = "overlaps the one before it" if begin < end else f"comes after a hole of {begin - end} bytes"
            raise CheckpointError(f"{path}: tensor {escape(name)} {fault}")
        if stop > size - start:
            raise CheckpointError(f"{path} is truncated: tensor {escape(name)} ends at byte {stop} of {size - start}")
        end = stop
        tensors[name] = StoredTensor(path, start + begin, stop - begin, dtype, shape)
    if end != size - start:
        raise CheckpointError(f"{path}: a hole of {size - start - end} bytes after the last tensor")
    return FileFacts(path, size, status.st_mtime_ns, hashlib.sha256(text).hexdigest()), tensors


def describe_foreign(head: bytes) -> str:
    """ "What a file without weights is, as ": it is ..."; empty if its first bytes are not known."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    what = next((what for start, what in _FOREIGN if text.startswith(start)), "")
    return f": it is {what}" if what else ""


def describe_empty(path: Path, names: Sequence[str]) -> str:
    """The message for tensors of no elements, which training in shards writes."""
    each = [f"empty: {escape(name)}" for name in names]
    first = f"{path}: tensors without elements, as a run in shards (ZeRO-3, FSDP) saves those that it had not gathered:"
    return "\n  ".join([first, *shorten(each), "gather the parameters, and save them again"])


def _read_entry(path: Path, name: str, entry: object) -> tuple[int, int, str, str, Shape]:
    """(begin, end, name, dtype, shape) of a header's entry. Each is checked, since the file is untrusted."""
    fields = _as_object(entry)
    dtype, shape, offsets = fields.get("dtype"), _as_counts(fields.get("shape")), _as_counts(fields.get("data_offsets"))
    if fields.keys() != {"dtype", "shape", "data_offsets"} or shape is None or offsets is None or len(offsets) != 2:
        raise CheckpointError(f"{path}: tensor {escape(name)} is not described by dtype, shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{path}: tensor {escape(name)} is of {escape(dtype)}, which is not read")
    length = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if length != offsets[1] - offsets[0] or not length or len(shape) > MAX_RANK:
        raise CheckpointError(f"{path}: tensor {escape(name)} is {dtype} {shape}, but has the bytes {offsets}")
    return *offsets, name, dtype, shape


def _as_counts(value: object) -> Shape | None:
    """A list of integers that are not negative, as a tuple; anything else is None."""
    if not isinstance(value, list):
        return None
    items = cast(list[object], value)
    return tuple(n for n in items if isinstance(n, int)) if all(type(n) is int and n >= 0 for n in items) else None


def _as_object(value: object) -> dict[str, object]:
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def _parse_json(data: bytes, name: str) -> dict[str, object]:
    """A JSON object without repeated keys. Raises CheckpointError, saying what the data is instead if that is known."""
    try:
        return _as_object(parse_json_object(data, name, once=True))
    except FileError as error:
        what = "" if data.startswith(b"{") else describe_foreign(data[:HEAD])
        raise CheckpointError(f"{error}{what}") from None


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Writes the tensors, largest item size first so that each is aligned. The file appears once it is whole."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file without
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    end = 0
    for name in order:
        array = tensors[name]
        dtype = WORDS.get(array.dtype.newbyteorder("<"))
        if dtype is None or not array.size:
            raise CheckpointError(f"{path}: tensor {name} is {array.dtype} {array.shape}, which is not written")
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensors[name].astype(tensors[name].dtype.newbyteorder("<"), copy=False).tobytes())
    os.replace(part, path)
