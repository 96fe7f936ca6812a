"""manifest.json: what a build states about itself, and the digest of each of its files.

One pydantic model both writes and reads it. A manifest is as untrusted as its folder: this model checks its types, and
`find_misstated` compares its statements with the spec.
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

from blockc.basics.errors import BlockcError, CheckpointError, UsageError, escape
from blockc.basics.jsonfile import FileError, dump_json, read_json_object, read_typed
from blockc.graph.contract import Contract
from blockc.graph.target import Target
from blockc.pipeline.compiled import Compiled
from blockc.products.registry import PRODUCTS
from blockc.weights.companions import COMPANIONS
from blockc.weights.plan import DATA
from blockc.weights.safetensors import FileFacts, locate_in_files

MANIFEST, PROOF = "manifest.json", "verify.json"
MODEL, STEP = "model.onnx", "step.onnx"  # STEP: of one new token, for long pasts
SPEC = "spec.resolved.yaml"
TEXTS = ("model.py", "graph.txt", "report.json", SPEC)
_FIXED = frozenset({*TEXTS, MODEL, STEP, PROOF, *COMPANIONS})
_WEIGHTS = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}\.safetensors")  # as a checkpoint's files are called
_OPTIONS = {"opset": None, "quant": None, "last": 1, "step": False}  # of a target, with what each is by default
FORMAT = 2  # raised whenever the set of keys changes


class FolderError(BlockcError):
    """A folder that is not a build, or that must not become one."""


def file_names() -> frozenset[str]:
    """The names of all files whose digests a manifest may have."""
    return _FIXED.union(*(product.names for product in PRODUCTS.values()))


def writable(name: str) -> bool:
    """Whether some build writes a file of this name."""
    return name in file_names() or name in (MANIFEST, DATA) or is_weights(name)


def is_weights(name: str) -> bool:
    """Whether a linked file of a checkpoint may have this name."""
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
    """Versions of blockc and of the packages that compute and write model.onnx; other ones may give other bytes."""

    model_config = _EXACT
    blockc: Annotated[str, Field(max_length=100)]
    numpy: Annotated[str, Field(max_length=100)]
    onnx: Annotated[str, Field(max_length=100)]


class LinkedFile(BaseModel):
    """A linked file, identified by its size and header; its time would differ in a copy."""

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
    """The files with the parameters. `tensors` has the digest of each linked tensor, with --deep."""

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
        """Leaves out an option that was not asked for, as in manifests written before it existed."""
        said: dict[str, Any] = written(target)
        return {key: value for key, value in said.items() if key not in _OPTIONS or value != _OPTIONS[key]}

    @model_validator(mode="after")
    def _has_every_file(self) -> Manifest:
        if absent := [name for name in (*TEXTS, MODEL) if name not in self.files]:
            raise ValueError(f"files has no {absent[0]}")
        return self

    @property
    def graph_names(self) -> tuple[str, ...]:
        return tuple(name for name in (MODEL, STEP) if name in self.files)

    @property
    def graphs(self) -> dict[str, Target]:
        """The targets of the build's graphs, by the names of their files. Raises UsageError if one cannot be."""
        return graphs_of(self.target, STEP in self.files)

    def statements(self) -> dict[str, Any]:
        """The statements as JSON has them, in order; unset ones are left out."""
        return self.model_dump(mode="json", exclude_unset=True)

    def to_bytes(self) -> bytes:
        return dump_json(self.statements())

    @property
    def sources(self) -> tuple[LinkedFile, ...]:
        return self.weights.sources if self.weights else ()

    @property
    def data(self) -> Data | None:
        return self.weights.data if self.weights else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the build's files, except the manifest."""
        large = [*(source.name for source in self.sources), *([self.data.name] if self.data else [])]
        return (*self.files, *large)


