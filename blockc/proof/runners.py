"""The backends behind one interface: from a case and parameters to logits and the value of every node."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol

import numpy as np

from blockc.graph import interp
from blockc.graph.contract import LOGITS, MASK, Contract, contract_of
from blockc.ir import Array, Function, parameters_of
from blockc.ir.columns import pack_halves
from blockc.ir.derive import Derivation, Derivations, add_derived
from blockc.proof.cases import Case
from blockc.proof.feeding import feeds_of, numpy_dtype, run_in_chunks

Params = Mapping[str, Array]
Values = dict[str, Array]


@dataclass
class Answer:
    """The outputs by name, the loss if labels were given, and the values of each chunk by name.

    logits (B, length or calls, V) or (B, classes), last_hidden_state (B, length, width), pooled (B, D)
    """

    outputs: dict[str, Array]
    loss: float | None = None
    values: list[Values] = field(default_factory=list[Values])

    @property
    def logits(self) -> Array:
        return self.outputs[LOGITS]


class Runner(Protocol):
    name: str
    dtype: str
    function: Function
    derived: Derivations  # of parameters that the function's passes made

    @property
    def contract(self) -> Contract: ...

    def run(self, case: Case, params: Params, trace: bool = False) -> Answer: ...


@dataclass
class Oracle:
    """The interpreter in float64."""

    function: Function
    name: str = "oracle"
    dtype: str = "float64"
    derived: Derivations = field(default_factory=dict[str, Derivation])

    @property
    def contract(self) -> Contract:
        return contract_of(self.function)

    def run(self, case: Case, params: Params, trace: bool = False) -> Answer:
        values: list[Values] = []
        params = add_derived(params, self.derived)

        def call(inputs: dict[str, Array]) -> dict[str, Array]:
            seen: Values = {}
            values.append(seen)
            return interp.interpret(self.function, inputs, params, seen.__setitem__ if trace else None)

        outputs = run_in_chunks(self.contract, case, call, np.float64)
        labelled = case.labels and LOGITS in outputs
        return Answer(outputs, _loss_of(outputs[LOGITS], case, self.function.causal) if labelled else None, values)


def _loss_of(logits: Array, case: Case, shifted: bool) -> float:
    """Mean cross-entropy, of the next token where the model is causal; of one logit with its sigmoid."""
    ids = case.labels_for(logits.ndim, logits.shape[-1])
    if logits.shape[-1] == 1:
        return float(np.mean(np.logaddexp(0, logits[..., 0]) - ids * logits[..., 0]))
    logits, ids = (logits[:, :-1], ids[:, 1:]) if shifted else (logits, ids)
    peak = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - peak).sum(axis=-1)) + peak[..., 0]
    return float(np.mean(total - np.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]))


class Torch:
    """model.py, run eagerly on the CPU."""

    name = "torch"
    dtype = "float32"

    def __init__(self, path: Path, function: Function) -> None:
        self.function, self.contract = function, contract_of(function)
        self.derived: Derivations = {}
        self.module = load_module(path)

    def model(self, params: Params) -> Any:
        """The emitted model with these parameters. Raises ValueError unless names and shapes are the graph's."""
        import torch

        model = self.module.Model()
        buffers, kept = dict(model.named_buffers()), model.state_dict().keys()
        own = dict(model.named_parameters()) | {name: buffers[name] for name in buffers if name in kept}
        if {n: tuple(p.shape) for n, p in own.items()} != {n: a.shape for n, a in params.items()}:
            raise ValueError("model.py does not have the parameters of its spec")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(torch.from_numpy(np.asarray(params[name])))
        return model.eval()

    def run(self, case: Case, params: Params, trace: bool = False) -> Answer:
        import torch

        model, values, parts, loss = self.model(params), list[Values](), dict[str, list[Array]](), None
        logits = self.contract.output(LOGITS)
        past: Any = None
        for feed in feeds_of(self.contract, case):
            arguments: dict[str, Any] = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in feed.inputs.items()}
            if not case.masked:
                del arguments[MASK]
            if past is not None:
                arguments["past_key_values"] = past
            elif self.contract.held and len(case.chunks) > 1:
                arguments["use_cache"] = True
            if case.labels and logits is not None:
                wanted = case.labels_for(len(logits.shape), int(logits.shape[-1]))
                arguments["labels"] = torch.from_numpy(wanted)
            seen: Values = {}
            with torch.no_grad(), _watch(model, seen) if trace else nullcontext():
                output = model(**arguments)
            values.append(seen)
            past = getattr(output, "past_key_values", None)
            for port in self.contract.outputs:
                parts.setdefault(port.name, []).append(getattr(output, port.name).numpy())
            loss = float(output.loss) if "labels" in arguments else None
        made = {name: np.concatenate(each, axis=1) if each[0].ndim == 3 else each[-1] for name, each in parts.items()}
        return Answer(made, loss, values)


