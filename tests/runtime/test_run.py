"""blockc run on a twin with a tokenizer of its own, streams of text, and chat templates beside transformers."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from blockc import api
from blockc.cli import app, run_guarded
from blockc.runtime import Session, SessionError, chat
from blockc.runtime.stream import TextStream
from blockc.runtime.text import Tokenizer
from tests.checkpoints import ROOT, save, tensors, twin

transformers_: Any = transformers
PROMPT, SECOND = "Gravity is", "A b"
TEMPLATE = (
    "{% for message in messages %}\n"
    "    {%- if loop.first and message.role != 'system' %}{{ bos_token }}{% endif %}\n"
    "    {{- '[' + message['role'] + '] ' + message['content'] | trim + eos_token }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def characters() -> Any:
    """Of 96 tokens: <s>, </s> and the bytes from space on, one each; ~ is left out."""
    made: Any = tokenizers.Tokenizer(
        models.BPE(vocab={"Ġ" if i == 32 else chr(i): i - 30 for i in range(32, 126)}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    return made


def bytewise() -> Any:
    """Byte-level, as GPT-2 and Llama 3 are: every byte a token, and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("ð", "Ł"), ("Ã", "©")]
    words = [*alphabet, *("".join(pair) for pair in merges)]
    made: Any = tokenizers.Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    return made


def pieces() -> Any:
    """As sentencepiece has it: words that begin with a mark for the space, and bytes for what has no piece."""
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *"▁thecatsono.", "▁t", "▁th", "▁the", "▁c", "▁ca", "▁cat"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "c"), ("▁c", "a"), ("▁ca", "t")]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    made: Any = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<s>", "</s>"])
    return made


def known(folder: Path, made: Any, **files: Any) -> Tokenizer:
    made.save(str(folder / "tokenizer.json"))
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return Tokenizer(folder)


# Text


@pytest.mark.parametrize("make", [bytewise, pieces])
def test_a_stream_gives_whole_characters_and_in_the_end_the_whole_text(make: Any, tmp_path: Path) -> None:
    tokenizer = known(tmp_path, make())
    text = "the cat sat: é, 語, 👩‍🚀 the  cat"
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer)
    parts = [stream.push(token) for token in ids]
    assert "".join(parts) == text == tokenizer.decode(ids)
    assert "" in parts and "👩" in parts and not any("�" in part for part in parts)
    assert stream.rest() == ""


@pytest.mark.parametrize("make", [bytewise, pieces])
def test_what_follows_a_prompt_is_what_the_whole_has_behind_it(make: Any, tmp_path: Path) -> None:
    """A space at its head included, and special tokens in it left out."""
    tokenizer = known(tmp_path, make())
    prompt, ids = tokenizer.encode("the cat"), tokenizer.encode("the cat the cat")
    stream = TextStream(tokenizer, prompt)
    end = tokenizer.known.token_to_id("</s>")
    assert "".join(stream.push(token) for token in [end, *ids[len(prompt) :], end]) == " the cat"


@pytest.mark.parametrize("make", [bytewise, pieces])
def test_a_stream_of_any_text_is_that_text(make: Any, tmp_path: Path) -> None:
    tokenizer = known(tmp_path, make())
    draw = np.random.default_rng(0)
    for _ in range(100):
        ids = tokenizer.encode("".join(draw.choice(list("the cat. éßж語🙂👩\u200d\n"), 12)))
        stream = TextStream(tokenizer)
        assert "".join(stream.push(token) for token in ids) == tokenizer.decode(ids)


def test_a_stream_of_any_bytes_is_their_text(tmp_path: Path) -> None:
    """Also where they are no UTF-8 and a mark stands for them; other decoders then mark whole runs."""
    tokenizer = known(tmp_path, bytewise())
    draw = np.random.default_rng(0)
    for _ in range(200):
        ids = draw.integers(0, tokenizer.known.get_vocab_size(), 12).tolist()
        stream = TextStream(tokenizer)
        assert "".join(stream.push(token) for token in ids) + stream.rest() == tokenizer.decode(ids)


def test_a_character_that_never_becomes_whole_comes_at_the_end(tmp_path: Path) -> None:
    tokenizer = known(tmp_path, bytewise())
    stream = TextStream(tokenizer)
    half = tokenizer.encode("語")[:2]
    assert [stream.push(token) for token in half] == ["", ""]
    assert stream.rest() == "�" and stream.rest() == ""


