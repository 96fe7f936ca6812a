"""A conversation as the text that a model was taught to go on from, by the template of its checkpoint.

The template is foreign code: it runs in jinja's sandbox, which lets it change nothing, reach no file and count to
100000 at most, and its size and that of what it writes are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blockc.runtime.opening import SessionError
from blockc.runtime.text import Tokenizer, json_object

_TEMPLATE = "chat_template.jinja"
MOST = 1_000_000  # characters, of a template and of what it writes


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks what an assistant said, which matters to training alone."""

    tags = {"generation"}  # noqa: RUF012 as jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Sandbox(ImmutableSandboxedEnvironment):
    """A product or a power is one of numbers of the size that conversations count: not "a" * 10**8."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        small = all(isinstance(x, int | float) and abs(x) <= MOST for x in (left, right))
        if not small or (operator == "**" and abs(right) > 8):
            raise TemplateError(f"it computes {operator} of something else than small numbers")
        return super().call_binop(context, operator, left, right)


def rendered(folder: Path, tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> str:
    """The conversation, up to where the assistant speaks. Raises SessionError."""
    template = _template(folder)
    given = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": True}
    text = ""
    try:
        for part in _environment().from_string(template).generate(given | tokenizer.special):
            text += part
            if len(text) > MOST:
                raise TemplateError(f"it writes more than {MOST} characters")
    except Exception as error:  # whatever may go wrong in an expression of the template
        raise SessionError(f"{folder}: the chat template cannot be used: {error}") from None
    return text


def _template(folder: Path) -> str:
    """chat_template.jinja, else chat_template of tokenizer_config.json: a text, or several by name."""
    if (path := folder / _TEMPLATE).is_file():
        template: Any = path.read_text(encoding="utf-8")
    else:
        template = json_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    if not isinstance(template, str):
        raise SessionError(
            f"{folder}: no chat template, neither {_TEMPLATE} nor in tokenizer_config.json: run it without --chat"
        )
    if len(template) > MOST:
        raise SessionError(f"{folder}: its chat template has {len(template)} characters, and {MOST} are read at most")
    return template


def _environment() -> ImmutableSandboxedEnvironment:
    """What templates expect: those of Hugging Face are written for it."""
    made = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    known: Any = made.globals
    known |= {"raise_exception": _refuse, "strftime_now": _now}
    made.filters["tojson"] = _tojson
    return made


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the escapes of HTML that jinja's own has."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(format_: str) -> str:
    return datetime.now().strftime(format_)
