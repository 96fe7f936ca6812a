"""Where the project's own files lie."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
_TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "specs").glob("*.yaml"))}
# The specs of models that write text: causal, with logits of the vocabulary, and so with a cache.
WRITERS = [
    name
    for name, text in _TEXTS.items()
    if re.search(r"^head: *\{?.*?tied:|^head:\n +tied:", text, re.MULTILINE) and "causal: false" not in text
]