def load_module(path: Path) -> ModuleType:
    """Imports model.py under a name of its own, so that other modules named model do not matter."""
    spec = importlib.util.spec_from_file_location(f"blockc_emitted_{abs(hash(path))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


@contextmanager
def _watch(model: Any, seen: Values) -> Generator[None]:
    """Records the locals and the result of every forward. In model.py a value has the name of its node.

    The result of a module has the module's name.
    """
    paths = {id(module): name for name, module in model.named_modules()}

    def on_event(frame: FrameType, event: str, returned: Any) -> None:
        if event != "return" or frame.f_code.co_name != "forward" or id(frame.f_locals.get("self")) not in paths:
            return
        path = paths[id(frame.f_locals["self"])]
        values = {f"{path}.{name}" if path else name: value for name, value in frame.f_locals.items()}
        for name, value in {path: returned, **values}.items():
            if name and hasattr(value, "detach"):
                seen[name] = value.detach().numpy().copy()

    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(None)


class Onnx:
    """model.onnx in onnxruntime on the CPU, with parameters as inputs or inside it. `function` is its graph."""

    def __init__(
        self,
        model: bytes,
        function: Function,
        name: str = "onnxruntime",
        dtype: str = "float32",
        derived: Derivations | None = None,
    ) -> None:
        self.bytes, self.function, self.name, self.dtype, self.derived = model, function, name, dtype, derived or {}
        self.contract, self.narrow = contract_of(function), False

    @cached_property
    def session(self) -> Any:
        """The session, opened at the first run, so that a graph which does not open fails like a wrong number."""
        return open_session(self.bytes)

    def run(self, case: Case, params: Params, trace: bool = False) -> Answer:
        given, held = add_derived(params, self.derived), parameters_of(self.function)
        self._hold_narrow({name: given[name] for name, param in held.items() if param.dtype == "int4"})
        session = open_session(_expose_values(self.bytes)) if trace else self.session
        wanted = {i.name for i in session.get_inputs()}
        fixed = {
            name: np.asarray(given[name], numpy_dtype(param.dtype, self.dtype))
            for name, param in held.items()
            if name in wanted
        }
        names = [o.name for o in session.get_outputs()]
        values: list[Values] = []

        def call(inputs: dict[str, Array]) -> dict[str, Array]:
            given = {name: a for name, a in inputs.items() if name in wanted}
            outputs = dict(zip(names, session.run(names, given | fixed), strict=True))
            values.append(outputs)
            return outputs

        return Answer(run_in_chunks(self.contract, case, call, np.dtype(self.dtype)), None, values)

    def _hold_narrow(self, numbers: Mapping[str, Array]) -> None:
        """Puts parameters of 4 bits into the graph: NumPy has no such numbers to feed. All runs have the same."""
        if self.narrow or not numbers:
            return
        import onnx

        proto = onnx.load_from_string(self.bytes)
        for value in [value for value in proto.graph.input if value.name in numbers]:
            proto.graph.input.remove(value)
            array = numbers[value.name]
            made = onnx.TensorProto(name=value.name, data_type=onnx.TensorProto.INT4, dims=array.shape)
            made.raw_data = pack_halves(array).tobytes()
            proto.graph.initializer.append(made)
        self.bytes, self.narrow = proto.SerializeToString(), True


def open_session(model: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # a twin is too small to share out, and idle threads would spin
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _expose_values(model: bytes) -> bytes:
    """The model with every named value as an output."""
    import onnx

    proto = onnx.load_from_string(model)
    known = {o.name for o in proto.graph.output}
    proto.graph.output.extend(v for v in proto.graph.value_info if v.name not in known)
    return proto.SerializeToString()
