"""Opens a folder as a session: a build, or another tool's model.onnx with the usual names of inputs and outputs.

input_ids, attention_mask, position_ids   (B, S), (B, T), (B, S), int64; the last two where the graph has them
past_key_values.<i>.key, .value           (B, heads, P, head_dim)
logits                                    (B, S, V), or (B, 1, V): of the last token alone
present.<i>.key, .value                   (B, heads, T, head_dim)

Both are fed by the same code, so a comparison is of the graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockc.basics.jsonfile import FileError, read_json_object
from blockc.graph.contract import IDS, LOGITS, MASK, POSITIONS, Contract, Port, StatePort, past_of, present_name
from blockc.graph.target import Provider
from blockc.products.manifest import MANIFEST, MODEL
from blockc.runtime import Session, SessionError
from blockc.runtime.opening import ONNX_FLOATS, OpenModel, session_at

_INPUTS = {IDS: ("B", "S"), MASK: ("B", "P + S"), POSITIONS: ("B", "S")}
_UNKNOWN = 1 << 31  # tokens: the context where no file gives one
_IN_PLACE = "GroupQueryAttention"


def open_session(folder: Path, provider: Provider, threads: int | None, shared: bool, prepack: bool = True) -> Session:
    """Opens a folder; `shared`: one buffer is past and present of another tool's model. Raises SessionError."""
    if is_build(folder):
        return Session(folder, provider, threads, prepack)
    return Session.of(_open_foreign(folder, provider, threads, shared, prepack))


def is_build(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def is_shared(folder: Path) -> bool:
    """Whether only kernels that can append in place read the cache of a model.onnx. Raises SessionError."""
    readers = {node.op_type for node in graph_of(folder).node for name in node.input if _is_past(name)}
    return readers == {_IN_PLACE}


def weights_of(folder: Path) -> int:
    """Bytes of the initialisers of model.onnx; bytes that two of them share count once. Raises SessionError."""
    return sum(dict(map(_span_of, graph_of(folder).initializer)).values())


def disk_of(folder: Path) -> int:
    """Bytes of model.onnx and of the external files that it names. Raises SessionError."""
    entries = (entry for tensor in graph_of(folder).initializer for entry in tensor.external_data)
    names = {entry.value for entry in entries if entry.key == "location"}
    return sum((folder / name).stat().st_size for name in (MODEL, *sorted(names)))


def _span_of(tensor: Any) -> tuple[object, int]:
    """(What identifies a tensor's data; its size in bytes.)"""
    import onnx

    said = {entry.key: entry.value for entry in tensor.external_data}
    size = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    if "location" in said:
        return (said["location"], said.get("offset", "0")), int(said.get("length", size))
    return tensor.name, len(tensor.raw_data) or size


def graph_of(folder: Path) -> Any:
    """The graph of model.onnx, without the data of external files. Raises SessionError."""
    import onnx

    path = _model_of(folder)
    try:
        return onnx.load(path, load_external_data=False).graph
    except Exception as error:  # protobuf's errors have no common base
        raise SessionError(f"{path}: not an ONNX model: {error}") from None


def _model_of(folder: Path) -> Path:
    path = folder / MODEL
    if not path.is_file():
        raise SessionError(f"{folder}: not a finished build, for it has no {MANIFEST}, and no {MODEL} of another tool")
    return path


def _open_foreign(folder: Path, provider: Provider, threads: int | None, shared: bool, prepack: bool) -> OpenModel:
    if shared and not is_shared(folder):
        raise SessionError(
            f"{folder}: its cache is read by more than {_IN_PLACE}, so past and present cannot share a buffer"
        )
    session = session_at(_model_of(folder), provider, threads, prepack)
    names = [value.name for value in session.get_inputs()]
    outputs = {value.name: value for value in session.get_outputs()}
    _refuse_names(folder, names, outputs)
    held = tuple(_state_of(folder, value, shared) for value in session.get_inputs() if _is_past(value.name))
    kinds = {value.type for value in session.get_inputs() if _is_past(value.name)} | {outputs[LOGITS].type}
    if len(kinds) != 1 or not kinds <= ONNX_FLOATS.keys():
        raise SessionError(f"{folder}: cache and logits are {', '.join(sorted(kinds))}: expected one float type")
    shape = outputs[LOGITS].shape
    if len(shape) != 3 or not isinstance(shape[2], int):
        raise SessionError(f"{folder}: logits are {shape}, expected the vocabulary as the third number")
    contract = Contract(
        inputs=tuple(Port(name, "int", _INPUTS[name]) for name in names if name in _INPUTS),
        outputs=(Port(LOGITS, "float", ("B", 1 if shape[1] == 1 else "S", shape[2])),),
        held=held,
        feeding="joined",
        one_row=True,
        vocab=shape[2],
        sides=(),
    )
    return OpenModel(
        name=folder.name,
        context=_genai_count(folder, "context_length") or _UNKNOWN,
        vocab=shape[2],
        provider=provider,
        contract=contract,
        element=ONNX_FLOATS[kinds.pop()],
        session=session,
    )


def _refuse_names(folder: Path, names: Sequence[str], outputs: dict[str, Any]) -> None:
    pasts = [name for name in names if _is_past(name)]
    if not pasts:
        raise SessionError(f"{folder}: the model has no cache: a decoder has an input called past_key_values.<i>.key")
    if unknown := [name for name in names if name not in _INPUTS and name not in pasts]:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise SessionError(
            f"{folder / MODEL}: unknown inputs {', '.join(unknown[:3])}{more}: "
            f"{', '.join(_INPUTS)} and past_key_values.<i>.key and .value are fed"
        )
    presents = [present_name(*found) for name in pasts if (found := past_of(name))]
    if absent := [name for name in (LOGITS, *presents) if name not in outputs]:
        raise SessionError(f"{folder / MODEL}: no output is called {absent[0]}")


def _state_of(folder: Path, value: Any, shared: bool) -> StatePort:
    heads, head_dim = value.shape[1], value.shape[3]
    if not isinstance(head_dim, int):  # genai's builder writes a name there
        head_dim = _genai_count(folder, "decoder", "head_size")
    if not (isinstance(heads, int) and isinstance(head_dim, int)):
        raise SessionError(f"{folder / MODEL}: {value.name} is {value.shape}: expected heads and head_dim as numbers")
    number, state = past_of(value.name) or (0, "")
    shape = ("B", heads, "P", head_dim)
    return StatePort(value.name, present_name(number, state), number, state, "float", shape, 2, shared)


def _is_past(name: str) -> bool:
    return past_of(name) is not None


def _genai_count(folder: Path, *keys: str) -> int | None:
    """A number from genai_config.json, or None. Raises SessionError if the file is not JSON."""
    try:
        found: Any = read_json_object(folder / "genai_config.json")
    except FileNotFoundError:
        return None
    except FileError as error:
        raise SessionError(str(error)) from None
    for key in ("model", *keys):
        found = found.get(key) if isinstance(found, dict) else None
    return found if type(found) is int and 0 < found < _UNKNOWN else None
