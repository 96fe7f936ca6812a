"""For each spec the same model by another hand: its twin's numbers, the same random parameters, logits for tokens.

Configurations are written out here from the twin's resolved keys, so that no code of the compiler says what they mean;
only the names under which a family stores its weights come from the checkpoint layout. All run in float64, though
transformers computes all RMSNorms, and all rotary angles, in float32 whatever the model's type.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn

from blockc.graph.shrink import shrink
from blockc.ir import Array
from blockc.language.spec import Spec, from_tree, load, resolve_spec
from blockc.layouts import load_layout
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import parse
from blockc.weights.matching import pack
from blockc.weights.rules import group_sizes, random_parameters, rules
from tests.paths import ROOT
from tests.reference import decoders, encoders, inner, kin, mixtures, placed, plain, scaled
from tests.reference.ropes import rope

SPECS = ROOT / "specs"
Keys = Mapping[str, Any]
Params = Mapping[str, Array]
Logits = Callable[[Array], Array]  # tokens (B, S) -> (B, S, vocab)


@dataclass(frozen=True)
class Outside:
    """How another library says the model of a spec's keys, and how close float64 on both sides comes."""

    library: str
    closeness: float  # of the logits' standard deviation
    seed: int
    plain: Callable[[Keys, Params], Logits] | None = None
    config: Callable[[Keys], Any] | None = None  # of transformers
    family: str = ""  # the layout of its weights; what is plain and has one reads them as a file packs them
    kind: str = "AutoModelForCausalLM"  # the class of transformers
    pools: bool = False  # whether the spec's pool is no part of that class
    ready: Callable[[Keys, Any], None] | None = None  # what is changed of a model of transformers

    @property
    def version(self) -> str:
        return version(self.library)

    def params(self, twin: Compiled) -> dict[str, Array]:
        return random_parameters(twin.function, self.seed)

    def logits(self, twin: Compiled) -> Logits:
        outputs = self.outputs(twin)
        return lambda tokens: outputs(tokens)["logits"]

    def outputs(self, twin: Compiled) -> encoders.Outputs:
        keys = resolve_spec(twin.spec)
        if self.plain is not None:
            logits = self.plain(keys, self.packed(twin) if self.family else self.params(twin))
            return lambda tokens: {"logits": logits(tokens)}
        if self.kind == Outside.kind:
            logits = _run(self.model(twin))
            return lambda tokens: {"logits": logits(tokens)}
        run = encoders.outputs_of(self.model(twin), keys)
        return encoders.with_pool(run, keys, self.params(twin)) if self.pools else run

    def packed(self, twin: Compiled) -> dict[str, Array]:
        """The tensors of a checkpoint."""
        return pack(rules(load_layout(self.family), twin.function, group_sizes(twin.function)), self.params(twin))

    def model(self, twin: Compiled, dtype: torch.dtype = torch.float64) -> Any:
        """The model of transformers."""
        assert self.config is not None
        keys = resolve_spec(twin.spec)
        packed = {name: array for name, array in self.packed(twin).items() if not name.startswith("dense_")}
        without = {"add_pooling_layer": False} if self.pools and self.kind == "BertModel" else {}
        model = transformers_model(self.config(keys), packed, dtype, self.kind, **without)
        if self.ready is not None:
            self.ready(keys, model)
        return model


def twin(name: str) -> Compiled:
    return compile_spec(shrink(load(SPECS / f"{name}.yaml")))


def spec_of(keys: Keys) -> Spec:
    """The spec that says these keys."""
    import yaml

    return from_tree(parse(yaml.safe_dump(dict(keys), sort_keys=False), f"{keys['name']}.yaml"))


# transformers


def transformers_model(
    config: Any, packed: Params, dtype: torch.dtype = torch.float64, kind: str = Outside.kind, **more: Any
) -> Any:
    """The library's model, read from a checkpoint as one downloads it: nothing missing, nothing left over.

    Attention is eager, since sdpa leaves out Gemma's cap; experts are a loop, since the grouped form has no float64.
    """
    import transformers
    from safetensors.numpy import save_file

    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="outside-") as folder:
        save_file({n: np.asarray(a, np.float32, order="C") for n, a in packed.items()}, f"{folder}/model.safetensors")
        config.save_pretrained(folder)
        model, info = getattr(transformers, kind).from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", local_files_only=True,
            output_loading_info=True, **more,
        )  # fmt: skip
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    return model.eval()


