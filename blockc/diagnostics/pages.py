"""The codes as people read them: the list, one entry, and the page of docs."""

from __future__ import annotations

import textwrap

from blockc.diagnostics import CODES, GROUPS, Code
from blockc.diagnostics.examples import BASE, example_text

_BASE = """\
## The codes

An example shows the keys that matter. The others are those of this spec, which is also what a policy is held to:
"""


def code_list() -> str:
    return "\n".join(f"{code.name}  {code.severity:7}  {code.title}" for code in CODES.values())


def code_entry(code: Code) -> str:
    """One code for a terminal."""
    parts = [f"{code.name} ({code.severity}): {code.title}", textwrap.fill(code.why, 100)]
    if code.bad:
        parts += [f"wrong:\n\n{textwrap.indent(example_text(code.bad), '    ')}"]
        parts += [f"right:\n\n{textwrap.indent(example_text(code.good), '    ')}"]
    return "\n\n".join(parts)


def code_sections() -> str:
    """docs/diagnostics.md from its heading The codes on."""
    parts = [_BASE, _fenced(BASE)]
    for group in GROUPS:
        title = (group.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        parts.append(f"### {title}\n")
        parts += [_section(code) for code in vars(group).values() if isinstance(code, Code)]
    return "\n".join(parts)


def _section(code: Code) -> str:
    severity = "" if code.severity == "error" else f" ({code.severity})"
    parts = [f"#### {code.name}: {code.title}{severity}\n", textwrap.fill(code.why, 128) + "\n"]
    if code.bad:
        parts += ["Wrong:\n", _fenced(code.bad), "Right:\n", _fenced(code.good)]
    return "\n".join(parts)


def _fenced(example: str | bytes) -> str:
    text = example_text(example)
    language = "console" if text.startswith("$") else "json" if text.startswith("{") else "yaml"
    return f"```{language}\n{text}\n```\n"
