"""Chat templates: hostile ones are refused within limits, published shapes render as transformers renders them."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models

from blockc.runtime import SessionError, chat, template
from tests.paths import ROOT

transformers_: Any = transformers
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "Who is <é>?\n"}
CONVERSATIONS = (
    [USER],
    [{"role": "system", "content": " Be brief. "}, USER],
    [USER, {"role": "assistant", "content": "<think>hm</think>\n\nNobody. "}, {"role": "user", "content": "Sure? 語"}],
)


def rendered(folder: Path, text: str, messages: list[dict[str, str]]) -> str:
    (folder / "chat_template.jinja").write_text(text)
    return chat.render_chat(folder, SimpleNamespace(special=SPECIAL), messages)  # type: ignore[arg-type]


# What takes memory or time

GROWING = "{% set n = namespace(a='aaaaaaaa', l=[1, 2]) %}{% for i in range(90) %}{% set STEP %}{% endfor %}"
HOSTILE = {
    "a width of a filter": "{{ 'a'|center(2000000000) }}",
    "a width of a method": "{{ 'a'.ljust(2000000000) }}{{ 'a'.rjust(width=2000000000) }}",
    "a tab": "{{ '\\t'.expandtabs(2000000000) }}",
    "an indent": "{{ 'a\nb'|indent(2000000000) }}",
    "an indent of JSON": "{{ [1]|tojson(indent=2000000000) }}",
    "a format": "{{ '%2000000000d' % 1 }}",
    "a format's argument": "{{ '%*d' % (2000000000, 1) }}",
    "a filter's format": "{{ '%.2000000000f'|format(1) }}",
    "braces": "{{ '{:2000000000}'.format(1) }}",
    "braces within": "{{ '{:{}}'.format(1, 2000000000) }}",
    "a date": "{{ strftime_now('%2000000000Y') }}",
    "a text times": "{{ ('a' * 2000000000)|length }}",
    "a list times": "{{ ([1] * 2000000000)|length }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a batch": "{{ [1]|batch(2000000000, 'x')|list|length }}",
    "doubling": GROWING.replace("STEP", "n.a = n.a + n.a"),
    "doubling a list": GROWING.replace("STEP", "n.l = n.l + n.l"),
    "doubling by ~": GROWING.replace("STEP", "n.a = n.a ~ n.a"),
    "replace": GROWING.replace("STEP", "n.a = n.a|replace('a', n.a)"),
    "join": GROWING.replace("STEP", "n.a = [n.a, n.a, n.a]|join(n.a)"),
    "wrapping": "{{ ('a ' * 400000)|wordwrap(1, wrapstring='b' * 900000)|length }}",
    "products of ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "much text": "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
    "a macro without end": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "depth": "{{ " + "(" * 200000 + ")" * 200000 + " }}",
}
WHY = r"would make a text, a list or a number beyond 1,000,000|takes more than|writes more than|recursion depth"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_template_that_takes_memory_or_time_is_refused(text: str, tmp_path: Path) -> None:
    """Within a bound of a processor's time, which another process's load does not change."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(SessionError, match=f"the chat template cannot be used: .*({WHY})") as caught:
        rendered(tmp_path, HOSTILE[text], [USER])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(str(caught.value)) < 300
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < chat.MAX_SECONDS + 2


MEASURED = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
from blockc.runtime import SessionError, chat
try:
    chat.render_chat(Path(sys.argv[1]), SimpleNamespace(special={}), [{"role": "user", "content": "hi"}])
