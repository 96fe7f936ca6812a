"""Small configs of encoders, embedders and classifiers, by the class of transformers that has them."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
PAD = 1  # the number of the padding token
SIZES: Config = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
LABELS: Config = {"id2label": {str(i): f"LABEL_{i}" for i in range(3)}, "label2id": {f"LABEL_{i}": i for i in range(3)}}
DISTIL: Config = {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4,
                  "max_position_embeddings": 64, "pad_token_id": PAD}  # fmt: skip
MODERN: Config = {**SIZES, "num_hidden_layers": 4, "local_attention": 6, "cls_token_id": 0, "sep_token_id": 2}
GROUPED: Config = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
GEMMA: Config = {**GROUPED, "num_hidden_layers": 7, "query_pre_attn_scalar": 20, "sliding_window": 6}


CASES: dict[str, Config] = {
    "BertModel": SIZES,
    "BertForMaskedLM": {**SIZES, "hidden_act": "gelu_new"},
    "BertForPreTraining": SIZES,
    "BertForSequenceClassification": {**SIZES, **LABELS},
    "BertForTokenClassification": {**SIZES, **LABELS},
    "RobertaModel": {**SIZES, "type_vocab_size": 1},
    "RobertaForMaskedLM": {**SIZES, "type_vocab_size": 2},
    "RobertaForSequenceClassification": {**SIZES, "type_vocab_size": 1, "num_labels": 1},
    "RobertaForTokenClassification": {**SIZES, **LABELS, "type_vocab_size": 1},
    "XLMRobertaForSequenceClassification": {**SIZES, **LABELS, "type_vocab_size": 1},
    "CamembertForMaskedLM": {**SIZES, "type_vocab_size": 1},
    "DistilBertModel": DISTIL,
    "DistilBertForMaskedLM": DISTIL,
    "DistilBertForSequenceClassification": {**DISTIL, **LABELS},
    "DistilBertForTokenClassification": {**DISTIL, **LABELS},
    "MPNetModel": SIZES,
    "MPNetForMaskedLM": SIZES,
    "MPNetForSequenceClassification": {**SIZES, **LABELS},
    "MPNetForTokenClassification": {**SIZES, **LABELS},
    "ElectraModel": {**SIZES, "embedding_size": 32},
    "ElectraForPreTraining": {**SIZES, "embedding_size": 32, "hidden_act": "relu"},
    "ElectraForMaskedLM": {**SIZES, "embedding_size": 32},
    "ElectraForSequenceClassification": {**SIZES, **LABELS, "embedding_size": 32},
    "ElectraForTokenClassification": {**SIZES, **LABELS, "embedding_size": 32},
    "ModernBertModel": MODERN,
    "ModernBertForMaskedLM": MODERN,
    "ModernBertForSequenceClassification": {**MODERN, **LABELS, "classifier_pooling": "mean"},
    "ModernBertForTokenClassification": {**MODERN, **LABELS, "norm_bias": True, "classifier_bias": True},
    "NomicBertModel": SIZES,
    "NomicBertForMaskedLM": SIZES,
    "NomicBertForSequenceClassification": {**SIZES, **LABELS},
    "EuroBertModel": {**GROUPED, "mask_token_id": 3},
    "EuroBertForMaskedLM": {**GROUPED, "mask_token_id": 3, "mlp_bias": True},
    "EuroBertForSequenceClassification": {**GROUPED, **LABELS, "mask_token_id": 3, "classifier_pooling": "mean"},
    "EuroBertForTokenClassification": {**GROUPED, **LABELS, "mask_token_id": 3},
    "Qwen3Model": GROUPED,
    "Qwen3ForSequenceClassification": {**GROUPED, "num_labels": 1},
    "Qwen3ForTokenClassification": {**GROUPED, **LABELS},
    "Gemma3TextModel": {**GEMMA, "use_bidirectional_attention": True},
    "Gemma3TextForSequenceClassification": {**GEMMA, **LABELS},
}