def test_what_ends_a_text(tmp_path: Path) -> None:
    config, special = "generation_config", {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}
    assert known(tmp_path, characters()).stop == ()
    assert known(tmp_path, characters(), tokenizer_config=special).stop == (95,)
    assert known(tmp_path, characters(), **{config: {"eos_token_id": 7}}).stop == (7,)
    both = known(tmp_path, characters(), **{config: {"eos_token_id": [7, 9]}})
    assert both.stop == (7, 9) and both.special == {"bos_token": "<s>", "eos_token": "</s>"}
    with pytest.raises(SessionError, match=r"n_config\.json: eos_token_id is \"7\", and a token is a number from 0 up"):
        known(tmp_path, characters(), **{config: {"eos_token_id": ["7"]}})
    with pytest.raises(SessionError, match=r"generation_config\.json: not a JSON object"):
        known(tmp_path, characters(), **{config: []})


def test_special_tokens_by_number_are_named_by_the_tokenizer(tmp_path: Path) -> None:
    made = known(tmp_path, characters(), generation_config={"bos_token_id": 94, "eos_token_id": 95})
    assert made.special == {"bos_token": "<s>", "eos_token": "</s>"}


# Chat


TEMPLATES = {
    "turns": TEMPLATE,
    "namespace and break": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% if ns.n == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}{{ ns.n }}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "year": "{{ strftime_now('%Y') }}{% if tools is none and documents is none %} no tools{% endif %}",
    "generation": "{% for m in messages %}\n  {% generation %}\n{{ m.content }}{% endgeneration %}\n  {% endfor %}",
    "undefined": "[{{ nothing }}{% if nothing is defined %}x{% endif %}{{ unk_token }}]",
}
MESSAGES = [{"role": "system", "content": " Be <brief> & é. "}, {"role": "user", "content": "Who?\n"}]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_is_rendered_as_transformers_does(template: str, tmp_path: Path) -> None:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = known(tmp_path, characters(), tokenizer_config=special)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES[template])
    theirs = transformers_.PreTrainedTokenizerFast(tokenizer_object=characters(), **special)
    for messages in (MESSAGES, MESSAGES[1:]):
        wanted = theirs.apply_chat_template(
            messages, chat_template=TEMPLATES[template], tokenize=False, add_generation_prompt=True
        )
        assert chat.render_chat(tmp_path, tokenizer, messages) == wanted


def test_a_template_may_stand_in_the_tokenizers_config(tmp_path: Path) -> None:
    tokenizer = known(tmp_path, characters(), tokenizer_config={"chat_template": "one {{ messages[0].content }}"})
    assert chat.render_chat(tmp_path, tokenizer, MESSAGES[1:]) == "one Who?\n"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "two"}]
    known(tmp_path, characters(), tokenizer_config={"chat_template": named})
    assert chat.render_chat(tmp_path, tokenizer, MESSAGES) == "two"
    known(tmp_path, characters(), tokenizer_config={})
    with pytest.raises(SessionError, match=r"no chat template, neither chat_template\.jinja nor in tokenizer_config"):
        chat.render_chat(tmp_path, tokenizer, MESSAGES)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.getcwd() }}", "unsafe"),
        ("{% include 'chat_template.jinja' %}", "no loader"),
        ("{% for i in range(100001) %}{% endfor %}", "Range too big"),
        ("{% for i in range(90000) %}{{ 'twenty characters' }}{% endfor %}", "more than 1,000,000 characters"),
        ("{% if %}", "Expected an expression"),
        ("{{ none + 1 }}", "unsupported operand"),
        ("x" * 1_000_001, "has 1,000,001 characters"),
    ],
)
def test_a_template_can_do_no_harm_and_says_what_is_wrong(template: str, why: str, tmp_path: Path) -> None:
    tokenizer = known(tmp_path, characters())
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(SessionError, match=why):
        chat.render_chat(tmp_path, tokenizer, MESSAGES)