def graphs_of(target: Target, step: bool) -> dict[str, Target]:
    """The targets of a build's graphs, by the names of their files. `step`: it has a graph for long pasts too."""
    return {MODEL: target, STEP: target.one_token} if step else {MODEL: target}


def statements_of(model: Compiled, target: Target) -> dict[str, Any]:
    """The statements of a manifest that follow from a model and a target."""
    return {
        "blockc_build": FORMAT,
        "name": model.spec.name,
        "semantic_hash": model.decoder.semantic_hash,
        "parameters": model.parameters,
        "target": target,
        "contract": model.contract(target),
    }


def read_manifest(folder: Path) -> Manifest:
    """Reads a folder's manifest. Raises FolderError if it is missing, or not as this blockc writes it."""
    path = folder / MANIFEST
    try:
        manifest = read_typed(path, Manifest)
        if manifest.statements() != read_json_object(path):  # a dataclass accepts unknown and missing keys
            raise FileError(f"{path}: holds other keys than blockc writes")
    except FileNotFoundError:
        raise FolderError(f"{folder}: no {MANIFEST}, so not a finished build") from None
    except FileError as error:
        why = _what_to_do(path) or f"build the folder again: {str(error).removeprefix(f'{path}: ')}"
        raise FolderError(f"{path}: not a manifest of this version of blockc: {why}") from None
    return manifest


def _what_to_do(path: Path) -> str:
    """Advice for a folder that an older or a newer blockc wrote; empty if its manifest shows neither."""
    if not (who := other_format(path)):
        return ""
    again = f"build the folder again: `blockc build SPEC --out {shlex.quote(str(path.parent))} --force`"
    return f"{who}: {again}" if who.startswith("an older") else f"{who}: update blockc, or {again}"


def other_format(path: Path) -> str:
    """Says whether an older or a newer blockc wrote a manifest of another format; empty if it shows neither."""
    try:
        said = read_json_object(path)
    except (FileError, OSError):
        return ""
    number, versions = said.get("blockc_build", 1), said.get("versions")  # before 2 a manifest had no number
    if "semantic_hash" not in said or type(number) is not int or number == FORMAT:
        return ""
    wrote = f" {escape(versions.get('blockc', ''))[:40]}" if isinstance(versions, dict) else ""
    who = f"{'an older' if number < FORMAT else 'a newer'} blockc{wrote}"
    return f"{who} wrote it, in format {escape(number)[:20]}, and this one reads {FORMAT}"


def find_misstated(manifest: Manifest, model: Compiled) -> tuple[str, ...]:
    """The keys of statements that differ from what the spec gives now."""
    weights = manifest.weights
    copied = weights is not None and weights.mode == "pack"
    try:
        if any(model.refuses(target, copied) for target in manifest.graphs.values()):
            return ("target",)
    except UsageError:  # a target that cannot have the graph of one token which the folder has
        return ("target",)
    target = manifest.target
    wanted = statements_of(model, target)
    return tuple(key for key, value in wanted.items() if getattr(manifest, key) != value)


def is_linked_file(folder: Path, source: LinkedFile) -> bool:
    """Whether the file beside the model has the size and header of the linked one. A copy has; time does not count."""
    try:
        (facts,) = locate_in_files([folder / source.name])[1]
    except (CheckpointError, OSError):
        return False
    return LinkedFile.of(facts) == source


def digest_of(path: Path) -> str:
    """The sha256 of a regular file, or of the file that a link leads to; else empty."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def earlier_digests(folder: Path) -> dict[str, str]:
    """The digests in a manifest of an earlier format, by file name; empty where there is no such manifest."""
    try:
        said = read_json_object(folder / MANIFEST)
    except (FileError, OSError):
        return {}
    files = said.get("files")
    if "semantic_hash" not in said or said.get("blockc_build") == FORMAT or not isinstance(files, dict):
        return {}
    return {name: hash_ for name, hash_ in files.items() if name in file_names() and isinstance(hash_, str)}
