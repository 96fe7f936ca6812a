"""The process that renders a chat template. It runs as a script and imports nothing of blockc.

Standard input is a JSON object with the path of jinja2, the template, its variables, and the limits. Standard output is
a JSON object with `text` or `error`. A template is untrusted code, and a list of allowed calls does not limit the time
or memory that it takes. So the system limits the process: its memory, its time, and that it writes no file. Where the
system has no such limits, only the sandbox protects.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

# What can make a text of any length: methods of str, filters, and a width in a format, which may be a variable.
_METHODS = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs"))
_FILTERS = ("center", "indent", "batch", "slice", "tojson")
_PERCENT = re.compile(r"%(\([^)]*\))?[-+ #0_^]*(\*|\d{7}|\d*\.(\*|\d{7}))")
_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{7})")
_POWER = 8


def main() -> None:
    asked: dict[str, Any] = json.load(sys.stdin)
    sys.path += asked["path"]
    try:
        set_limits(asked["memory"], asked["seconds"])
        said = {"text": render_template(asked["template"], asked["given"], asked["most"])}
    except MemoryError:
        said = {"error": f"it takes more than {asked['memory'] >> 20} MiB of memory"}
    except Exception as error:  # an expression of the template may raise anything
        said = {"error": str(error)[:1000] or type(error).__name__}
    json.dump(said, sys.stdout)


def set_limits(memory: int, seconds: int) -> None:
    """Sets limits of memory, time and files, as far as the system has them."""
    with suppress(ImportError):  # Windows has none
        import resource

        limits = {"RLIMIT_AS": memory, "RLIMIT_CPU": seconds, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}
        for name, limit in limits.items():
            with suppress(AttributeError, ValueError, OSError):
                resource.setrlimit(getattr(resource, name), (limit, limit))


def render_template(template: str, given: dict[str, Any], most: int) -> str:
    """The rendered text, with the functions that Hugging Face's templates expect; at most `most` characters."""
    from jinja2 import TemplateError

    text = ""
    for part in _make_environment(most).from_string(template).generate(given):
        text += part
        if len(text) > most:
            raise TemplateError(f"it writes more than {most:,} characters")
    return text


def _make_environment(most: int) -> ImmutableSandboxedEnvironment:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.filters import do_format
    from jinja2.parser import Parser

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %} marks an assistant's text, which matters only in training."""

        tags = {"generation"}  # noqa: RUF012 as jinja declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def now(format_: str) -> str:
        _refuse_format("strftime_now", _PERCENT, format_, most)
        return datetime.now().strftime(format_)

    def formatted(value: Any, *args: Any, **kwargs: Any) -> str:
        _refuse_format("format", _PERCENT, value, most)
        return do_format(value, *args, **kwargs)

    made = _make_sandbox(most)(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    known: Any = made.globals
    known |= {"raise_exception": refuse, "strftime_now": now}
    made.filters["tojson"] = _tojson
    made.filters |= {name: _limit_widths(name, made.filters[name], most) for name in _FILTERS}
    made.filters["format"] = formatted
    return made


def _make_sandbox(most: int) -> type[ImmutableSandboxedEnvironment]:
    """A sandbox: no object is changed, no private attribute is read, and no text longer than `most` is made."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            a, b = _size(left), _size(right)
            numbers = all(isinstance(x, int | float) for x in (left, right))
            if operator == "%":
                _refuse_format("%", _PERCENT, left, most)
            elif operator == "**":
                _refuse_over(operator, max(a, b if b <= _POWER else most + 1), most)
            elif operator == "*":
                _refuse_over(operator, max(a, b) if numbers else a * b, most)
            elif not numbers:
                _refuse_over(operator, a + b, most)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
            method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps format
            text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
            if isinstance(text, str) and name in _METHODS:
                _refuse_widths(name, (*args, *kwargs.values()), most)
            if isinstance(text, str) and name in ("format", "format_map"):
                _refuse_format(name, _BRACES, text, most)
            return super().call(context, obj, *args, **kwargs)

    return Sandbox


def _limit_widths(name: str, filter_: Callable[..., Any], most: int) -> Callable[..., Any]:
    @wraps(filter_)
    def measured(*args: Any, **kwargs: Any) -> Any:
        _refuse_widths(name, (*args[1:], *kwargs.values()), most)
        return filter_(*args, **kwargs)

    return measured


def _size(value: Any) -> float:
    """The length of a text or a list, the magnitude of a number."""
    if isinstance(value, int | float):
        return abs(value)
    return len(value) if isinstance(value, str | list | tuple) else 0


def _refuse_widths(name: str, args: tuple[Any, ...], most: int) -> None:
    for arg in args:
        _refuse_over(name, abs(arg) if isinstance(arg, int | float) else 0, most)


def _refuse_format(name: str, wide: re.Pattern[str], format_: Any, most: int) -> None:
    _refuse_over(name, most + 1 if isinstance(format_, str) and wide.search(format_) else 0, most)


def _refuse_over(name: str, size: float, most: int) -> None:
    from jinja2 import TemplateError

    if size > most:
        raise TemplateError(f"{name} would make a text, a list or a number beyond {most:,}")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    main()
