"""manifest.json: what a build states of itself, and the digest of each of its files.

One model, with which the manifest is written and with which everyone reads it. Whoever made the folder made the
manifest too: it is typed here, and what a spec gives is compared by `misstated`.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_validator,
)

from blockc.basics.errors import BlockcError, CheckpointError, shown
from blockc.basics.jsonfile import FileError, json_object, typed, written
from blockc.graph.contract import Contract
from blockc.graph.target import Target
from blockc.pipeline.compiled import Compiled
from blockc.products.registry import PRODUCTS
from blockc.weights.companions import COMPANIONS
from blockc.weights.plan import DATA
from blockc.weights.safetensors import FileFacts, locate_in_files

MANIFEST, MODEL, PROOF = "manifest.json", "model.onnx", "verify.json"
SPEC = "spec.resolved.yaml"
TEXTS = ("model.py", "graph.txt", "report.json", SPEC)
_FIXED = frozenset({*TEXTS, MODEL, PROOF, *COMPANIONS})
_WEIGHTS = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}\.safetensors")  # as a checkpoint's files are called
FORMAT = 2  # a number for each set of keys: another one is another format


class FolderError(BlockcError):
    """A folder that is no build, or that must not become one."""


def file_names() -> frozenset[str]:
    """Of all files whose digests a manifest may hold."""
    return _FIXED.union(*(product.names for product in PRODUCTS.values()))


def writable(name: str) -> bool:
    """Whether some build writes a file of this name."""
    return name in file_names() or name in (MANIFEST, DATA) or is_weights(name)


def is_weights(name: str) -> bool:
    """Whether a linked file of a checkpoint may be called so."""
    return _WEIGHTS.fullmatch(name) is not None


def _check_file(name: str) -> str:
    if name not in file_names():
        raise ValueError("a name that no build writes")
    return name


def _check_product(name: str) -> str:
    if name not in PRODUCTS:
        raise ValueError("not a product of this version of blockc")
    return name


def _check_weights(name: str) -> str:
    if not is_weights(name):
        raise ValueError("not the name of a .safetensors file beside the model")
    return name


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0, lt=1 << 63)]
_EXACT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Versions(BaseModel):
    """Of blockc and of what model.onnx is computed and written with: another one may give other bytes."""

    model_config = _EXACT
    blockc: Annotated[str, Field(max_length=100)]
    numpy: Annotated[str, Field(max_length=100)]
    onnx: Annotated[str, Field(max_length=100)]


class LinkedFile(BaseModel):
    """A linked file. Its size and its header tell whether it is the same: a copy has another time."""

    model_config = _EXACT
    name: Annotated[str, AfterValidator(_check_weights)]
    size: Size
    header_sha256: Digest

    @classmethod
    def of(cls, facts: FileFacts) -> LinkedFile:
        return cls(name=facts.path.name, size=facts.size, header_sha256=facts.header)


class Data(BaseModel):
    """The file of packed weights."""

    model_config = _EXACT
    name: Literal["model.onnx.data"]
    size: Size
    sha256: Digest


class Weights(BaseModel):
    """Where the parameters lie. `tensors`: with --deep, the digest of each linked tensor's bytes."""

    model_config = _EXACT
    mode: Literal["link", "pack"]
    sources: tuple[LinkedFile, ...]
    data: Data | None
    tensors: dict[str, Digest] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Weights:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError("a file is listed twice")
        if bool(names) != (self.mode == "link") or (self.mode == "pack" and self.data is None):
            raise ValueError("linked weights have sources, and packed ones a data file alone")
        return self


