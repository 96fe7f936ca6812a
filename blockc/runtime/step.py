"""A decode step that is bound once: every call has the same shapes and addresses.

A CUDA graph requires that, because it launches the kernels exactly as captured: inputs are written to the same memory,
and outputs are read from the same memory. B rows, M the length of the buffers.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockc.graph.contract import IDS, MASK, POSITIONS, WHERE
from blockc.ir import Array
from blockc.runtime.cache import DeviceTensor, HostTensor, SessionCache


class DecodeStep:
    """One new token of each row, with a cache whose layers all write in place.

    onnxruntime runs the first call of a capture several times. That does no harm: a step writes only the slot of its
    own token, and writes the same there again.
    """

    def __init__(self, cache: SessionCache, graph: int) -> None:
        """`graph` is the number of the capture, one for each set of addresses."""
        model, rows = cache.model, cache.rows
        away = model.captured or model.provider != "cpu"  # inputs on the CPU would be copied once, when they are bound
        one, mask = (rows, 1), (rows, cache.length)
        shapes = {IDS: one, MASK: mask, POSITIONS: one, WHERE: (rows,)}
        self.cache, self.graph = cache, graph
        self.inputs = {
            port.name: self._tensor(model.type_of(port.dtype), shapes[port.name], away)
            for port in model.contract.inputs
        }
        self.outputs = {
            port.name: self._tensor(model.type_of(port.dtype), (rows, 1, model.width(port)), model.captured)
            for port in model.contract.outputs
        }
        self.binding = model.session.io_binding()
        for name, tensor in self.inputs.items():
            self.binding.bind_ortvalue_input(name, tensor.value)
        for name, tensor in self.outputs.items():
            self.binding.bind_ortvalue_output(name, tensor.value)
        for held in model.contract.held:
            cache.bind(self.binding, held)
        self.options = model.options(graph)

    def _tensor(self, element: int, shape: tuple[int, ...], away: bool) -> HostTensor | DeviceTensor:
        """A tensor for an input or output; with `away` in the provider's memory, which a captured graph needs."""
        if away:
            return DeviceTensor(element, shape, self.cache.model.provider)
        kept = HostTensor(element)
        kept.reshape(*shape)
        return kept

    def run(self, given: Mapping[str, Array]) -> None:
        for name, tensor in self.inputs.items():
            tensor.write(given[name])
        self.cache.model.session.run_with_iobinding(self.binding, self.options)
        self.binding.synchronize_outputs()

    def release(self) -> None:
        """Releases the captured graph, before its memory is freed."""
        if self.cache.model.captured:
            self.cache.model.session.release_captured_graph(self.graph)
