"""Small encoders with random weights and a WordPiece tokenizer of their own, as folders of Hugging Face have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from blockc import api
from blockc.graph.target import Target

WORDS = [
    "the", "cat", "sat", "on", "mat", "a", "dog", "ran", "far", "away", "red", "blue", "sky", "ist", "das", "haus",
    "le", "chat",
]  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CONTEXT = 40
CONFIG = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT, "pad_token_id": 0,
}  # fmt: skip
TEXTS = [
    "the cat sat on the mat", "", "a dog", "Das Haus ist blue", "  le chat  ran  far away  ", "xyz", "red " * 20,
    "the sky", "the red cat ran away on a blue mat far far away",
]  # fmt: skip


def wordpiece(special: bool = True) -> Any:
    """Lower case; [CLS] text [SEP], and for two [CLS] text [SEP] other [SEP], the other of segment 1."""
    vocab = [*SPECIAL, *WORDS, *(c for c in LETTERS if c not in WORDS), *(f"##{c}" for c in LETTERS)]
    made: Any = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocab)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if special:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    made.add_special_tokens(SPECIAL)
    return made


def save_encoder(folder: Path, kind: str, **config: Any) -> Any:
    """A model of transformers' class of this name, in float32 and in a folder with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    known = wordpiece()
    of: Any = getattr(transformers, kind)
    torch.manual_seed(5)
    model: Any = of(of.config_class(**{**CONFIG, "vocab_size": known.get_vocab_size(), **config}))
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.float().eval().save_pretrained(folder)
    known.save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]", "unk_token": "[UNK]"}))
    return model


def save_embedder(folder: Path, mode: str = "mean", unit: bool = True, **config: Any) -> Any:
    """A BertModel with the modules of sentence-transformers: a pool, and vectors of length 1."""
    model = save_encoder(folder, "BertModel", **config)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if unit else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    said = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": mode == "mean"}
    said |= {"pooling_mode_cls_token": mode == "cls", "pooling_mode_lasttoken": mode == "lasttoken"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    return model


def build(source: Path, out: Path, *changes: str, target: Target | None = None, **named: Any) -> Path:
    """The build of such a folder, without a proof."""
    model = api.compile(source, changes)
    api.build(model, out, target=target or Target("cpu"), proof=False, weights=source, **named)
    return out