# The command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    save(root / "in" / "model.safetensors", tensors(twin("llama3-8b")))
    characters().save(str(root / "in" / "tokenizer.json"))
    (root / "in" / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (root / "in" / "chat_template.jinja").write_text(TEMPLATE)
    api.build(twin("llama3-8b"), root / "out", proof=False, weights=root / "in")
    return root / "out"


def run(*arguments: str | Path) -> int:
    return run_guarded(lambda: app(["run", *map(str, arguments)], standalone_mode=False))


def wanted(folder: Path, prompt: str, tokens: int, special: bool = True) -> str:
    session, tokenizer = Session(folder), Tokenizer(folder)
    steps = session.generate([tokenizer.encode(prompt, special)], tokens, tokenizer.stop)
    return tokenizer.decode([token for (token,) in steps if token is not None])


def test_run_prints_the_text_and_then_the_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--prompt", PROMPT, "--tokens", "9", "--threads", "1") == 0
    out, err = capsys.readouterr()
    assert out == wanted(folder, PROMPT, 9) + "\n"
    assert len(set(out)) > 3
    first, then = err.split(", first token after ")
    assert first == "10 prompt tokens"
    assert then.split(" s, then ")[1].startswith("8 at ") and then.endswith(" tokens per second\n")


def test_run_takes_several_prompts_as_one_batch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--prompt", PROMPT, "--prompt", SECOND, "--tokens", "6") == 0
    out, err = capsys.readouterr()
    assert out == f"--- {PROMPT}\n{wanted(folder, PROMPT, 6)}\n--- {SECOND}\n{wanted(folder, SECOND, 6)}\n"
    assert err.startswith("13 prompt tokens of 2 prompts")


def test_run_reads_a_prompt_from_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
    assert run(folder, "--prompt", "-", "--tokens", "5") == 0
    assert capsys.readouterr().out == wanted(folder, PROMPT, 5) + "\n"


def test_run_speaks_to_an_assistant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--chat", "--system", "Hm", "--prompt", PROMPT, "--tokens", "5") == 0
    told = f"[system] Hm</s>\n[user] {PROMPT}</s>\n[assistant]"
    assert capsys.readouterr().out == wanted(folder, told, 5, special=False) + "\n"


def test_run_draws_the_same_text_for_the_same_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts: list[str] = []
    for seed in ("1", "1", "2"):
        arguments = ("--temperature", "1.2", "--top-k", "50", "--top-p", "0.95", "--seed", seed)
        assert run(folder, "--prompt", PROMPT, "--tokens", "9", *arguments) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_run_goes_on_from_the_highest_logits_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few"
    built = ("build", str(folder.parent / "out" / "spec.resolved.yaml"), "--weights", str(folder.parent / "in"))
    assert (
        run_guarded(lambda: app([*built, "--logits", "5", "--out", str(few), "--no-verify"], standalone_mode=False))
        == 0
    )
    drawing = ("--temperature", "1.2", "--seed", "1")
    for arguments in ((), (*drawing, "--top-k", "5")):
        texts: list[str] = []
        capsys.readouterr()
        for where in (folder, few):
            assert run(where, "--prompt", PROMPT, "--tokens", "9", *arguments) == 0
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1]
    for arguments in (drawing, (*drawing, "--top-k", "6")):
        assert run(few, "--prompt", PROMPT, "--tokens", "9", *arguments) == 1
        assert "it gives the 5 highest logits of a token, and " in capsys.readouterr().err


def test_run_ends_with_what_ends_a_text_and_says_when_nothing_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, whole = folder / "generation_config.json", wanted(folder, PROMPT, 9)
    end = next(i for i in range(2, 9) if whole[i] not in whole[:i])
    try:
        said.write_text(json.dumps({"eos_token_id": ord(whole[end]) - 30}))
        assert run(folder, "--prompt", PROMPT, "--tokens", "9") == 0
        assert capsys.readouterr().out == whole[:end] + "\n"
        said.write_text(json.dumps({"eos_token_id": []}))
        assert run(folder, "--prompt", PROMPT, "--tokens", "9") == 0
        out, err = capsys.readouterr()
        assert out == whole + "\n"
        assert err.startswith("blockc: no file says which token ends a text, so 9 tokens are written\n")
    finally:
        said.unlink()