def _run(model: Any) -> Logits:
    def logits(tokens: Array) -> Array:
        with torch.no_grad():
            return model(input_ids=torch.from_numpy(tokens)).logits.numpy()

    return logits


def gpt2(keys: Keys) -> Any:
    from transformers import GPT2Config

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert keys["positions"] == {"type": "learned"} and keys["head"] == {"tied": True}
    assert a["heads"] == a["kv_heads"] and a["scale"] == a["head_dim"] ** -0.5
    activation = {"gelu_tanh": "gelu_new", "quick_gelu": "quick_gelu", "relu2": "relu2", "silu": "silu"}[mlp["type"]]
    assert (norm["type"], norm["placement"]) == ("layer", "pre")
    return GPT2Config(
        vocab_size=keys["vocab"], n_positions=keys["context"], n_embd=keys["width"], n_layer=keys["depth"],
        n_head=a["heads"], n_inner=mlp["width"], activation_function=activation, layer_norm_epsilon=norm["eps"],
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def _gated(keys: Keys) -> dict[str, Any]:
    """What the configurations of Llama and of all that took over its names call the same things."""
    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert keys["positions"] == "none" and a["scale"] == a["head_dim"] ** -0.5
    activation = {"swiglu": "silu", "reglu": "relu", "reglu2": "relu2", "geglu": "gelu"}[mlp["type"]]
    assert not mlp["bias"] and norm["type"] == "rms" and "offset" not in norm
    scaling = a["rope"].get("scaling", {})
    within = scaling["original"] if scaling.get("type") == "dynamic" else keys["context"]
    return {
        "vocab_size": keys["vocab"], "hidden_size": keys["width"], "num_hidden_layers": keys["depth"],
        "intermediate_size": mlp["width"], "num_attention_heads": a["heads"], "num_key_value_heads": a["kv_heads"],
        "hidden_act": activation, "max_position_embeddings": within, "rms_norm_eps": norm["eps"],
        "tie_word_embeddings": keys["head"]["tied"], "rope_parameters": rope(a["rope"], a["head_dim"]),
    }  # fmt: skip


def llama(keys: Keys) -> Any:
    from transformers import LlamaConfig

    a = keys["attention"]
    assert not a["bias"] and "window" not in a and keys["norm"]["placement"] == "pre"
    return LlamaConfig(**_gated(keys), head_dim=a["head_dim"], attention_bias=False, mlp_bias=False)


def mistral(keys: Keys) -> Any:
    from transformers import MistralConfig

    a = keys["attention"]
    assert not a["bias"] and keys["norm"]["placement"] == "pre"
    return MistralConfig(**_gated(keys), head_dim=a["head_dim"], sliding_window=a["window"])


def qwen2(keys: Keys) -> Any:
    """Its head_dim is width / heads, and its biases on q, k and v are no choice."""
    from transformers import Qwen2Config

    a = keys["attention"]
    assert a["bias"] == ["q", "k", "v"] and a["head_dim"] * a["heads"] == keys["width"]
    assert "window" not in a and keys["norm"]["placement"] == "pre"
    return Qwen2Config(**_gated(keys), use_sliding_window=False)


def qwen3(keys: Keys) -> Any:
    """Its norms of queries and keys are no choice: each head by itself, with the eps of the others."""
    from transformers import Qwen3Config

    a, norm = keys["attention"], keys["norm"]
    assert a["qk_norm"] == {"over": "head", "weights": "shared", "type": "rms", "eps": norm["eps"]}
    assert not a["bias"] and "window" not in a and norm["placement"] == "pre"
    return Qwen3Config(**_gated(keys), head_dim=a["head_dim"], attention_bias=False, use_sliding_window=False)


def olmo2(keys: Keys) -> Any:
    """Its norms of queries and keys are no choice: all heads at once, with the eps of the others."""
    from transformers import Olmo2Config

    a, norm = keys["attention"], keys["norm"]
    assert a["qk_norm"] == {"over": "projection", "type": "rms", "eps": norm["eps"]}
    assert a["head_dim"] * a["heads"] == keys["width"] and not a["bias"] and norm["placement"] == "branch"
    return Olmo2Config(**_gated(keys), attention_bias=False, eos_token_id=2)


def gpt_neox(keys: Keys) -> Any:
    from transformers import GPTNeoXConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert a["heads"] == a["kv_heads"] and mlp["type"] == "gelu" and norm["placement"] == "parallel_two"
    return GPTNeoXConfig(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        num_attention_heads=a["heads"], intermediate_size=mlp["width"], hidden_act="gelu",
        max_position_embeddings=keys["context"], layer_norm_eps=norm["eps"], use_parallel_residual=True,
        attention_bias=True, tie_word_embeddings=False,
        rope_parameters={**rope(a["rope"]), "partial_rotary_factor": a["rope"]["dims"] / a["head_dim"]},
    )  # fmt: skip


def phi(keys: Keys) -> Any:
    """One norm for both branches and biases everywhere are no choice."""
    from transformers import PhiConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert a["bias"] == ["q", "k", "v", "o"] and mlp["bias"] == ["up", "down"] and keys["head"]["bias"]
    activation = {"gelu_tanh": "gelu_new", "quick_gelu": "quick_gelu", "relu2": "relu2", "silu": "silu"}[mlp["type"]]
    assert (norm["type"], norm["placement"]) == ("layer", "parallel_one")
    return PhiConfig(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        intermediate_size=mlp["width"], num_attention_heads=a["heads"], num_key_value_heads=a["kv_heads"],
        hidden_act=activation, max_position_embeddings=keys["context"], layer_norm_eps=norm["eps"],
        tie_word_embeddings=keys["head"]["tied"], qk_layernorm=False,
        rope_parameters={**rope(a["rope"]), "partial_rotary_factor": a["rope"]["dims"] / a["head_dim"]},
    )  # fmt: skip


def gptj(keys: Keys) -> Any:
    """One norm for both branches, neighbours as pairs and the base of the rotation are no choice."""
    from transformers import GPTJConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert not a["bias"] and mlp["bias"] == ["up", "down"] and keys["head"] == {"tied": False, "bias": True}
    dims = a["rope"].get("dims", a["head_dim"])
    assert (a["rope"]["theta"], a["rope"]["pairing"], "scaling" in a["rope"]) == (10000, "interleaved", False)
    assert a["heads"] == a["kv_heads"] and a["scale"] == a["head_dim"] ** -0.5
    assert mlp["type"] == "gelu_tanh" and (norm["type"], norm["placement"]) == ("layer", "parallel_one")
    return GPTJConfig(
        vocab_size=keys["vocab"], n_positions=keys["context"], n_embd=keys["width"], n_layer=keys["depth"],
        n_head=a["heads"], n_inner=mlp["width"], rotary_dim=dims, activation_function="gelu_new",
        layer_norm_epsilon=norm["eps"], tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def gemma2(keys: Keys) -> Any:
    from transformers import Gemma2Config

    a, mlp, norm, layers = keys["attention"], keys["mlp"], keys["norm"], keys["layers"]
    assert keys["embedding"] == {"scale": "sqrt_width"} and (norm["offset"], norm["placement"]) == (1, "sandwich")
    assert layers["pattern"] == ["local", "global"] and layers["kinds"]["global"] == {"attention": {"window": "none"}}
    activation = {"geglu_tanh": "gelu_pytorch_tanh", "geglu": "gelu"}[mlp["type"]]
    return Gemma2Config(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        intermediate_size=mlp["width"], num_attention_heads=a["heads"], num_key_value_heads=a["kv_heads"],
        head_dim=a["head_dim"], hidden_activation=activation, max_position_embeddings=keys["context"],
        rms_norm_eps=norm["eps"], tie_word_embeddings=True, query_pre_attn_scalar=round(a["scale"] ** -2),
        sliding_window=a["window"],
        layer_types=["sliding_attention", "full_attention"] * (keys["depth"] // 2),
        attn_logit_softcapping=a["softcap"], final_logit_softcapping=keys["head"]["softcap"],
        rope_parameters=rope(a["rope"]),
    )  # fmt: skip


# torch's own encoder layer


def encoder_layers(keys: Keys, params: Params) -> Logits:
    """The paper's stack: nn.TransformerEncoderLayer under a causal mask, norms after the sums, a tied head.

    Its attention is replaced by one without biases, since the paper's projections are bare matrices.
    """
    a, width = keys["attention"], keys["width"]
    assert keys["embedding"] == {"scale": "sqrt_width"} and keys["positions"] == {"type": "sinusoidal"}
    assert (keys["norm"]["placement"], keys["norm"]["final"]) == ("post", False)
    assert keys["mlp"]["type"] == "relu" and keys["head"] == {"tied": True}
    stack = nn.ModuleList()
    for i in range(keys["depth"]):
        layer = nn.TransformerEncoderLayer(
            width, a["heads"], dim_feedforward=keys["mlp"]["width"], dropout=0.0, activation="relu",
            layer_norm_eps=keys["norm"]["eps"], batch_first=True, norm_first=False,
        )  # fmt: skip
        layer.self_attn = nn.MultiheadAttention(width, a["heads"], bias=False, batch_first=True)
        here = f"layers.{i}."
        at = {n.removeprefix(here): torch.from_numpy(p) for n, p in params.items() if n.startswith(here)}
        names = {
            "self_attn.out_proj.weight": "attention.o.weight",
            **{f"linear1.{p}": f"mlp.up.{p}" for p in ("weight", "bias")},
            **{f"linear2.{p}": f"mlp.down.{p}" for p in ("weight", "bias")},
            **{f"norm1.{p}": f"attention_post_norm.{p}" for p in ("weight", "bias")},
            **{f"norm2.{p}": f"mlp_post_norm.{p}" for p in ("weight", "bias")},
        }
        qkv = {f"attention.{x}.weight": at[f"attention.{x}.weight"] for x in "qkv"}
        assert at.keys() == {*names.values(), *qkv}
        state = {"self_attn.in_proj_weight": torch.cat(list(qkv.values()))} | {n: at[ours] for n, ours in names.items()}
        layer.double().load_state_dict(state, strict=True)
        stack.append(layer.eval())
    table = torch.from_numpy(params["embedding.weight"])

    def logits(tokens: Array) -> Array:
        steps = tokens.shape[1]
        waves = torch.zeros(steps, width, dtype=torch.float64)
        for place in range(steps):
            for i in range(width // 2):
                angle = place / 10000 ** (2 * i / width)
                waves[place, 2 * i], waves[place, 2 * i + 1] = math.sin(angle), math.cos(angle)
        hidden = torch.ones(steps, steps, dtype=torch.bool).triu(1)  # True may not be seen
        with torch.no_grad():
            x = table[torch.from_numpy(tokens)] * math.sqrt(width) + waves
            for layer in stack:
                x = layer(x, src_mask=hidden)
            return (x @ table.T).numpy()

    return logits


# By hand


def by_hand(keys: Keys, params: Params) -> Logits:
    """block-4x4 with plain numbers: one token after another, each with its own list of what came before."""
    assert (keys["positions"], keys["attention"]["heads"], keys["width"]) == ("none", 1, 4)
    assert keys["norm"] == {"type": "rms", "eps": 1e-6, "placement": "pre", "final": True}
    assert keys["mlp"]["type"] == "relu" and keys["head"] == {"tied": False}
    read = set[str]()

    def weight(name: str) -> list[Any]:
        read.add(name)
        return params[name].tolist()

    def times(matrix: list[list[float]], vector: list[float]) -> list[float]:
        return [sum(m * x for m, x in zip(row, vector, strict=True)) for row in matrix]

    def normed(vector: list[float], gain: list[float]) -> list[float]:
        size = math.sqrt(sum(x * x for x in vector) / len(vector) + 1e-6)
        return [x / size * g for x, g in zip(vector, gain, strict=True)]

    def attended(query: list[float], seen: list[tuple[list[float], list[float]]]) -> list[float]:
        scores = [math.exp(sum(a * b for a, b in zip(query, key, strict=True)) / 2) for key, _ in seen]  # sqrt(4) = 2
        return [sum(s * value[j] for s, (_, value) in zip(scores, seen, strict=True)) / sum(scores) for j in range(4)]

    def sentence(tokens: list[int]) -> list[list[float]]:
        memory: list[list[tuple[list[float], list[float]]]] = [[] for _ in range(keys["depth"])]
        rows: list[list[float]] = []
        for token in tokens:
            stream = weight("embedding.weight")[token]
            for i, seen in enumerate(memory):
                at = f"layers.{i}"
                x = normed(stream, weight(f"{at}.attention_norm.weight"))
                q, k, v = (times(weight(f"{at}.attention.{m}.weight"), x) for m in "qkv")
                seen.append((k, v))
                written = times(weight(f"{at}.attention.o.weight"), attended(q, seen))
                stream = [a + b for a, b in zip(stream, written, strict=True)]
                x = normed(stream, weight(f"{at}.mlp_norm.weight"))
                inner = [max(0.0, y) for y in times(weight(f"{at}.mlp.up.weight"), x)]
                written = times(weight(f"{at}.mlp.down.weight"), inner)
                stream = [a + b for a, b in zip(stream, written, strict=True)]
            rows.append(times(weight("head.weight"), normed(stream, weight("final_norm.weight"))))
        assert read == set(params)  # nothing is left unused
        return rows

    def logits(tokens: Array) -> Array:
        return np.array([sentence(row) for row in tokens.tolist()])

    return logits


OUTSIDE = {
    "afm-4.5b": Outside("transformers", 5e-6, seed=81, config=kin.arcee, family="llama"),
    "apertus-8b": Outside("transformers", 5e-6, seed=90, config=inner.apertus, family="apertus"),
    "baichuan-13b": Outside("numpy", 1e-11, seed=70, plain=plain.baichuan, family="baichuan"),
    "baichuan-7b": Outside("numpy", 1e-11, seed=41, plain=plain.baichuan, family="baichuan"),
    "bert-base": Outside("transformers", 1e-11, seed=120, config=encoders.bert, family="bert", kind="BertModel"),
    "bitnet-2b": Outside("transformers", 5e-6, seed=91, config=inner.bitnet, family="bitnet"),
    "block-4x4": Outside("numpy", 1e-12, seed=1, plain=by_hand),
    "bloom-560m": Outside("transformers", 5e-6, seed=71, config=placed.bloom, family="bloom"),
    "codegen-350m": Outside("transformers", 5e-6, seed=82, config=kin.codegen, family="codegen"),
    "command-r-35b": Outside("transformers", 5e-6, seed=61, config=scaled.cohere, family="cohere"),
    "command-r-plus": Outside("transformers", 5e-6, seed=66, config=scaled.cohere, family="cohere"),
    "command-r7b": Outside("transformers", 5e-6, seed=62, config=scaled.cohere2, family="cohere"),
    "deepseek-v2-lite": Outside("transformers", 5e-6, seed=108, config=mixtures.deepseek_v2, family="deepseek"),
    "deepseek-v3": Outside("transformers", 5e-6, seed=109, config=mixtures.deepseek_v3, family="deepseek"),
    "distilbert-base": Outside(
        "transformers",
        1e-11,
        seed=121,
        config=encoders.distilbert,
        family="distilbert-masked",
        kind="DistilBertForMaskedLM",
    ),
    "distilbert-sst2": Outside(
        "transformers",
        1e-11,
        seed=122,
        config=encoders.distilbert,
        family="distilbert-classes",
        kind="DistilBertForSequenceClassification",
    ),
    "electra-base": Outside(
        "transformers",
        1e-11,
        seed=123,
        config=encoders.electra,
        family="electra-discriminator",
        kind="ElectraForPreTraining",
    ),
    "embeddinggemma-300m": Outside(
        "transformers", 5e-6, seed=124, config=encoders.gemma, family="gemma3-base", kind="Gemma3TextModel", pools=True
    ),
    "ernie4.5-0.3b": Outside("transformers", 5e-6, seed=92, config=inner.ernie, family="llama"),
    "falcon-40b": Outside("transformers", 5e-6, seed=42, config=decoders.falcon, family="falcon"),
    "falcon-7b": Outside("transformers", 5e-6, seed=43, config=decoders.falcon, family="falcon"),
    "gemma-2b": Outside("transformers", 5e-6, seed=44, config=decoders.gemma, family="llama"),
    "gemma2-9b": Outside("transformers", 5e-6, seed=2, config=gemma2, family="gemma2"),
    "gemma3-1b": Outside("transformers", 5e-6, seed=73, config=placed.gemma3, family="gemma3"),
    "gemma3-4b": Outside("transformers", 5e-6, seed=74, config=placed.gemma3, family="gemma3"),
    "glm4-9b": Outside("transformers", 5e-6, seed=45, config=decoders.glm, family="glm"),
    "glm4-9b-0414": Outside("transformers", 5e-6, seed=46, config=decoders.glm4, family="glm"),
    "glm4.5-air": Outside("transformers", 5e-6, seed=100, config=mixtures.glm4_moe, family="glm-moe"),
    "gpt-j-6b": Outside("transformers", 5e-6, seed=16, config=gptj, family="gpt-j"),
    "gpt-neo-125m": Outside("transformers", 5e-6, seed=47, config=decoders.gpt_neo, family="gpt-neo"),
    "gpt-oss-20b": Outside("transformers", 5e-6, seed=101, config=mixtures.gpt_oss, family="gpt-oss"),
    "gpt2": Outside("transformers", 1e-11, seed=3, config=gpt2, family="gpt2"),
    "gpt3-175b": Outside("transformers", 1e-11, seed=4, config=gpt2, family="gpt2"),
    "granite3.0-8b": Outside("transformers", 5e-6, seed=63, config=scaled.granite, family="llama"),
    "granite3.1-1b-a400m": Outside("transformers", 5e-6, seed=102, config=mixtures.granite_moe, family="granite-moe"),
    "helium1-preview-2b": Outside("transformers", 5e-6, seed=83, config=kin.helium, family="llama"),
    "hy-mt2-7b": Outside("transformers", 5e-6, seed=93, config=inner.hunyuan, family="hunyuan"),
    "internlm2-7b": Outside("numpy", 1e-11, seed=48, plain=plain.internlm2, family="internlm2"),
    "llama3-70b": Outside("transformers", 5e-6, seed=5, config=llama, family="llama"),
    "llama3-8b": Outside("transformers", 5e-6, seed=6, config=llama, family="llama"),
    "llama3.1-405b": Outside("transformers", 5e-6, seed=7, config=llama, family="llama"),
    "llama3.2-1b": Outside("transformers", 5e-6, seed=10, config=llama, family="llama"),
    "minilm-l6": Outside(
        "transformers", 1e-11, seed=125, config=encoders.bert, family="bert", kind="BertModel", pools=True
    ),
    "minimax-m2": Outside("transformers", 5e-6, seed=103, config=mixtures.minimax_m2, family="mixtral"),
    "minitron-4b": Outside("transformers", 5e-6, seed=84, config=kin.nemotron, family="llama"),
    "mistral-7b": Outside("transformers", 5e-6, seed=11, config=mistral, family="llama"),
    "mixtral-8x7b": Outside("transformers", 5e-6, seed=104, config=mixtures.mixtral, family="mixtral"),
    "modernbert-base": Outside(
        "transformers",
        5e-6,
        seed=126,
        config=encoders.modernbert,
        family="modernbert-masked",
        kind="ModernBertForMaskedLM",
    ),
    "mpnet-base": Outside(
        "transformers",
        1e-11,
        seed=127,
        config=encoders.mpnet,
        family="mpnet",
        kind="MPNetModel",
        ready=encoders.shorten_distances,
    ),
    "mpt-7b": Outside("transformers", 5e-6, seed=72, config=placed.mpt, family="mpt"),
    "ms-marco-minilm-l6": Outside(
        "transformers",
        1e-11,
        seed=128,
        config=encoders.bert,
        family="bert-classes",
        kind="BertForSequenceClassification",
    ),
    "nanogpt": Outside("numpy", 1e-11, seed=49, plain=plain.nanogpt, family="nanogpt"),
    "nomic-embed-1.5": Outside(
        "transformers", 5e-6, seed=129, config=encoders.nomic, family="nomic-bert", kind="NomicBertModel", pools=True
    ),
    "olmo2-7b": Outside("transformers", 5e-6, seed=14, config=olmo2, family="olmo2"),
    "olmo1.7-7b": Outside("transformers", 5e-6, seed=64, config=scaled.olmo, family="llama"),
    "olmo3-7b": Outside("transformers", 5e-6, seed=75, config=placed.olmo3, family="olmo2"),
    "olmoe-1b-7b": Outside("transformers", 5e-6, seed=105, config=mixtures.olmoe, family="qwen-moe"),
    "opt-125m": Outside("transformers", 5e-6, seed=20, config=placed.opt, family="opt"),
    "opt-350m": Outside("transformers", 5e-6, seed=65, config=placed.opt, family="opt-post"),
    "persimmon-8b": Outside("transformers", 5e-6, seed=94, config=inner.persimmon, family="persimmon"),
    "phi-2": Outside("transformers", 5e-6, seed=17, config=phi, family="phi"),
    "phi-4-mini": Outside("transformers", 5e-6, seed=77, config=placed.phi4_mini, family="phi3"),
    "phi3-mini-4k": Outside("transformers", 5e-6, seed=50, config=decoders.phi3, family="phi3"),
    "pythia-410m": Outside("transformers", 5e-6, seed=8, config=gpt_neox, family="gpt-neox"),
    "qwen1.5-moe-a2.7b": Outside("transformers", 5e-6, seed=106, config=mixtures.qwen2_moe, family="qwen-moe"),
    "qwen2.5-0.5b": Outside("transformers", 5e-6, seed=12, config=qwen2, family="llama"),
    "qwen3-0.6b": Outside("transformers", 5e-6, seed=15, config=qwen3, family="llama"),
    "qwen3-30b-a3b": Outside("transformers", 5e-6, seed=107, config=mixtures.qwen3_moe, family="qwen-moe"),
    "qwen3-embedding-0.6b": Outside(
        "transformers", 5e-6, seed=130, config=encoders.qwen3, family="llama-base", kind="Qwen3Model", pools=True
    ),
    "qwen3-reranker-0.6b": Outside(
        "transformers",
        5e-6,
        seed=131,
        config=encoders.qwen3,
        family="llama-classes",
        kind="Qwen3ForSequenceClassification",
    ),
    "roberta-base": Outside(
        "transformers", 1e-11, seed=132, config=encoders.roberta, family="roberta-masked", kind="RobertaForMaskedLM"
    ),
    "santacoder": Outside("transformers", 5e-6, seed=86, config=kin.gpt_bigcode, family="gpt-bigcode"),
    "seed-oss-36b": Outside("transformers", 5e-6, seed=85, config=kin.seed_oss, family="llama"),
    "smollm2-135m": Outside("transformers", 5e-6, seed=13, config=llama, family="llama"),
    "smollm3-3b": Outside("transformers", 5e-6, seed=76, config=placed.smollm3, family="llama"),
    "stablelm-3b": Outside("transformers", 5e-6, seed=51, config=decoders.stablelm, family="llama"),
    "stablelm2-1.6b": Outside("transformers", 5e-6, seed=52, config=decoders.stablelm, family="llama"),
    "starcoder2-3b": Outside("transformers", 5e-6, seed=53, config=decoders.starcoder2, family="starcoder2"),
    "transformer2017": Outside("torch", 1e-11, seed=9, plain=encoder_layers),
}