class Manifest(BaseModel):
    """All statements of a build."""

    model_config = _EXACT
    blockc_build: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
    versions: Versions
    name: Annotated[str, Field(max_length=1000)]
    semantic_hash: Digest
    parameters: Size
    target: Target
    contract: Contract
    products: tuple[Annotated[str, AfterValidator(_check_product)], ...]
    files: dict[Annotated[str, AfterValidator(_check_file)], Digest]
    weights: Weights | None = None

    @field_serializer("target", mode="wrap")
    def _serialise_target(self, target: Target, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """An opset stands there where one was asked for: without, it is as builds have it that could ask for none."""
        said: dict[str, Any] = written(target)
        return said if target.opset is not None else {key: value for key, value in said.items() if key != "opset"}

    @model_validator(mode="after")
    def _has_every_file(self) -> Manifest:
        if absent := [name for name in (*TEXTS, MODEL) if name not in self.files]:
            raise ValueError(f"files has no {absent[0]}")
        return self

    def statements(self) -> dict[str, Any]:
        """As JSON has them, in order; what was not set is left out."""
        return self.model_dump(mode="json", exclude_unset=True)

    def to_bytes(self) -> bytes:
        return written(self.statements())

    @property
    def sources(self) -> tuple[LinkedFile, ...]:
        return self.weights.sources if self.weights else ()

    @property
    def data(self) -> Data | None:
        return self.weights.data if self.weights else None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the build's files, but for the manifest's own."""
        large = [*(source.name for source in self.sources), *([self.data.name] if self.data else [])]
        return (*self.files, *large)


def statements_of(model: Compiled, target: Target) -> dict[str, Any]:
    """What a manifest states of a model: all of it that a spec and a target give."""
    return {
        "blockc_build": FORMAT,
        "name": model.spec.name,
        "semantic_hash": model.decoder.semantic_hash,
        "parameters": model.parameters,
        "target": target,
        "contract": model.contract(target),
    }


def read_manifest(folder: Path) -> Manifest:
    """Raises FolderError where there is none, or where it is not as blockc writes it."""
    path = folder / MANIFEST
    try:
        manifest = typed(path, Manifest)
        if manifest.statements() != json_object(path):  # a dataclass takes more keys than it has, and fewer
            raise FileError(f"{path}: holds other keys than blockc writes")
    except FileNotFoundError:
        raise FolderError(f"{folder}: no {MANIFEST}, so no finished build") from None
    except FileError as error:
        why = _what_to_do(path) or f"build the folder again: {str(error).removeprefix(f'{path}: ')}"
        raise FolderError(f"{path}: not a manifest of this version of blockc: {why}") from None
    return manifest


def _what_to_do(path: Path) -> str:
    """With a folder that an older or a newer blockc wrote; empty where its manifest says neither."""
    if not (who := other_format(path)):
        return ""
    again = f"build the folder again: `blockc build SPEC --out {shlex.quote(str(path.parent))} --force`"
    return f"{who}: {again}" if who.startswith("an older") else f"{who}: update blockc, or {again}"


def other_format(path: Path) -> str:
    """Who wrote a manifest of another format, an older or a newer blockc; empty where it says neither."""
    try:
        said = json_object(path)
    except (FileError, OSError):
        return ""
    number, versions = said.get("blockc_build", 1), said.get("versions")  # before 2 a manifest had no number
    if "semantic_hash" not in said or type(number) is not int or number == FORMAT:
        return ""
    wrote = f" {shown(versions.get('blockc', ''))[:40]}" if isinstance(versions, dict) else ""
    who = f"{'an older' if number < FORMAT else 'a newer'} blockc{wrote}"
    return f"{who} wrote it, in format {shown(number)[:20]}, and this one reads {FORMAT}"


def find_misstated(manifest: Manifest, model: Compiled) -> tuple[str, ...]:
    """The statements that are not what the spec gives now, by key."""
    target, weights = manifest.target, manifest.weights
    if model.refuses(target, copied=weights is not None and weights.mode == "pack"):
        return ("target",)
    wanted = statements_of(model, target)
    return tuple(key for key, value in wanted.items() if getattr(manifest, key) != value)


def is_linked_file(folder: Path, source: LinkedFile) -> bool:
    """Whether the file beside the model is still the one that was linked: a copy is, whatever its time."""
    try:
        (facts,) = locate_in_files([folder / source.name])[1]
    except (CheckpointError, OSError):
        return False
    return LinkedFile.of(facts) == source


def digest_of(path: Path) -> str:
    """Of a regular file, or of what a link leads to; else nothing."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def earlier_digests(folder: Path) -> dict[str, str]:
    """The digests that a manifest of an earlier format holds, by name; empty where there is none that says so."""
    try:
        said = json_object(folder / MANIFEST)
    except (FileError, OSError):
        return {}
    files = said.get("files")
    if "semantic_hash" not in said or said.get("blockc_build") == FORMAT or not isinstance(files, dict):
        return {}
    return {name: hash_ for name, hash_ in files.items() if name in file_names() and isinstance(hash_, str)}