def test_what_would_move_a_cursor_does_not_reach_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, path = wanted(folder, PROMPT, 9), folder / "tokenizer.json"
    held = path.read_text()
    made = json.loads(held)
    letter = next(c for c in whole if c not in PROMPT)
    made["model"]["vocab"][chr(256 + 27)] = made["model"]["vocab"].pop(letter)  # as byte-level names ESC
    try:
        path.write_text(json.dumps(made))
        assert "\x1b" in wanted(folder, PROMPT, 9)
        assert run(folder, "--prompt", PROMPT, "--tokens", "9") == 0
        assert capsys.readouterr().out == whole.replace(letter, "") + "\n"
    finally:
        path.write_text(held)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--prompt", "a", "--ep", "cuda"], 3, "onnxruntime-gpu[cuda,cudnn]"),
        (["--prompt", "a", "--cuda-graph"], 2, "--cuda-graph needs --ep cuda"),
        (["--prompt", "a", "--ep", "cuda", "--cuda-graph"], 1, "a CUDA graph needs --ep cuda, both for the build"),
        (["--prompt", "abc", "--tokens", "126"], 1, "a prompt of 3 tokens and --tokens 126 make 129, and the model's "
         "context is 128"),
        (["--prompt", ""], 2, "--prompt is empty"),
        (["--prompt", "-", "--prompt", "-"], 2, "can be given once"),
        (["--prompt", "a", "--system", "x"], 2, "give --chat too"),
        (["--prompt", "a", "--top-k", "5"], 2, "--top-k is for drawing: the temperature must be above 0 too"),
        (["--prompt", "a", "--temperature", "1", "--top-p", "2"], 2, "--top-p 2.0: expected a number above 0, up to 1"),
        (["--prompt", "a", "--tokens", "0"], 2, "--tokens"),
        ([], 2, "--prompt"),
    ],
)  # fmt: skip
def test_run_says_what_it_cannot_do(
    arguments: list[str], code: int, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *arguments) == code
    out, err = capsys.readouterr()
    assert said in err and out == ""


def test_run_without_weights_a_tokenizer_or_a_package(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.build(twin("llama3-8b"), tmp_path / "bare", proof=False)
    assert run(tmp_path / "bare", "--prompt", "a") == 1
    assert "bare has no weights: build it with `blockc build " in capsys.readouterr().err
    assert run(tmp_path / "nothing", "--prompt", "a") == 2
    assert "no such file or folder" in capsys.readouterr().err
    tokenizer = folder / "tokenizer.json"
    held = tokenizer.read_bytes()
    try:
        tokenizer.unlink()
        assert run(folder, "--prompt", "a") == 1
        assert "no tokenizer.json, so no text" in capsys.readouterr().err
    finally:
        tokenizer.write_bytes(held)
    for package in ("tokenizers", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            assert run(folder, "--prompt", "a") == 3
        said = capsys.readouterr().err
        assert f"the package {package} is missing: `pip install '.[run]'` in a clone of blockc" in said


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_k": 5, "seed": 3}, {"chat": True}])
def test_the_api_writes_what_the_command_prints(
    options: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--{key.replace('_', '-')}{'' if value is True else f'={value}'}" for key, value in options.items()]
    said = [run_guarded(lambda text=text: app(["run", str(folder), "--prompt", text, "--tokens", "9", *words],
                                          standalone_mode=False)) for text in (PROMPT, SECOND)]  # fmt: skip
    assert said == [0, 0]
    (first, *_), second = capsys.readouterr().out.split("\n"), api.run(folder, [SECOND], tokens=9, **options)
    assert api.run(folder, [PROMPT], tokens=9, **options) == [first]
    assert len(second) == 1 and second[0]


def test_an_interrupt_ends_a_run_at_once(folder: Path) -> None:
    """What came until then has been printed. Each step is made to take long enough to be met."""
    script = (
        "import sys, time; from blockc.cli import main; from blockc.runtime import session; "
        "old = session.Session.decode; session.Session.decode = lambda *a: time.sleep(1) or old(*a); "
        f"sys.argv = ['blockc', 'run', {str(folder)!r}, '--prompt', {PROMPT!r}, '--tokens', '100']; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as one:
        assert one.stdout is not None
        first = one.stdout.read(1)
        one.send_signal(signal.SIGINT)
        rest, said = one.communicate(timeout=30)
        assert one.returncode == 130
        text = (first + rest).decode().rstrip("\n")
        assert text and wanted(folder, PROMPT, 20).startswith(text)
        assert b"Traceback" not in said
