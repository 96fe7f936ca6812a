"""Agreement among our own backends is not truth: here other libraries say what each spec's model computes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockc.ir import Array
from blockc.language.spec import resolve_spec
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof.cases import Case
from blockc.proof.comparison import TOLERANCE
from blockc.proof.runners import Onnx, Oracle, Runner, Torch
from tests.reference.models import OUTSIDE, SPECS, Outside, spec_of, twin

torch.set_num_threads(1)  # the twins are too small to share out
LONG, SHORT = 16, 7
CACHED = [name for name, outside in OUTSIDE.items() if outside.kind == Outside.kind]
TRANSFORMERS = [name for name in CACHED if OUTSIDE[name].library == "transformers"]
BACKENDS: dict[str, Callable[[Compiled, Path], Runner]] = {
    "oracle": lambda model, folder: Oracle(model.served),
    "torch": lambda model, folder: Torch(_written(model, folder), model.served),
    "onnxruntime": lambda model, folder: Onnx(model.onnx(), model.served),
}


def _written(model: Compiled, folder: Path) -> Path:
    (folder / "model.py").write_text(model.model_py(), encoding="utf-8")
    return folder / "model.py"


def _cases(vocab: int) -> list[Case]:
    random = np.random.RandomState(11)
    a, b, short = random.randint(0, vocab, LONG), random.randint(0, vocab, LONG), random.randint(0, vocab, SHORT)
    left, right = (0, LONG - SHORT), (0, 0)
    return [
        Case("uncached", (a, b), right, (LONG,)),
        Case("chunked", (a, b), right, (1, 6, 2, 7)),
        Case("decoded", (a, b), right, (11, 1, 1, 1, 1, 1)),
        Case("padded left", (a, short), left, (LONG,)),
        Case("padded right", (a, short), right, (LONG,)),
        Case("padded left, chunked", (a, short), left, (5, 6, 1, 1, 3)),
    ]


@cache
def _twin(name: str) -> Compiled:
    return twin(name)


@cache
def _truth(name: str) -> dict[bytes, dict[str, Array]]:
    """The outside outputs of every sequence, each alone."""
    outputs = OUTSIDE[name].outputs(_twin(name))
    rows = {row.tobytes(): row for case in _cases(_twin(name).spec.top.vocab) for row in case.rows}
    return {key: {name: array[0] for name, array in outputs(row[None]).items()} for key, row in rows.items()}


def _error(case: Case, truth: list[Array], logits: Array, least: float = 0.5) -> float:
    """The largest difference on a real token, or on a text, of the standard deviation, which is `least` or more."""
    by_token = logits.ndim == 3
    assert logits.shape == (len(case.rows), *([case.length] if by_token else []), truth[0].shape[-1])
    spread = np.concatenate(truth).std()
    assert spread > least  # weights under which something happens
    rows = case.real_rows(logits) if by_token else list(logits)
    return max(float(np.abs(w - g).max()) for w, g in zip(truth, rows, strict=True)) / float(spread)


def _error_of(name: str, case: Case, outputs: dict[str, Array]) -> float:
    """The same of all outputs."""
    truth = [_truth(name)[row.tobytes()] for row in case.rows]
    assert outputs.keys() == truth[0].keys()
    least = 0.5 if name in CACHED else 0.02  # a number of a text hardly moves
    return max(_error(case, [row[key] for row in truth], array, least) for key, array in outputs.items())


def test_every_spec_has_an_outside() -> None:
    assert OUTSIDE.keys() == {path.stem for path in SPECS.glob("*.yaml")}


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_parameter_is_neutral(name: str) -> None:
    for path, array in OUTSIDE[name].params(_twin(name)).items():
        assert not np.isin(array, (0, 1)).any(), path
        assert len(np.unique(array)) > 0.99 * array.size, path
        if array.size == 1:  # a number of an activation, which has no spread
            continue
        assert array.std() > 0.4 * min(0.3, array.shape[-1] ** -0.5), path


def test_gemma2_bends_and_hides() -> None:
    keys = resolve_spec(_twin("gemma2-9b").spec)
    assert keys["attention"]["window"] < SHORT and keys["attention"]["softcap"] and keys["head"]["softcap"]


@pytest.mark.backend("reference")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OUTSIDE)
def test_the_outside_outputs_come_out(name: str, backend: str, tmp_path: Path) -> None:
    """Uncached, cached and padded: always the outputs that the other library gives for each sequence alone."""
    runner = BACKENDS[backend](_twin(name), tmp_path)
    tolerance = OUTSIDE[name].closeness if backend == "oracle" else TOLERANCE["float32"]
    params = OUTSIDE[name].params(_twin(name))
    errors: dict[str, float] = {}
    for case in _cases(_twin(name).spec.top.vocab):
        if len(case.chunks) == 1 or runner.contract.held:
            errors[case.name] = _error_of(name, case, runner.run(case, params).outputs)
    assert max(errors.values()) < tolerance, errors


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_fed_as_we_are(name: str) -> None:
    """Its own cache and its own padding, by the same mask and the same positions: the inputs mean the same."""
    model, params = OUTSIDE[name].model(_twin(name), torch.float32), OUTSIDE[name].params(_twin(name))
    for case in _cases(_twin(name).spec.top.vocab):
        ids, mask, positions = map(torch.from_numpy, (case.input_ids, case.attention_mask, case.position_ids))
        past, parts, start = None, list[Array](), 0
        for end in np.cumsum(case.chunks).tolist():
            new = slice(start, end)
            with torch.no_grad():
                output = model(
                    input_ids=ids[:, new], attention_mask=mask[:, :end], position_ids=positions[:, new],
                    cache=past, use_cache=True,
                )  # fmt: skip
            past, start = output.cache, end
            parts.append(output.logits.numpy())
        ours = case.real_rows(Oracle(_twin(name).served).run(case, params).logits)
        assert _error(case, ours, np.concatenate(parts, axis=1)) < TOLERANCE["float32"], case.name


# Knobs that no spec's own twin turns

LLAMA3 = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original": 32}
YARN = {"type": "yarn", "factor": 4.0, "original": 32, "beta_fast": 8, "beta_slow": 1, "truncate": True}
LONGROPE = {
    "type": "longrope",
    "short": [1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 8.0, 9.0],
    "choose": "short",
    "attention_factor": 1.1,
}
VARIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "scale apart from head_dim": ("gemma2-9b", {"attention": {"scale": 144**-0.5}}, LONG),
    "geglu (erf)": ("gemma2-9b", {"mlp": {"type": "geglu"}}, LONG),
    "one kv head": ("llama3-8b", {"attention": {"kv_heads": 1}}, LONG),
    "a kv head a head": ("llama3-8b", {"attention": {"kv_heads": 8}}, LONG),
    "narrow heads": ("llama3-8b", {"attention": {"head_dim": 8, "scale": 8**-0.5}}, LONG),
    "wide heads": ("llama3-8b", {"attention": {"head_dim": 24, "scale": 24**-0.5}}, LONG),
    "tied": ("llama3-8b", {"head": {"tied": True}}, LONG),
    "scaled rope beyond its context": ("llama3-8b", {"attention": {"rope": {"scaling": LLAMA3}}}, 100),
    "llama3's scaling elsewhere": ("qwen2.5-0.5b", {"attention": {"rope": {"scaling": LLAMA3}}}, 100),
    "squeezed positions": ("llama3-8b", {"attention": {"rope": {"scaling": {"type": "linear", "factor": 4.0}}}}, 100),
    "yarn": ("qwen3-0.6b", {"attention": {"rope": {"scaling": YARN}}}, 100),
    "a factor for each pair": ("llama3-8b", {"attention": {"rope": {"scaling": LONGROPE}}}, 100),
    "some pairs of a head": ("llama3-8b", {"attention": {"rope": {"pairs": 3}}}, 100),
    "some pairs of a normed head": ("qwen3-0.6b", {"attention": {"rope": {"pairs": 3}}}, 100),
    "the list of longer contexts": ("phi-4-mini", {}, 29),
    "rope far out": ("llama3.1-405b", {}, 100),
    "partial rope far out": ("pythia-410m", {"attention": {"rope": {"dims": 32}}}, 100),
    "neighbours of a whole head": ("gpt-j-6b", {"attention": {"rope": {"dims": 64}}}, LONG),
    "neighbours far out": ("gpt-j-6b", {}, 100),
    "a tied head with a bias": ("phi-2", {"head": {"tied": True}}, LONG),
    "grouped heads beside an MLP": ("phi-2", {"attention": {"kv_heads": 2}}, LONG),
    "norms of unlike projections": ("olmo2-7b", {"attention": {"kv_heads": 2}}, LONG),
    "norms of wide heads": ("qwen3-0.6b", {"attention": {"head_dim": 24, "scale": 24**-0.5}}, LONG),
    "norms of heads far out": ("qwen3-0.6b", {}, 100),
    "a window and narrow heads": ("mistral-7b", {"attention": {"head_dim": 8, "scale": 8**-0.5, "window": 3}}, LONG),
    "a squared activation": ("gpt2", {"mlp": {"type": "relu2"}}, LONG),
    "a fast sigmoid for gelu": ("gpt2", {"mlp": {"type": "quick_gelu"}}, LONG),
    "a fast sigmoid for gelu beside attention": ("codegen-350m", {"mlp": {"type": "quick_gelu"}}, LONG),
    "a plain silu": ("gpt2", {"mlp": {"type": "silu"}}, LONG),
    "reglu": ("llama3-8b", {"mlp": {"type": "reglu"}}, LONG),
    "a squared activation beside attention": ("phi-2", {"mlp": {"type": "relu2"}}, LONG),
    "a plain silu beside attention": ("phi-2", {"mlp": {"type": "silu"}}, LONG),
    "reglu2": ("llama3-8b", {"mlp": {"type": "reglu2"}}, LONG),
    "reglu behind normed heads": ("qwen3-0.6b", {"mlp": {"type": "reglu"}}, LONG),
    "a squared gate": ("llama3-8b", {"mlp": {"type": "reglu2"}}, LONG),
    "a squared gate and neighbours turned": ("helium1-preview-2b", {"mlp": {"type": "reglu2"}}, LONG),
    "geglu (erf) without a cap": ("llama3-8b", {"mlp": {"type": "geglu"}}, LONG),
    "long sinusoids": ("transformer2017", {}, 100),
    "stacked projections of grouped heads": ("phi3-mini-4k", {"attention": {"kv_heads": 2}}, LONG),
    "groups packed for many heads": ("falcon-40b", {"attention": {"kv_heads": 4}}, LONG),
    "packed head by head": ("santacoder", {"attention": {"kv_heads": 4}}, LONG),
    "packed two heads by two": (
        "codegen-350m",
        {"attention": {"heads": 8, "kv_heads": 8, "head_dim": 16, "scale": 0.25}},
        LONG,
    ),
    "biases on every matrix": (
        "seed-oss-36b",
        {"attention": {"bias": ["q", "k", "v", "o"]}, "mlp": {"bias": ["gate", "up", "down"]}},
        LONG,
    ),
    "norms of 1 + weight around whole heads": ("minitron-4b", {"attention": {"rope": {"dims": 32}}}, LONG),
}


def changed(name: str, change: dict[str, Any]) -> Compiled:
    return compile_spec(spec_of(_merged(resolve_spec(_twin(name).spec), change)))


def _merged(keys: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    keys = deepcopy(keys)
    for key, value in change.items():
        keys[key] = _merged(keys.get(key, {}), value) if isinstance(value, dict) else value
    return keys


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_outside_logits_of_variants(variant: str, tmp_path: Path) -> None:
    name, change, length = VARIANTS[variant]
    outside, model = OUTSIDE[name], changed(name, change)
    tokens = np.random.RandomState(12).randint(0, model.spec.top.vocab, (2, length))
    whole = Case("uncached", tuple(tokens), (0, 0), (length,))
    cached = Case("chunked", tuple(tokens), (0, 0), (length - 9, 7, 1, 1))
    truth = list(outside.logits(model)(tokens))
    for backend, make in BACKENDS.items():
        runner = make(model, tmp_path)
        tolerance = _far(outside, length) if backend == "oracle" else TOLERANCE["float32"]
        for case in (whole, cached):
            error = _error(case, truth, runner.run(case, outside.params(model)).logits)
            assert error < tolerance, (backend, case.name)


def _far(outside: Outside, length: int) -> float:
    """transformers takes its angles in float32, whose error grows with the position."""
    return outside.closeness * (4 if length > LONG and outside.library == "transformers" else 1)


def _kind(name: str, rope: dict[str, Any]) -> dict[str, Any]:
    """A change of the rope of one kind of layer."""
    return {"layers": {"kinds": {name: {"attention": {"rope": rope}}}}}


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("bert-base", {"attention": {"causal": True}}),
    ("bert-base", {"mlp": {"type": "gelu_tanh"}}),
    ("bert-base", {"norm": {"eps": 1e-5}}),
    ("bert-base", {"embedding": {"norm": {"eps": 1e-5}}}),
    ("bert-base", {"pool": {"type": "last"}}),
    ("bert-base", {"pool": {"dense": {"act": "gelu"}}}),
    ("distilbert-base", {"head": {"transform": {"act": "gelu_tanh"}}}),
    ("electra-base", {"head": {"transform": {"act": "none"}}}),
    ("embeddinggemma-300m", {"attention": {"window": {"each_side": 1}}}),
    ("embeddinggemma-300m", {"attention": {"window": {"each_side": 3}}}),
    ("minilm-l6", {"pool": {"type": "first"}}),
    ("minilm-l6", {"pool": {"unit": False}}),
    ("modernbert-base", _kind("local", {"theta": 9000.0})),
    ("mpnet-base", {"attention": {"relative_bias": {"max_distance": 9}}}),
    ("qwen3-embedding-0.6b", {"pool": {"type": "mean"}}),
    ("qwen3-embedding-0.6b", {"attention": {"causal": False}}),
    ("block-4x4", {"norm": {"eps": 1e-5}}),
    ("gemma2-9b", {"attention": {"window": 4}}),
    ("gemma2-9b", {"attention": {"window": 6}}),
    ("gemma2-9b", {"attention": {"softcap": 2.01}}),
    ("gemma2-9b", {"attention": {"scale": 0.26}}),
    ("gemma2-9b", {"head": {"softcap": 2.01}}),
    ("gemma2-9b", {"norm": {"offset": 0.0}}),
    ("gemma2-9b", {"norm": {"eps": 1e-5}}),
    ("gemma2-9b", {"embedding": {"scale": 8.01}}),
    ("gemma2-9b", {"mlp": {"type": "geglu"}}),
    ("gemma2-9b", {"layers": {"pattern": ["global", "local"]}}),
    ("afm-4.5b", {"mlp": {"type": "relu"}}),
    ("afm-4.5b", {"attention": {"rope": {"scaling": {"factor": 19.0}}}}),
    ("codegen-350m", {"attention": {"rope": {"pairing": "half"}}}),
    ("falcon-40b", {"norm": {"eps": 1e-4}}),
    ("falcon-7b", {"mlp": {"type": "gelu_tanh"}}),
    ("gemma-2b", {"norm": {"offset": 0.0}}),
    ("glm4-9b", {"attention": {"rope": {"pairing": "half"}}}),
    ("glm4-9b", {"attention": {"rope": {"dims": 32}}}),
    ("gpt-j-6b", {"attention": {"rope": {"pairing": "half"}}}),
    ("gpt-j-6b", {"attention": {"rope": {"dims": 32}}}),
    ("gpt-j-6b", {"mlp": {"type": "gelu"}}),
    ("gpt-neo-125m", {"attention": {"scale": 0.99}}),
    ("gpt-neo-125m", {"layers": {"pattern": ["local", "global"]}}),
    ("gpt2", {"mlp": {"type": "gelu"}}),
    ("gpt2", {"norm": {"eps": 1e-6}}),
    ("granite3.0-8b", {"residual_scale": 0.76}),
    ("granite3.0-8b", {"head": {"scale": 0.76}}),
    ("helium1-preview-2b", {"attention": {"rope": {"pairing": "half"}}}),
    ("llama3-8b", {"norm": {"eps": 1e-6}}),
    ("llama3-8b", {"attention": {"rope": {"theta": 490000.0}}}),
    ("llama3-8b", {"mlp": {"type": "geglu"}}),
    ("llama3.1-405b", {"attention": {"rope": {"scaling": {"factor": 7.0}}}}),
    ("llama3.1-405b", {"attention": {"rope": {"scaling": {"low_freq_factor": 1.1}}}}),
    ("llama3.1-405b", {"attention": {"rope": {"scaling": {"high_freq_factor": 3.9}}}}),
    ("llama3.1-405b", {"attention": {"rope": {"scaling": {"original": 65}}}}),
    ("llama3.2-1b", {"attention": {"rope": {"scaling": {"factor": 31.0}}}}),
    ("minitron-4b", {"norm": {"offset": 0.0}}),
    ("minitron-4b", {"norm": {"eps": 1e-4}}),
    ("mistral-7b", {"attention": {"window": 4}}),
    ("mistral-7b", {"attention": {"window": 6}}),
    ("gemma3-4b", _kind("global", {"scaling": {"factor": 7.9}})),
    ("gemma3-4b", _kind("global", {"theta": 990000.0})),
    ("mpt-7b", {"attention": {"alibi": {"max_bias": 7.9}}}),
    ("olmo3-7b", _kind("full", {"scaling": {"factor": 7.0}})),
    ("olmo3-7b", _kind("full", {"scaling": {"original": 4096}})),
    ("olmo3-7b", _kind("full", {"scaling": {"beta_fast": 8.0}})),
    ("olmo3-7b", _kind("full", {"scaling": {"beta_slow": 4.0}})),
    ("olmo3-7b", _kind("full", {"scaling": {"truncate": False}})),
    ("olmo3-7b", _kind("full", {"scaling": {"attention_factor": 1.2}})),
    ("olmo1.7-7b", {"attention": {"clip": 1.01}}),
    ("olmo2-7b", {"norm": {"placement": "post"}}),
    ("olmo2-7b", {"norm": {"eps": 1e-4}}),
    ("nanogpt", {"mlp": {"type": "gelu_tanh"}}),
    ("phi-4-mini", {"attention": {"rope": {"scaling": {"attention_factor": 1.18}}}}),
    ("phi-2", {"attention": {"rope": {"dims": 8}}}),
    ("phi-2", {"mlp": {"type": "gelu"}}),
    ("phi3-mini-4k", {"attention": {"window": 6}}),
    ("pythia-410m", {"attention": {"rope": {"dims": 8}}}),
    ("pythia-410m", {"norm": {"placement": "pre"}}),
    ("pythia-410m", {"mlp": {"type": "gelu_tanh"}}),
    ("qwen3-0.6b", {"attention": {"qk_norm": {"eps": 1e-3}}}),
    ("stablelm-3b", {"attention": {"rope": {"dims": 32}}}),
    ("starcoder2-3b", {"attention": {"window": 4}}),
    ("transformer2017", {"norm": {"eps": 1e-5}}),
    ("transformer2017", {"norm": {"placement": "pre", "final": False}}),
]


@pytest.mark.parametrize(("name", "change"), WRONG, ids=lambda x: x if isinstance(x, str) else str(x))
def test_a_wrong_knob_shows(name: str, change: dict[str, Any]) -> None:
    """The same parameters under another spec are far from the outside logits: what is compared here can differ."""
    case, outside = _cases(_twin(name).spec.top.vocab)[0], OUTSIDE[name]
    params = _renamed(outside.params(_twin(name)), change)
    ours = Oracle(changed(name, change).function).run(case, params).outputs
    assert _error_of(name, case, ours) > 10 * outside.closeness


def _renamed(params: dict[str, Array], change: dict[str, Any]) -> dict[str, Array]:
    """The norms of another placement have other names."""
    if change.get("norm", {}).get("placement") != "pre" or "layers.0.mlp_norm.weight" in params:
        return params
    return {path.replace("_post_norm", "_norm"): array for path, array in params.items()}
