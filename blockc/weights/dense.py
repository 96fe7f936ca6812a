"""The Dense modules of a sentence-transformers folder: tensors of files of their own, in folders below.

linear.weight of the n-th module's model.safetensors is the parameter dense_n.weight, counted from 1 in the order of
modules.json. No layout names them.
"""

from __future__ import annotations

from pathlib import Path

from blockc.basics.errors import CheckpointError
from blockc.importing import read_modules
from blockc.source import SpecError, render_finding
from blockc.weights.safetensors import StoredTensor, locate_in_files

FILE = "model.safetensors"


def locate_dense(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of all Dense modules by parameter; none where no modules.json lies in the folder.

    Raises CheckpointError, also where modules.json says what no spec can say.
    """
    try:
        modules = read_modules(folder)
    except SpecError as error:
        first = render_finding(error.findings[0]).splitlines()[0]
        way = "give the path of model.safetensors to leave them out"
        raise CheckpointError(f"the modules of sentence-transformers cannot be read: {first}: {way}") from None
    found: dict[str, StoredTensor] = {}
    for number, path in enumerate(modules.dense if modules is not None else (), 1):
        tensors, _ = locate_in_files([path / FILE])
        found |= {f"dense_{number}.{name.removeprefix('linear.')}": tensor for name, tensor in tensors.items()}
    return found
