"""Memory that a session's calls share: the cache, and the small tensors of inputs and outputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockc.basics.floats import FLOATS, INTEGERS
from blockc.graph.contract import StatePort
from blockc.ir import Array
from blockc.runtime.opening import OpenModel

# NumPy's dtypes by onnx's number; bf16 as bits.
_NUMPY = {one.onnx: np.dtype(one.numpy) for one in (*FLOATS.values(), *INTEGERS.values())}


def on_cpu(array: Array, element: int) -> Any:
    """An OrtValue that shares the array's memory."""
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, element)


class HostTensor:
    """A tensor on the CPU that keeps its memory while its shape changes."""

    def __init__(self, element: int) -> None:
        self.element = element
        self.flat = np.zeros(0, _NUMPY[element])
        self.array = self.flat
        self.value: Any = None

    def reshape(self, *shape: int) -> Array:
        """The array in this shape, in the same memory if it fits; its old content is undefined."""
        size = math.prod(shape)
        if size > self.flat.size:
            self.flat = np.zeros(max(size, 2 * self.flat.size), self.flat.dtype)
            self.value = None
        if self.value is None or self.array.shape != shape:
            self.array = self.flat[:size].reshape(shape)
            self.value = on_cpu(self.array, self.element)
        return self.array

    def write(self, array: Array) -> None:
        if self.value is None or self.array.shape != array.shape:
            self.reshape(*array.shape)
        self.array[...] = array

    def read(self) -> Array:
        return self.array


class DeviceTensor:
    """A tensor of one shape in a provider's memory. Writing copies from the CPU, reading copies to it."""

    def __init__(self, element: int, shape: tuple[int, ...], provider: str) -> None:
        from onnxruntime import OrtValue

        self.shape = shape
        self.value: Any = OrtValue.ortvalue_from_shape_and_type(shape, element, provider, 0)

    def write(self, array: Array) -> None:
        if array.shape != self.shape:  # onnxruntime does not check
            raise ValueError(f"an array of {array.shape} for a tensor of {self.shape}")
        self.value.update_inplace(np.ascontiguousarray(array))

    def read(self) -> Array:
        return self.value.numpy()


class SessionCache:
    """The states of all layers; those that grow in place have `length` tokens.

    A layer whose graph writes in place has one buffer for past and present. In another layer each present is a new
    tensor, which is the past of the next call; `length` does not matter there. Buffers start as zeros, because slots
    that are not seen have the weight 0, and 0 * NaN is not 0.
    """

    def __init__(self, model: OpenModel, rows: int, length: int) -> None:
        self.model, self.rows, self.length = model, rows, length
        self.version = 0  # raised when buffers move
        self.in_place = all(held.in_place for held in model.contract.held)
        self.buffers: dict[str, Any] = {
            held.past: self._place(self._zeros(held)) if held.in_place else self._first(held)
            for held in model.contract.held
        }

    def grow(self, length: int) -> None:
        """Makes the buffers longer and keeps their content. It goes layer by layer, so that little is held twice."""
        longer = length - self.length
        self.length = length
        self.version += 1
        for held in self.model.contract.held:
            if held.in_place and held.grows is not None:
                room = [(0, longer if axis == held.grows else 0) for axis in range(len(held.shape))]
                self.buffers[held.past] = self._place(np.pad(self.buffers[held.past].numpy(), room))

    def bind(self, binding: Any, held: StatePort) -> None:
        """Binds a state as past and present.

        A buffer is bound by its address, since NumPy has only the bits of bf16. For a present that is a new tensor,
        onnxruntime allocates the memory.
        """
        if not held.in_place:
            binding.bind_ortvalue_input(held.past, self.buffers[held.past])
            binding.bind_output(held.present, self.model.provider)
            return
        address = self.buffers[held.past].data_ptr()
        place = (self.model.provider, 0, self.model.type_of(held.dtype), self._shape(held), address)
        binding.bind_input(held.past, *place)
        binding.bind_output(held.present, *place)

    def _shape(self, held: StatePort) -> tuple[int, ...]:
        return held.shape_for(self.rows, self.length if held.in_place else 0)

    def _zeros(self, held: StatePort) -> Array:
        return np.zeros(self._shape(held), _NUMPY[self.model.type_of(held.dtype)])

    def _first(self, held: StatePort) -> Any:
        """The past of the first call: empty for a state that grows, zeros for one of fixed size."""
        from onnxruntime import OrtValue

        element = self.model.type_of(held.dtype)
        value = OrtValue.ortvalue_from_shape_and_type(self._shape(held), element, self.model.provider, 0)
        if held.grows is None:
            value.update_inplace(self._zeros(held))
        return value

    def _place(self, array: Array) -> Any:
        """The array in the provider's memory. On the CPU it is the buffer itself, elsewhere it is copied."""
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_numpy(array, self.model.provider, 0)