except SessionError as error:
    print(error, file=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize("text", ["doubling a list", "join", "wrapping"])
def test_a_template_has_no_more_memory_than_its_bound(text: str, tmp_path: Path) -> None:
    """Asked of a process that has no other children, and is small itself: a child begins as a copy of its parent."""
    (tmp_path / "chat_template.jinja").write_text(HOSTILE[text])
    done = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert re.search(WHY, done.stderr), done.stderr
    assert 0 < int(done.stdout) <= chat.MAX_MEMORY >> 10  # KiB


def test_the_sandbox_alone_refuses_a_length_by_number() -> None:
    """Where the system does not limit memory: before any is taken."""
    for name in takewhile(lambda name: name != "doubling by ~", HOSTILE):
        with pytest.raises(Exception, match="would make a text, a list or a number beyond 1,000,000"):
            template.render_template(HOSTILE[name], {}, chat.MOST)


def test_large_numbers_that_are_no_lengths_are_let_through(tmp_path: Path) -> None:
    said = (
        "{{ 1700000000 % 7 }} {{ '%d' % 1700000000 }} {{ '%s'|format(1700000000) }} {{ 1700000000|tojson }} "
        "{{ 'call 5551234567: {}'.format(1700000000) }} {{ '-' * 20 }} {{ 1700000000 + 1 }} {{ [1] + [2] }} "
        "{{ 2 ** 8 }} {{ '%05.1f%%' % 99.5 }} {{ '1700000000 %'|center(20) }} {{ '{:>5}'.format(1) }}"
    )
    assert rendered(tmp_path, said, [USER]) == theirs(said, [USER])


def test_a_process_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 600)
    monkeypatch.setattr(chat, "MAX_WAIT", 0.5)
    started = time.monotonic()
    with pytest.raises(SessionError, match="takes more than"):
        rendered(tmp_path, HOSTILE["products of ranges"], [USER])
    assert time.monotonic() - started < 30


def test_the_process_reads_nothing_of_the_environment_and_little_else(tmp_path: Path) -> None:
    """No module of the folder that it runs in, none of blockc, none that takes long to import."""
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    code = (
        "import sys, runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__'); "
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'blockc', 'numpy', 'torch', 'onnx', 'pydantic'}))"
    )
    asked = '{"path": %s, "template": "{{ 1 }}", "given": {}, "most": 9, "memory": 536870912, "seconds": 2}'
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(template.__file__)],
        input=(asked % str(sys.path).replace("'", '"')).encode(), capture_output=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.decode() == '{"text": "1"}[]\n'


# Published shapes

