"""docs/glossary.md: in order, each word once, and none that nobody uses."""

from __future__ import annotations

import re

from tests.paths import ROOT


def test_the_glossary_is_in_order_and_its_words_are_used() -> None:
    """Each word stands in the code or the documentation, and no two rows explain one."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!word )([a-z][a-z ,]+) \| [a-z]", text, re.MULTILINE)
    words = [word for row in rows for word in row.split(", ")]
    assert rows == sorted(rows) and len(words) == len(set(words)) > 30
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "blockc").rglob("*.py")]
    used = " ".join(file.read_text(encoding="utf-8") for file in files if file.name != "glossary.md").lower()
    assert [word for word in words if word not in used] == []
