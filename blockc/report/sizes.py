"""Sizes as people write them."""

from __future__ import annotations

import re

from blockc.basics.errors import UsageError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
SIZE = "a size such as 80GB or 80GiB"


def parse_size(text: str) -> int:
    """Bytes: 192GB is 192e9, 192GiB is 192 * 2^30. Raises UsageError where it is no size above 0."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]*)", text, re.ASCII)
    size = int(float(found[1]) * _UNITS.get(found[2].upper(), 0)) if found else 0
    if size == 0:
        raise UsageError(f"expected {SIZE}")
    return size
