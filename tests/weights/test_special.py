"""Which token ends a text, from whichever file says it; and the files beside weights, which must be what they say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.cli import app, run_guarded
from blockc.products.genai import GenaiError
from blockc.runtime import Session, SessionError
from blockc.runtime.text import Tokenizer
from blockc.weights.special import complete_generation, special_ids
from tests.checkpoints import save, tensors, twin
from tests.runtime.test_run import characters

VOCAB = 96  # of the twin
END = {"eos_token": "</s>"}  # 95


def checkpoint(folder: Path, **files: Any) -> Path:
    """A twin's weights, a tokenizer, and what these files say."""
    save(folder / "model.safetensors", tensors(twin("llama3-8b")))
    characters().save(str(folder / "tokenizer.json"))
    for name, said in files.items():
        (folder / f"{name}.json").write_text(json.dumps(said))
    return folder


def built(source: Path, out: Path, runtime: Any = None) -> api.Built:
    return api.build(twin("llama3-8b"), out, proof=False, weights=source, products=[runtime] if runtime else [])


# What ends a text


ENDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "an integer of config.json": ({"config": {"eos_token_id": 7}}, (7,)),
    "a list of config.json": ({"config": {"eos_token_id": [7, 9], "vocab_size": VOCAB}}, (7, 9)),
    "within its text_config": ({"config": {"text_config": {"eos_token_id": 7}}}, (7,)),
    "generation_config.json first": ({"generation_config": {"eos_token_id": 5}, "config": {"eos_token_id": 7}}, (5,)),
    "one without it": ({"generation_config": {"top_k": 5, "eos_token_id": None}, "config": {"eos_token_id": 7}}, (7,)),
    "config.json before the tokenizer": ({"config": {"eos_token_id": 7}, "tokenizer_config": END}, (7,)),
    "the tokenizer": ({"config": {"eos_token_id": None}, "tokenizer_config": END}, (95,)),
    "its map": ({"tokenizer_config": {"eos_token": None}, "special_tokens_map": {"eos_token": {"content": "</s>"}}},
                (95,)),
    "none": ({"config": {"vocab_size": VOCAB}, "tokenizer_config": {"bos_token": "<s>"}}, ()),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_run_and_genai_stop_where_the_first_file_that_says_so_has_it(case: str, tmp_path: Path) -> None:
    files, ends = ENDS[case]
    source = checkpoint(tmp_path / "in", **files)
    written = built(source, tmp_path / "out").notes
    assert Tokenizer(tmp_path / "out", VOCAB).stop == ends
    if not ends:
        with pytest.raises(GenaiError, match="no file of the checkpoint says so"):
            built(source, tmp_path / "genai", "genai")
        return
    built(source, tmp_path / "genai", "genai")
    model = json.loads((tmp_path / "genai" / "genai_config.json").read_text())["model"]
    assert model["eos_token_id"] == (ends[0] if len(ends) == 1 else list(ends))
    assert any("added, from config.json" in note for note in written) == (ends == (7,) or ends == (7, 9))


