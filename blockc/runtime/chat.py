"""A conversation as the text that a model was trained to continue, by the checkpoint's chat template.

The template is untrusted code. A separate process renders it, with limits of memory and time: see template.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockc.basics.errors import UsageError
from blockc.basics.jsonfile import FileError, read_bounded, reason_of
from blockc.runtime import template
from blockc.runtime.opening import SessionError
from blockc.runtime.text import Tokenizer, optional_object
from blockc.weights.special import TOKENIZER

_TEMPLATE = "chat_template.jinja"
MOST = 1_000_000  # characters, of a template and of its output
MAX_MEMORY = 1 << 29  # bytes, of the process that renders it
MAX_SECONDS = 2  # of processor time
MAX_WAIT = 20  # seconds of wall time, for a busy machine


def prompt_ids(
    folder: Path, tokenizer: Tokenizer, text: str, chat: bool = False, system: str | None = None
) -> list[int]:
    """The token ids of a prompt. With `chat` it is a message to an assistant, after the system message `system`."""
    if chat:
        told = [] if system is None else [{"role": "system", "content": system}]
        return tokenizer.encode(
            render_chat(folder, tokenizer, [*told, {"role": "user", "content": text}]), special=False
        )
    if ids := tokenizer.encode(text):
        return ids
    raise UsageError("is empty, and this tokenizer adds no token at the start", "prompt")


def render_chat(folder: Path, tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> str:
    """The text of a conversation, up to the assistant's next message. Raises SessionError."""
    given = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": True}
    said = _run_renderer(_read_template(folder), given | tokenizer.special)
    if "text" not in said:
        raise SessionError(f"{folder}: the chat template cannot be used: {said['error']}")
    return said["text"]


def _run_renderer(text: str, given: dict[str, Any]) -> dict[str, str]:
    """Renders in a new Python process, which ignores the environment and all packages but jinja2."""
    import jinja2
    import markupsafe

    path = [str(Path(str(package.__file__)).parents[1]) for package in (jinja2, markupsafe)]
    asked = {"path": path, "template": text, "given": given, "most": MOST, "memory": MAX_MEMORY, "seconds": MAX_SECONDS}
    command = [sys.executable, "-I", "-S", str(template.__file__)]
    try:
        done = subprocess.run(command, input=json.dumps(asked).encode(), capture_output=True, timeout=MAX_WAIT)
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # killed, by the timeout or by the system
        return {"error": f"it takes more than {MAX_SECONDS} seconds, or more than {MAX_MEMORY >> 20} MiB of memory"}
    except OSError as error:
        return {"error": f"no process could be started for it: {error.strerror}"}


def _read_template(folder: Path) -> str:
    """The text of chat_template.jinja, else of chat_template in tokenizer_config.json, which may hold several."""
    path = folder / _TEMPLATE
    try:
        found: Any = read_bounded(path, 4 * MOST).decode()  # a character has four bytes at most
    except FileNotFoundError:
        found = optional_object(folder / TOKENIZER).get("chat_template")
    except UnicodeDecodeError:
        raise SessionError(f"{path}: not a text in UTF-8") from None
    except (FileError, OSError) as error:
        raise SessionError(reason_of(path, error)) from None
    if isinstance(found, list):
        named = [entry for entry in found if isinstance(entry, dict)]
        found = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    if not isinstance(found, str):
        raise SessionError(
            f"{folder}: no chat template, neither {_TEMPLATE} nor in tokenizer_config.json: run it without --chat"
        )
    if len(found) > MOST:
        raise SessionError(f"{folder}: its chat template has {len(found):,} characters, and {MOST:,} are read at most")
    return found
