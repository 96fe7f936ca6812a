"""Memory that a session's calls share: the cache, and the small tensors that go in and come out beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from blockc.basics.floats import FLOATS
from blockc.ir import Array
from blockc.runtime.opening import INT64, Opened, Past

# By onnx's number; bf16 as its bits.
_NUMPY = {one.onnx: np.dtype(one.numpy) for one in FLOATS.values()} | {INT64: np.dtype(np.int64)}


def on_cpu(array: Array, element: int) -> Any:
    """The array as onnxruntime sees it; one piece of memory."""
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, element)


class Held:
    """A tensor on the CPU whose memory stays while its shape changes."""

    def __init__(self, element: int) -> None:
        self.element = element
        self.flat = np.zeros(0, _NUMPY[element])
        self.array = self.flat
        self.value: Any = None

    def shaped(self, *shape: int) -> Array:
        """To be written or read, with what it held before no longer meant."""
        size = math.prod(shape)
        if size > self.flat.size:
            self.flat = np.zeros(max(size, 2 * self.flat.size), self.flat.dtype)
            self.value = None
        if self.value is None or self.array.shape != shape:
            self.array = self.flat[:size].reshape(shape)
            self.value = on_cpu(self.array, self.element)
        return self.array

    def write(self, array: Array) -> None:
        self.shaped(*array.shape)[:] = array

    def read(self) -> Array:
        return self.array


class Placed:
    """A tensor of one shape in a provider's memory, written from the CPU and read there by copying."""

    def __init__(self, element: int, shape: tuple[int, ...], provider: str) -> None:
        from onnxruntime import OrtValue

        self.shape = shape
        self.value: Any = OrtValue.ortvalue_from_shape_and_type(shape, element, provider, 0)

    def write(self, array: Array) -> None:
        if array.shape != self.shape:  # onnxruntime does not look
            raise ValueError(f"an array of {array.shape} for a tensor of {self.shape}")
        self.value.update_inplace(np.ascontiguousarray(array))

    def read(self) -> Array:
        return self.value.numpy()


class Cache:
    """Keys and values of all layers, `length` tokens long, bound as past and present of every call.

    A layer whose graph writes in place has one buffer for both. Another's present is a new tensor, and the next call's
    past; there `length` is no matter. Buffers begin as zeros: what is not seen yet weighs 0, and 0 * NaN is not 0.
    """

    def __init__(self, model: Opened, rows: int, length: int) -> None:
        self.model, self.rows, self.length = model, rows, length
        self.binding = model.session.io_binding()
        for name in model.outputs:
            self.binding.bind_output(name, "cpu")  # the first of the outputs, as they come back
        self.buffers: dict[str, Any] = {}
        for past in model.pasts:
            if past.in_place:
                self._fix(past, np.zeros(self._shape(past), _NUMPY[model.element]))
            else:
                self._pass_on(past, self._empty(past))

    @property
    def in_place(self) -> bool:
        return all(past.in_place for past in self.model.pasts)

    def run(self, inputs: Mapping[str, Held], outputs: Mapping[str, Held]) -> None:
        """One call. Its new keys and values are then here, and what else comes out in the memory that is given."""
        for name, held in inputs.items():
            self.binding.bind_ortvalue_input(name, held.value)
        for name, held in outputs.items():
            self.binding.bind_ortvalue_output(name, held.value)
        self.model.session.run_with_iobinding(self.binding, self.model.options(-1))
        self.binding.synchronize_outputs()
        if not self.in_place:
            presents = self.binding.get_outputs()[len(outputs) :]
            for past, value in zip(self.model.pasts, presents, strict=True):
                if not past.in_place:
                    self._pass_on(past, value)

    def grow(self, length: int) -> None:
        """Longer buffers, with what these hold. One layer after another, so that little is held twice."""
        longer = length - self.length
        self.length = length
        for past in self.model.pasts:
            if past.in_place:
                self._fix(past, np.pad(self.buffers[past.name].numpy(), ((0, 0), (0, 0), (0, longer), (0, 0))))

    def bind(self, binding: Any, past: Past) -> None:
        """A buffer as past and present, by its address: of bf16 NumPy knows the bits alone."""
        address = self.buffers[past.name].data_ptr()
        place = (self.model.provider, 0, self.model.element, self._shape(past), address)
        binding.bind_input(past.name, *place)
        binding.bind_output(past.present, *place)

    def _shape(self, past: Past) -> tuple[int, ...]:
        return self.rows, past.heads, self.length if past.in_place else 0, past.head_dim

    def _empty(self, past: Past) -> Any:
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_shape_and_type(self._shape(past), self.model.element, self.model.provider, 0)

    def _fix(self, past: Past, array: Array) -> None:
        """The array as past and present of all calls. On the CPU it is the buffer; elsewhere its copy is."""
        from onnxruntime import OrtValue

        self.buffers[past.name] = OrtValue.ortvalue_from_numpy(array, self.model.provider, 0)
        self.bind(self.binding, past)

    def _pass_on(self, past: Past, value: Any) -> None:
        """The next call's past, and a present that onnxruntime finds memory for."""
        self.binding.bind_ortvalue_input(past.name, value)
        self.binding.bind_output(past.present, self.model.provider)
        self.buffers[past.name] = value
