"""A decode step that is bound once: every shape and every address is the same at each call.

That is what a CUDA graph asks for. Its kernels are launched as they were when it was captured: what goes in is written
into the same memory, and what comes out is read from there. B rows, M the length of the buffers.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockc.ir import Array
from blockc.runtime.cache import Cache, Held, Placed
from blockc.runtime.opening import INT64


class Step:
    """One new token of each row, on a cache whose layers all write in place.

    onnxruntime runs the first call of a capture several times. That is no matter: a step reads nothing that it writes
    but the slot of its own token, and writes the same there again.
    """

    def __init__(self, cache: Cache, graph: int) -> None:
        """`graph` is the number of the capture, one for each set of addresses."""
        model, rows = cache.model, cache.rows
        away = model.captured or model.provider != "cpu"  # what lies on the CPU would be copied there when it is bound
        one, mask = (rows, 1), (rows, cache.length)
        shapes = {"input_ids": one, "attention_mask": mask, "position_ids": one, "write_indices": (rows,)}
        self.cache, self.graph = cache, graph
        self.inputs = {name: self._tensor(INT64, shapes[name], away) for name in sorted(model.inputs)}
        self.outputs = {
            name: self._tensor(element, (rows, 1, width), model.captured)
            for name, (element, width) in model.outputs.items()
        }
        self.binding = model.session.io_binding()
        for name, tensor in self.inputs.items():
            self.binding.bind_ortvalue_input(name, tensor.value)
        for name, tensor in self.outputs.items():
            self.binding.bind_ortvalue_output(name, tensor.value)
        for past in model.pasts:
            cache.bind(self.binding, past)
        self.options = model.options(graph)

    def _tensor(self, element: int, shape: tuple[int, ...], away: bool) -> Held | Placed:
        """`away`: in the provider's own memory, as all is that a captured graph reads and writes."""
        if away:
            return Placed(element, shape, self.cache.model.provider)
        held = Held(element)
        held.shaped(*shape)
        return held

    def run(self, given: Mapping[str, Array]) -> None:
        for name, tensor in self.inputs.items():
            tensor.write(given[name])
        self.cache.model.session.run_with_iobinding(self.binding, self.options)
        self.binding.synchronize_outputs()

    def release(self) -> None:
        """Forgets the captured graph, before the memory that it names goes."""
        if self.cache.model.captured:
            self.cache.model.session.release_captured_graph(self.graph)
