"""Bytes by chance: through the reader of specs, and through the readers of checkpoints."""

from __future__ import annotations

import json
import tempfile
import time
import tracemalloc
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blockc.basics.errors import CheckpointError
from blockc.layouts import LayoutError
from blockc.source import SpecError, parse, render_finding
from blockc.weights.checkpoint import open_checkpoint
from tests.fuzz.strategies import counted
from tests.fuzz.test_almost import findings_or_model
from tests.paths import ROOT

TEXTS = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "specs").glob("*.yaml"))]
SECONDS, BYTES = 5.0, 64 << 20  # what a file of a few kilobytes may cost

PIECES = st.one_of(
    st.sampled_from([
        "\t", "\r", "\0", "\x1b[31m", "\ufeff", "\u2028", "\x85", "\ud7ff", "😀", "&a ", "*a",
        "!!python/object:os.system ", "<<: ", "%YAML 1.1\n", "---\n", "...\n", "? ", ": ", "- ", "[", "]", "{",
        "}", ", ", "#", '"', "'", "|\n", ">\n", "\n", "  ",
        "\n\n", "0", "-", "e9", ".", "_", "1e999", "\\", "@", "`", "[" * 70, "{a: " * 70, "x: " * 40,
    ]),
    st.text(max_size=5),
)  # fmt: skip


@st.composite
def edited(draw: st.DrawFn) -> str:
    """A spec that comes with blockc, with pieces put in, taken out or doubled."""
    spec = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(spec)))
        stop = min(len(spec), start + draw(st.integers(0, 12)))
        piece = draw(st.one_of(PIECES, st.just(spec[start:stop] * 2)))
        spec = spec[:start] + piece + spec[stop:]
    return spec


@counted(100)
@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
)
def test_bytes_that_are_no_spec_have_findings(data: bytes) -> None:
    try:
        parse(data, "fuzz.yaml")
    except SpecError as error:
        assert error.findings
        assert all(render_finding(found) for found in error.findings)


@counted(40)
@given(edited())
def test_an_edited_spec_gives_findings_or_a_model(spec: str) -> None:
    try:
        spec.encode()
    except UnicodeEncodeError:
        return
    findings_or_model(spec.replace("\r\n", "\n").removeprefix("\ufeff"))


# Checkpoints


def refused_or_read(name: str, data: bytes) -> None:
    """CheckpointError or tensors, in little time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        began = time.monotonic()
        tracemalloc.start()
        try:
            held = open_checkpoint(path)
            for tensor in held.tensors.values():
                assert tensor.read().shape == tensor.shape
        except LayoutError as error:  # of a GGUF file whose architecture is unknown
            assert "no checkpoint layout is named" in str(error)
        except CheckpointError as error:
            assert name in str(error)
            assert len(str(error)) < 5000
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < BYTES
        assert time.monotonic() - began < SECONDS


HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "c": {"dtype": "I64", "shape": [1], "data_offsets": [32, 40]},
}
NUMBERS = st.sampled_from([0, -1, 1, 3, 24, 25, 32, 40, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30, 0.5, 1e308, True])
JSON = st.one_of(
    NUMBERS, st.none(), st.text(max_size=4), st.lists(NUMBERS, max_size=10), st.just({}),
    st.sampled_from(["F32", "F4"]), st.just({"dtype": "F32", "shape": [], "data_offsets": [40, 44]}),
)  # fmt: skip


def safetensors(header: object, length: int | None = None, data: bytes = bytes(range(40))) -> bytes:
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


@st.composite
def changed_header(draw: st.DrawFn) -> bytes:
    header = json.loads(json.dumps(HEADER))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(list(header) or [""]))
        entry = header.get(name)
        if isinstance(entry, dict) and entry and draw(st.booleans()):
            entry[draw(st.sampled_from([*entry, "more"]))] = deepcopy(draw(JSON))
        else:
            header[draw(st.sampled_from([name, "b", "d", "__metadata__", "\x1b[31m", "x" * 2000]))] = deepcopy(
                draw(JSON)
            )
    return safetensors(header)


def cut(whole: bytes) -> st.SearchStrategy[bytes]:
    """Bytes of a file changed, left out or put in."""

    @st.composite
    def change(draw: st.DrawFn) -> bytes:
        data = bytearray(whole)
        for _ in range(draw(st.integers(1, 4))):
            start = draw(st.integers(0, len(data)))
            stop = min(len(data), start + draw(st.sampled_from([0, 1, 4, 8, len(data)])))
            odd = [
                b"",
                b"\0",
                b"\xff",
                b"\xff" * 8,
                b"\0" * 8,
                (2**62).to_bytes(8, "little"),
                b"[" * 100_000,
                b'"',
                b"{",
            ]
            data[start:stop] = draw(st.one_of(st.sampled_from(odd), st.binary(max_size=8)))
        return bytes(data)

    return change()


@counted(120)
@given(st.one_of(changed_header(), cut(safetensors(HEADER))))
def test_a_changed_safetensors_file_is_read_or_refused(data: bytes) -> None:
    refused_or_read("model.safetensors", data)


@counted(40)
@given(st.one_of(cut(json.dumps({"weight_map": {"a": "x.safetensors"}}).encode()), st.binary(max_size=60)))
def test_a_changed_index_is_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.safetensors").write_bytes(safetensors({"a": HEADER["a.weight"]}, data=bytes(24)))
        (Path(folder) / "model.safetensors.index.json").write_bytes(data)
        try:
            open_checkpoint(Path(folder))
        except CheckpointError as error:
            assert len(str(error)) < 5000


@cache
def small_gguf() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer: Any = gguf.GGUFWriter(str(path), "llama")
        writer.add_uint32("llama.block_count", 1)
        writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "d"])
        writer.add_array("tokenizer.ggml.token_type", [1, 3, 1])
        writer.add_string("tokenizer.chat_template", "{{ x }}")
        writer.add_float32("llama.rope.freq_base", 10000.0)
        writer.add_tensor("token_embd.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
        blocks: Any = gguf.quants.quantize(np.ones((2, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("output.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        for step in (
            writer.write_header_to_file,
            writer.write_kv_data_to_file,
            writer.write_tensors_to_file,
            writer.close,
        ):
            step()
        return path.read_bytes()


@counted(80)
@given(st.deferred(lambda: cut(small_gguf())))
def test_a_changed_gguf_file_is_read_or_refused(data: bytes) -> None:
    refused_or_read("model.gguf", data)