# Each asks of a template what its family does, in other words: roles, strict turns, dates, loops that look back.
SHAPES = {
    "ChatML": """
{%- for m in messages %}{{ '<|im_start|>' ~ m.role + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "ChatML with a system turn of its own": """
{%- if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nHelp.<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>%s\\n%s<|im_end|>\\n' % (m.role, m.content) }}{% endfor %}
{%- if add_generation_prompt and messages[-1].role != 'assistant' %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "Llama 2": """
{%- if messages[0].role == 'system' %}{% set told, turns = messages[0].content, messages[1:] %}
{%- else %}{% set told, turns = false, messages %}{% endif %}
{%- for m in turns %}
    {%- if (loop.index0 % 2 == 1) == (m.role == 'user') %}{{ raise_exception('turns must alternate') }}{% endif %}
    {%- set said = '<<SYS>>\\n' + told + '\\n<</SYS>>\\n\\n' + m.content if loop.first and told else m.content %}
    {%- if m.role == 'user' %}{{ bos_token + '[INST] ' + said.strip() + ' [/INST]' }}
    {%- elif m.role == 'assistant' %}{{ ' ' ~ said.strip() ~ ' ' ~ eos_token }}{% endif %}
{%- endfor %}""",
    "Llama 3": """{{- bos_token }}
{%- set day = date_string if date_string is defined else strftime_now("%d %b %Y") %}
{%- macro head(role) %}{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{% endmacro %}
{{- head('system') }}
{%- if tools is not none %}{{ "Environment: ipython\\n" }}{% endif %}
{{- "Today Date: " + day + "\\n\\n" }}
{%- if messages[0]['role'] == 'system' %}
    {{- messages[0]['content']|trim }}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- for m in messages if not (m.role in ('ipython', 'tool') or 'tool_calls' in m) %}
    {{- head(m.role) + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- head('assistant') }}
{%- endif %}
""",
    "Mistral": """
{%- set told = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | first | default(none) %}
{%- set turns = messages | rejectattr('role', 'eq', 'system') | list %}
{%- set count = namespace(turns=0) %}
{%- for m in turns if m.role != 'tool' and not (m.tool_calls is defined and m.tool_calls) %}
    {%- if (m.role == 'user') != (count.turns is even) %}
        {{- raise_exception('after a user an assistant speaks, and a user after that') }}
    {%- endif %}
    {%- set count.turns = count.turns + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for m in turns %}
    {%- if m.role == "user" %}
        {{- "[INST] " + (told + "\\n\\n" if loop.last and told is string else "") + m["content"] + "[/INST]" }}
    {%- elif m.role == "assistant" %}
        {{- " " + m.content|trim + eos_token }}
    {%- else %}
        {{- raise_exception("only users and assistants speak") }}
    {%- endif %}
{%- endfor %}
""",
    "Gemma": """{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('no system turn is known') }}{% endif %}
{%- for m in messages %}
    {%- set name = {'assistant': 'model'}.get(m.role, m.role) %}
    {{- '<start_of_turn>' + name + '\\n' + m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "Qwen 3": """
{%- set seen = namespace(looking=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- if seen.looking and m.role == "user" and m.content is string and not m.content.startswith('<tool_response>') %}
        {%- set seen.looking, seen.last = false, (messages|length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set said, thought = m.content, '' %}
    {%- if m.role == "assistant" and '</think>' in said %}
        {%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if thought and loop.index0 > seen.last %}{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}
    {{- said + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}""",
    "generation tags": """{% for m in messages %}
{% if m.role == 'assistant' %}
{% generation %}
{% set seen = 1 %}
{{ m.content }}{{ eos_token }}
{% endgeneration %}
[{{ seen }}]
{% else %}
{{ m.role }}: {{ m.content }}
{% endif %}
{% if loop.index > 8 %}{% break %}{% endif %}
{% endfor %}""",
    "filters": """{% macro turn(m, last=false) %}{{ '%-10s|' | format(m.role) }}{{ m.content | indent(2) }}
{% if last %}!{% endif %}{% endmacro %}{% for m in messages %}{{ turn(m, loop.last) }}
{% endfor %}
{% for role, group in messages | groupby('role') %}{{ role | upper }}{{ group | length }}{% endfor %}
{{ messages | map(attribute='role') | join(', ') }}{{ messages | tojson(indent=2) }}{{ bos_token.center(9, '*') }}""",
}


@cache
def known() -> Any:
    return transformers_.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)


def theirs(text: str, messages: list[dict[str, str]]) -> str:
    return known().apply_chat_template(messages, chat_template=text, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_published_shape_is_rendered_as_transformers_does(shape: str, tmp_path: Path) -> None:
    """And where it refuses a conversation, for the same reason."""
    said = 0
    for messages in CONVERSATIONS:
        try:
            wanted = theirs(SHAPES[shape], messages)
        except Exception as error:
            with pytest.raises(SessionError, match=str(error)):
                rendered(tmp_path, SHAPES[shape], messages)
        else:
            said += 1
            assert rendered(tmp_path, SHAPES[shape], messages) == wanted
    assert said > 1


@pytest.mark.parametrize("data", [b"\xff\xfe{{ 1 }}", None])
def test_a_template_that_is_no_text_is_refused_by_its_path(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.mkdir() if data is None else path.write_bytes(data)
    with pytest.raises(SessionError, match=r"chat_template\.jinja: not a (text in UTF-8|regular file)"):
        chat.render_chat(tmp_path, SimpleNamespace(special=SPECIAL), [USER])  # type: ignore[arg-type]
