"""The spec that the examples of the codes change."""

from __future__ import annotations

import re

from blockc.diagnostics.code import Code

BASE = """\
blockc: 1
name: example
vocab: 1024
width: 64
depth: 2
context: 256
attention: {heads: 4, rope: {theta: 10000, pairing: half}}
mlp: {type: swiglu, width: 192}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: true}
expect: {layers: {layer: 2}}
"""
# How an example begins that is no spec: { a config.json.
OTHER_FILES = ("layout:", "policy:", "blockc_quant:", "import:", "{")


def example_file(code: Code, example: str | bytes) -> bytes:
    """The whole file of an example: BASE with the example's keys in place of its own."""
    if isinstance(example, bytes):
        return example
    if (code.alone and example == code.bad) or example.startswith(OTHER_FILES):
        return example.encode()
    return change_base(example)


def change_base(keys: str) -> bytes:
    """BASE with these keys and their values in place of its own."""
    return "".join((_split_keys(BASE) | _split_keys(keys)).values()).encode()


def _split_keys(text: str) -> dict[str, str]:
    """The lines of each top-level key."""
    found = re.findall(r"^[^\s#].*\n(?:[ \t#].*\n|\n)*", text if text.endswith("\n") else text + "\n", re.MULTILINE)
    return {re.split(r"[:\s]", lines, maxsplit=1)[0]: lines for lines in found}


def example_text(example: str | bytes) -> str:
    r"""An example as it is printed: a byte that is not ASCII becomes an escape such as \xe9."""
    if isinstance(example, str):
        return example.rstrip("\n")
    return example.decode("ascii", "backslashreplace").rstrip("\n")
