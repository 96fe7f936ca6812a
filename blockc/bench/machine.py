"""The worker that measures the machine: python -m blockc.bench.machine

    {"do": "load", "threads": 2}                              {"how": "a compiled loop", "buffer": bytes}
    {"do": "read", "repeat": R}                               {"bytes_s": [R numbers]}
    {"do": "product", "rows": N, "shapes": [[K, M], ...], "repeat": R}
                                                              {"flops_s": best, "by": ..., "shape": [K, M]}

`read`: threads, each on its own core, read a buffer many times larger than the last cache, with a loop compiled by the
machine's C compiler; without a compiler, with NumPy's dot product in one BLAS thread each.
`product`: (N, K) times (K, M) in fp32 for each shape, by onnxruntime and by NumPy; the fastest of all.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blockc.bench.protocol import UnableError, memory, serve
from blockc.ir import Array

_KERNELS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # they override OpenBLAS's choice of kernels
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # the threads here are our own
COMPILED, NUMPY = "a compiled loop", "NumPy's dot"
_LEAST, _CACHES = 1 << 28, 8  # least bytes of the buffer, and its least size in last caches
_LARGEST = 1 << 30  # bytes of a matrix to multiply with
_LOOP = """
#include <stddef.h>
#include <stdint.h>
uint64_t read_all(const uint64_t *x, size_t n) {
    uint64_t sum[32] = {0};
    for (size_t i = 0; i + 32 <= n; i += 32) {
        for (size_t j = 0; j < 32; j += 8) __builtin_prefetch(x + i + 1024 + j);
        for (size_t j = 0; j < 32; j++) sum[j] += x[i + j];
    }
    for (size_t j = 1; j < 32; j++) sum[0] += sum[j];
    return sum[0];
}
"""
ReadLoop = Callable[[Array], object]


def compile_loop() -> ReadLoop | None:
    """Compiles a loop that reads an array of uint64 and adds it up. None without a working C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="blockc-") as folder:
        source, library = Path(folder) / "read.c", Path(folder) / "read.so"
        source.write_text(_LOOP, encoding="ascii")
        made = subprocess.run(
            [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], capture_output=True
        )
        if made.returncode:
            return None
        loop: Any = ctypes.CDLL(str(library)).read_all  # stays loaded when the file has gone
    loop.argtypes, loop.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
    return lambda x: loop(x.ctypes.data, x.size)


def sum_by_dot(x: Array) -> object:
    numbers = x.view(np.float64)
    return np.dot(numbers, numbers)


def last_cache() -> int:
    """Bytes of the largest cache of the first core; 0 where the system does not say."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]] for size in sizes), default=0)


class Machine:
    """The machine, measured with `threads` threads, each with its share of a buffer."""

    def load(self, threads: int) -> dict[str, Any]:
        loop = compile_loop()
        self.threads, self.how, self.reading = threads, COMPILED if loop else NUMPY, loop or sum_by_dot
        each = max(_LEAST, _CACHES * last_cache()) // threads // 8
        self.shares = [np.ones(each, np.uint64) for _ in range(threads)]
        return {"how": self.how, "buffer": 8 * each * threads, "memory": memory()}

    def read(self, repeat: int) -> dict[str, Any]:
        return {"bytes_s": [self.read_rate(self.reading) for _ in range(repeat + 1)][1:]}

    def read_rate(self, reading: ReadLoop) -> float:
        """Bytes read per second."""
        return sum(share.nbytes for share in self.shares) / self._seconds(reading, self.shares)

    def _seconds(self, call: Callable[[Array], object], shares: Sequence[Array]) -> float:
        """Seconds from the first thread's start to the last one's end, with one share for each thread."""
        ready, spans = threading.Barrier(len(shares)), list[tuple[float, float]]()

        def one(core: int | None, share: Array) -> None:
            if core is not None:
                os.sched_setaffinity(0, {core})  # of this thread
            ready.wait()
            start = time.perf_counter()
            call(share)
            spans.append((start, time.perf_counter()))

        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None] * len(shares)
        threads = [threading.Thread(target=one, args=pair) for pair in zip(cores, shares, strict=False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        starts, ends = zip(*spans, strict=True)
        return max(ends) - min(starts)

    def product(self, rows: int, shapes: list[tuple[int, int]], repeat: int) -> dict[str, Any]:
        best: dict[str, Any] = {"flops_s": 0.0}
        for k, m in shapes:
            if 4 * k * m > _LARGEST:
                continue
            for by, seconds in self._ways(rows, k, m).items():
                rate = 2 * rows * k * m / min([seconds() for _ in range(repeat + 1)][1:])
                if rate > best["flops_s"]:
                    best = {"flops_s": rate, "by": by, "shape": [k, m]}
        if not best["flops_s"]:
            raise UnableError("no matrix is small enough to be multiplied with here")
        return best

    def _ways(self, rows: int, k: int, m: int) -> dict[str, Callable[[], float]]:
        """Functions that time one product (N, K) (K, M) in seconds. With NumPy, each thread computes some columns."""
        x, weight = np.ones((rows, k), np.float32), np.ones((k, m), np.float32)
        session = _open_session(_matmul_model(weight), self.threads)
        parts = [np.ascontiguousarray(part) for part in np.array_split(weight, self.threads, 1)]

        def onnxruntime() -> float:
            start = time.perf_counter()
            session.run(None, {"x": x})
            return time.perf_counter() - start

        return {"onnxruntime": onnxruntime, "NumPy": lambda: self._seconds(lambda part: x @ part, parts)}


def _open_session(model: bytes, threads: int) -> Any:
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _matmul_model(weight: Array) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
        for name, size in zip("xy", weight.shape, strict=True)
    )
    node = helper.make_node("MatMul", ["x", "weight"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weight, "weight")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


def main() -> None:
    """Serves requests, in a new process if the environment must change, since NumPy's BLAS has already read it."""
    env = {key: value for key, value in os.environ.items() if key not in _KERNELS} | _ONE_THREAD
    if env != dict(os.environ) and hasattr(os, "fork"):
        sys.exit(subprocess.call(sys.orig_argv, env=env))
    machine = Machine()
    serve({"load": machine.load, "read": machine.read, "product": machine.product})


if __name__ == "__main__":
    main()
