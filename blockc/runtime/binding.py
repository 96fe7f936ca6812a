"""A graph bound to a cache: inputs, outputs and states stay bound from call to call while their memory is the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockc.ir import Array
from blockc.runtime.cache import HostTensor, SessionCache
from blockc.runtime.opening import OpenModel

KEPT = 64  # tokens, at most, whose logits are written to memory that is kept


class BoundGraph:
    """One of a model's graphs on the CPU's memory, for calls of any shape.

    A call writes its inputs in place and reads its outputs where they lie. A tensor is bound anew only if its shape
    changed, and states only if their buffers moved.
    """

    def __init__(self, model: OpenModel) -> None:
        self.model = model
        self.inputs = {port.name: HostTensor(model.type_of(port.dtype)) for port in model.contract.inputs}
        self.outputs = {port.name: HostTensor(model.type_of(port.dtype)) for port in model.contract.outputs}
        self.widths = {port.name: model.width(port) for port in model.contract.outputs}
        self.binding: Any = None
        self.bound: dict[str, Any] = {}
        self.cache: SessionCache | None = None
        self.version = 0

    def run(self, cache: SessionCache, given: Mapping[str, Array], rows: int, tokens: int) -> dict[str, Array]:
        """Runs a call that returns logits of so many tokens, and updates the states. Returns its other outputs.

        Memory of outputs is kept for the next call, except for the logits of a whole prompt.
        """
        if cache is not self.cache or cache.version != self.version:
            self._bind_states(cache)
        for name, tensor in self.inputs.items():
            tensor.write(given[name])
            if tensor.value is not self.bound.get(name):
                self.binding.bind_ortvalue_input(name, tensor.value)
                self.bound[name] = tensor.value
        made: dict[str, Array] = {}
        for name, kept in self.outputs.items():
            tensor = kept if tokens <= KEPT else HostTensor(kept.element)
            made[name] = tensor.reshape(rows, tokens, self.widths[name])
            if tensor.value is not self.bound.get(name):
                self.binding.bind_ortvalue_output(name, tensor.value)
                self.bound[name] = tensor.value
        self.model.session.run_with_iobinding(self.binding, self.model.options(-1))
        if self.model.provider != "cpu":
            self.binding.synchronize_outputs()
        if not cache.in_place:
            self._pass_on(cache)
        return made

    def _bind_states(self, cache: SessionCache) -> None:
        self.cache, self.version, self.bound = cache, cache.version, {}
        self.binding = self.model.session.io_binding()
        for name in self.outputs:
            self.binding.bind_output(name, "cpu")  # get_outputs() returns these first
        for held in self.model.contract.held:
            cache.bind(self.binding, held)

    def _pass_on(self, cache: SessionCache) -> None:
        """Makes each present that is a new tensor the past of the next call."""
        presents = self.binding.get_outputs()[len(self.outputs) :]
        for held, value in zip(self.model.contract.held, presents, strict=True):
            if not held.in_place:
                cache.buffers[held.past] = value
                cache.bind(self.binding, held)
