"""A checkpoint on disk: its tensors before they are read, and the small files beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from blockc.basics.errors import CheckpointError, escape, shorten
from blockc.importing.unlike import NOTHING, ConfigBeside, compare_config, read_config_beside
from blockc.ir import Array, Function
from blockc.layouts import Layout, load_gguf_layout
from blockc.weights.companions import read_companions, with_config
from blockc.weights.dense import locate_dense
from blockc.weights.float8 import join_scales
from blockc.weights.mxfp4 import split_mxfp4
from blockc.weights.safetensors import FileFacts, Shape, locate_in_files, locate_tensors

if TYPE_CHECKING:
    from blockc.weights.gguf import Metadata


class Tensor(Protocol):
    """A tensor that is read on demand, in flat pieces or whole; bf16 and fp8 are read as float32."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def chunks(self) -> Iterator[Array]: ...

    def read(self) -> Array: ...


@dataclass(frozen=True)
class Checkpoint:
    """`files` are the files that model.onnx may point into; `layout` is the one that the file itself names, if any.

    `metadata` and `config` hold figures of the model, such as theta and eps. `companion_notes` are notes for the user.
    """

    folder: Path
    tensors: Mapping[str, Tensor]
    files: tuple[FileFacts, ...] = ()
    layout: Layout | None = None
    companions: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    companion_notes: tuple[str, ...] = ()
    config: ConfigBeside = NOTHING
    metadata: Metadata | None = None
    unlinked: str = "encoded weights"  # why there are no files, where there are none

    def find_misfits(self, function: Function, context: int | None = None) -> list[str]:
        """A line for each figure of the checkpoint that differs from the graph."""
        of_metadata = self.metadata.find_misfits(function, context) if self.metadata else []
        return [*compare_config(self.config, function, context), *of_metadata]

    @property
    def notes(self) -> list[str]:
        """Notes for the user: what was added to the companions, and which keys are unknown."""
        unknown = self.metadata.unknown if self.metadata else []
        strange = [f"not compared, because they are unknown: {', '.join(shorten(unknown))}"] if unknown else []
        return [*self.companion_notes, *self.config.notes, *strange]


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a .safetensors or .gguf file, or a folder with either; no tensor is read yet. Raises CheckpointError.

    A folder with one GGUF model and no safetensors stands for that model.
    """
    folder = path if path.is_dir() else path.parent
    beside = read_companions(folder)
    if (file := _gguf_file(path)) is not None:
        from blockc.weights import gguf  # slow to import, and only GGUF files need it

        read = gguf.read_gguf(file)
        kept = {**read.companions(), **beside}
        return Checkpoint(folder, read.tensors, (), load_gguf_layout(read.architecture), kept, metadata=read.metadata)
    tensors, files = locate_tensors(path)
    apart = locate_dense(folder) if path.is_dir() else {}
    fours, tensors, told = split_mxfp4(tensors)
    eights, coded = join_scales(tensors, folder)
    coded += told
    beside, added = with_config(folder, beside)
    config = read_config_beside(folder / "config.json")
    whole = () if coded or apart else tuple(files)  # a graph cannot point into codes, nor into other folders
    held = Checkpoint(folder, {**eights, **fours, **apart}, whole, None, beside, (*added, *coded), config)
    return replace(held, unlinked="weights in folders below") if apart and not coded else held


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights that `open_checkpoint` reads, or several of which it asks to name one."""
    from blockc.weights import gguf

    return any(folder.glob("*.safetensors")) or bool(gguf.find_models(folder))


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file at a path, or the only one in a folder without safetensors; else None."""
    from blockc.weights import gguf

    if not path.is_dir():
        return path if gguf.is_gguf(path) else None
    if any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists():
        return None
    found = gguf.find_models(path)
    if len(found) > 1:
        names = shorten([escape(each.name) for each in found])
        raise CheckpointError("\n  ".join([f"{path} holds several GGUF files: name one of them", *names]))
    return found[0] if found else None


def linked_checkpoint(folder: Path, names: list[str]) -> Checkpoint:
    """Opens the files that a build has linked beside its model. Raises CheckpointError."""
    try:
        tensors, files = locate_in_files(folder / name for name in names)
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: {error.strerror or error}") from None
    return Checkpoint(folder, tensors, tuple(files))
