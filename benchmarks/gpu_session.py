"""Sessions that run where they were asked to, on memory that torch owns; a graph without its arithmetic on shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ON_SHAPES = {"Cast", "Squeeze", "Unsqueeze", "Neg", "Add", "Sub", "Mul", "Div", "Concat", "Gather"}


def opened(model: bytes, provider: str, strict: bool = False, captured: bool = False) -> Any:
    """A session that runs where it was asked to. Raises RuntimeError where it does not."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if provider == "cpu":
        options.intra_op_num_threads = 1  # threads that wait would spin beside torch's
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    if strict:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings = {"use_tf32": "0", "enable_cuda_graph": str(int(captured)), "enable_skip_layer_norm_strict_mode": "1"}
    session = onnxruntime.InferenceSession(model, options, providers=[("CUDAExecutionProvider", settings)])
    if "CUDAExecutionProvider" not in session.get_providers():
        raise RuntimeError("onnxruntime did not load CUDA and would run on the CPU")
    return session


def one_node() -> bytes:
    """The smallest model there is to open."""
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


# A graph without its arithmetic on shapes


def shape_arithmetic(graph: Any) -> list[Any]:
    """The nodes that read nothing but shapes of inputs and constants: onnxruntime runs them on the host by design."""
    constants, given = {t.name for t in graph.initializer}, {value.name for value in graph.input}
    shapes: set[str] = set()
    nodes: list[Any] = []
    for node in graph.node:
        read = [name for name in node.input if name not in constants]
        if node.op_type == "Shape" and given.issuperset(node.input):
            shapes.update(node.output)
        elif node.op_type in ON_SHAPES and read and shapes.issuperset(read):
            shapes.update(node.output)
            nodes.append(node)
    return nodes


def split(model: bytes) -> tuple[bytes, bytes]:
    """(the arithmetic on shapes, all else with its results as inputs): the second has no business on the host."""
    import onnx

    whole = onnx.load_from_string(model)
    graph = whole.graph
    ours = {node.name for node in shape_arithmetic(graph)}
    made = {name for node in graph.node if node.name in ours for name in node.output}
    crossing = sorted({name for node in graph.node if node.name not in ours for name in reads_of(node)} & made)
    host, device = onnx.ModelProto(), onnx.ModelProto()
    host.CopyFrom(whole)
    device.CopyFrom(whole)
    given = {value.name for value in graph.input}
    shapes = [node for node in graph.node if node.op_type == "Shape" and given.issuperset(node.input)]
    _keep(host, [*shapes, *(node for node in graph.node if node.name in ours)])
    known = {v.name: v for v in graph.value_info}
    del host.graph.output[:]
    host.graph.output.extend(known.get(name) or onnx.helper.make_empty_tensor_value_info(name) for name in crossing)
    inferred = onnx.shape_inference.infer_shapes(host)
    outputs = {v.name: v for v in inferred.graph.output}
    del host.graph.output[:]
    host.graph.output.extend(outputs[name] for name in crossing)
    read = {name for node in graph.node if node.name not in ours for name in reads_of(node)}
    rest = [node for node in graph.node if node.name not in ours]
    _keep(device, [node for node in rest if node.op_type != "Shape" or read & set(node.output)])
    device.graph.input.extend(outputs[name] for name in crossing)
    for kept in (host, device):
        values = [v for v in kept.graph.value_info if v.name not in made]
        del kept.graph.value_info[:]
        kept.graph.value_info.extend(values)
    return host.SerializeToString(), device.SerializeToString()


def reads_of(node: Any) -> set[str]:
    """The values that a node reads, those of its bodies from outside too."""
    found = set(node.input)
    for body in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
        made = {value.name for value in (*body.input, *body.initializer)} | {
            n for each in body.node for n in each.output
        }
        found |= {name for each in body.node for name in reads_of(each)} - made
    return found


def _keep(model: Any, nodes: list[Any]) -> None:
    """These nodes, and of inputs and initialisers those that they read."""
    read = {name for node in nodes for name in reads_of(node)}
    graph = model.graph
    for values in (graph.input, graph.initializer):
        kept = [value for value in values if value.name in read]
        del values[:]
        values.extend(kept)
    kept_nodes = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept_nodes)


# Memory that torch owns and onnxruntime reads and writes


def real(dtype: str) -> Any:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]


def element(dtype: Any) -> int:
    """A torch type's number in ONNX."""
    import torch

    return {torch.float32: 1, torch.int32: 6, torch.int64: 7, torch.float16: 10, torch.bfloat16: 16}[dtype]


def settled(provider: str) -> None:
    """What torch has begun is done: onnxruntime works on a stream of its own."""
    import torch

    if provider == "cuda":
        torch.cuda.synchronize()


@dataclass
class Bound:
    """A session with its inputs and outputs bound to tensors, which are kept alive here."""

    session: Any
    binding: Any = field(init=False)
    tensors: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.binding = self.session.io_binding()
        self.inputs = {value.name for value in self.session.get_inputs()}

    def bind(self, tensors: Mapping[str, Any], out: bool = False) -> None:
        """Inputs that the graph does not have are passed over."""
        import torch

        for name, tensor in tensors.items():
            if not out and name not in self.inputs:
                continue
            held = tensor.contiguous() if tensor.numel() else torch.zeros(1, dtype=tensor.dtype, device=tensor.device)
            self.tensors[f"{'out' if out else 'in'} {name}"] = held
            bind = self.binding.bind_output if out else self.binding.bind_input
            bind(name, tensor.device.type, 0, element(tensor.dtype), tuple(tensor.shape), held.data_ptr())

    def run(self) -> None:
        self.session.run_with_iobinding(self.binding)