def test_a_run_ends_where_config_json_alone_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(checkpoint(tmp_path / "in"), tmp_path / "plain")
    tokenizer = Tokenizer(tmp_path / "plain")
    steps = Session(tmp_path / "plain").generate([tokenizer.encode("Gravity is")], 9)
    whole = [token for (token,) in steps if token is not None]
    at = next(i for i in range(2, 9) if whole[i] not in whole[:i])
    checkpoint(tmp_path / "in", config={"eos_token_id": [whole[at]], "bos_token_id": 94, "pad_token_id": 94})
    notes = built(tmp_path / "in", tmp_path / "out").notes
    wanted = f"bos_token_id 94, eos_token_id [{whole[at]}], pad_token_id 94 added, from config.json"
    assert f"generation_config.json: {wanted}" in notes
    capsys.readouterr()
    arguments = ["run", str(tmp_path / "out"), "--prompt", "Gravity is", "--tokens", "9"]
    assert run_guarded(lambda: app(arguments, standalone_mode=False)) == 0
    assert capsys.readouterr().out == tokenizer.decode(whole[:at]) + "\n"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"config": {"eos_token_id": -1}}, r"in/config\.json: eos_token_id is -1, and a token is a number from 0 up"),
        ({"config": {"eos_token_id": [7, 96], "vocab_size": 96}}, r"config\.json: eos_token_id is 96, .* 0 to 95"),
        ({"config": {"eos_token_id": True}}, r"config\.json: eos_token_id is true"),
        ({"config": {"eos_token_id": "</s>"}}, r'config\.json: eos_token_id is "</s>"'),
        ({"generation_config": {"eos_token_id": -1}}, r"in/generation_config\.json: eos_token_id is -1"),
        ({"generation_config": {"eos_token_id": [96]}, "config": {"vocab_size": 96}}, "eos_token_id is 96"),
    ],
)  # fmt: skip
def test_an_end_that_is_no_token_is_refused_by_the_file_that_says_it(
    files: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=why):
        built(checkpoint(tmp_path / "in", **files), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_end_beyond_the_models_vocabulary_is_refused_where_it_is_read(tmp_path: Path) -> None:
    """A config.json need not say how many tokens there are; the model does."""
    source = checkpoint(tmp_path / "in", config={"eos_token_id": VOCAB})
    built(source, tmp_path / "out")
    with pytest.raises(SessionError, match=r"out/generation_config\.json: eos_token_id is 96, .* tokens are 0 to 95"):
        Tokenizer(tmp_path / "out", VOCAB)
    with pytest.raises(GenaiError, match=r"generation_config\.json: eos_token_id is 96, .* tokens are 0 to 95"):
        built(source, tmp_path / "genai", "genai")
    for number in (-1, 2**70):
        (tmp_path / "out" / "generation_config.json").write_text(json.dumps({"eos_token_id": number}))
        with pytest.raises(SessionError, match=f"eos_token_id is {number}"):
            Tokenizer(tmp_path / "out", VOCAB)


def test_an_end_that_the_tokenizer_does_not_have_is_refused(tmp_path: Path) -> None:
    built(checkpoint(tmp_path / "in", tokenizer_config={"eos_token": "<eos>"}), tmp_path / "out")
    with pytest.raises(
        SessionError, match=r'out/tokenizer_config\.json: eos_token is "<eos>", and tokenizer\.json has'
    ):
        Tokenizer(tmp_path / "out", VOCAB)


def test_a_pad_that_is_none_is_left_out_and_told() -> None:
    """As the first Llamas say it. What generation_config.json says stays."""
    config_ = {"pad_token_id": -1, "bos_token_id": 40_000, "eos_token_id": 2, "vocab_size": 32_000}
    made, told = complete_generation({"temperature": 0.6, "eos_token_id": 3}, config_)
    assert made is None
    made, told = complete_generation({"temperature": 0.6}, config_)
    assert made == {"temperature": 0.6, "eos_token_id": 2}
    assert told == (
        "generation_config.json: eos_token_id 2 added, from config.json",
        "config.json: bos_token_id is 40000, which is no token of the model: left out",
        "config.json: pad_token_id is -1, which is no token of the model: left out",
    )


def test_a_vocabulary_of_scores_numbers_its_tokens_for_genai(tmp_path: Path) -> None:
    """Unigram's is a list of pairs."""
    source = checkpoint(tmp_path / "in", tokenizer_config=END)
    vocab = [["<unk>", 0.0], ["a", -1.5], ["</s>", 0.0]]
    (source / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": vocab}}))
    built(source, tmp_path / "out", "genai")
    assert json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]["eos_token_id"] == 2


def test_no_file_says_nothing() -> None:
    assert special_ids("eos", {}, lambda token: None) == ()


# What lies beside the weights

SECRET = "root:x:0:0"


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("tokenizer.json", lambda p, outside: p.symlink_to(outside), "a link that leaves the checkpoint, to .*outside"),
        ("chat_template.jinja", lambda p, outside: p.symlink_to(outside), "a link that leaves the checkpoint"),
        ("tokenizer_config.json", lambda p, outside: p.symlink_to("nothing"), "a link to .*nothing, which is not"),
        ("tokenizer_config.json", lambda p, outside: p.symlink_to("model.safetensors"), "not JSON"),
        ("tokenizer.json", lambda p, outside: p.write_text(SECRET), "not JSON"),
        ("special_tokens_map.json", lambda p, outside: p.write_text("[]"), "not a JSON object"),
        ("generation_config.json", lambda p, outside: p.write_text('{"top_p": NaN}'), "NaN"),
        ("chat_template.jinja", lambda p, outside: p.write_bytes(b"\xff\xfe"), "not a text in UTF-8"),
        ("tokenizer.json", lambda p, outside: p.mkdir(), "not a regular file"),
        ("tokenizer.json", lambda p, outside: os.mkfifo(p), "not a regular file"),
        ("config.json", lambda p, outside: os.mkfifo(p), "not a regular file"),
        ("config.json", lambda p, outside: p.symlink_to("/dev/zero"), "not a regular file"),
        ("config.json", lambda p, outside: p.write_text(SECRET), "not JSON"),
    ],
)  # fmt: skip
def test_a_file_beside_weights_that_is_not_what_it_is_named_is_refused(
    name: str, make: Any, why: str, tmp_path: Path
) -> None:
    source = checkpoint(tmp_path / "in")
    (tmp_path / "outside").write_text(SECRET)
    (source / name).unlink(missing_ok=True)
    make(source / name, tmp_path / "outside")
    with pytest.raises(CheckpointError, match=f"in/{name}: .*{why}"):
        built(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", [True, False])
def test_a_cache_of_links_to_blobs_is_read(inside: bool, tmp_path: Path) -> None:
    """As the Hub's has them, in a snapshot of it or in a folder that was made from it; and links of a folder's own."""
    source = checkpoint(tmp_path / "models--a" / "snapshots" / "1" if inside else tmp_path / "local")
    blobs = tmp_path / "models--a" / "blobs"
    blobs.mkdir(parents=True)
    (source / "tokenizer.json").rename(blobs / "0a1b")
    (source / "tokenizer.json").symlink_to("../../blobs/0a1b" if inside else blobs / "0a1b")
    (source / "named.json").write_text(json.dumps(END))
    (source / "tokenizer_config.json").symlink_to("named.json")
    built(source, tmp_path / "out")
    assert Tokenizer(tmp_path / "out").stop == (95,)
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink()
    (blobs / "0a1b").write_text(SECRET)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not JSON"):
        built(source, tmp_path / "out")
