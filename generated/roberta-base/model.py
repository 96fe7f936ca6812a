"""roberta-base: an encoder of 12 layers, 768 wide, over 50265 tokens.

124,697,433 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def query_positions(attention_mask: Tensor, tokens: int) -> Tensor:
    """The positions of the last `tokens` tokens; padding is not counted: (B, T) -> (B, tokens)."""
    new = torch.arange(tokens, device=attention_mask.device) + (attention_mask.shape[1] - tokens)
    return attention_mask.cumsum(1)[:, new] - 1


def key_positions(attention_mask: Tensor) -> Tensor:
    """The position of each token; padding is not counted, and gets one that no query reaches: (B, T) -> (B, T)."""
    return (attention_mask.cumsum(1) - 1).masked_fill(attention_mask == 0, 2**30)


def visible_both_ways(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where the key is not padding: (B, S), (B, T) -> (B, 1, S, T)."""
    return (key_positions < 2**30)[:, None, None, :].expand(-1, -1, query_positions.shape[1], -1)


class Attention(nn.Module):
    """12 heads of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(768, 768)
        self.k = nn.Linear(768, 768)
        self.v = nn.Linear(768, 768)
        self.o = nn.Linear(768, 768)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q_heads = self.q(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        k_heads = self.k(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        v_heads = self.v(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        mixed = F.scaled_dot_product_attention(q_heads, k_heads, v_heads, attn_mask=mask)  # (B, 12, S, 64)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 768)
        return o


class MLP(nn.Module):
    """down(gelu(up x)), 3072 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(768, 3072)
        self.down = nn.Linear(3072, 768)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, S, 3072)
        activated = F.gelu(up)  # (B, S, 3072)
        down = self.down(activated)  # (B, S, 768)
        return down


class Layer(nn.Module):
    """x = x + attention(x); x = attention_post_norm(x); x = x + mlp(x); x = mlp_post_norm(x)"""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.attention_post_norm = nn.LayerNorm(768, eps=1e-05)
        self.mlp = MLP()
        self.mlp_post_norm = nn.LayerNorm(768, eps=1e-05)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        attention = self.attention(x, mask)  # (B, S, 768)
        after_attention = x + attention  # (B, S, 768)
        attention_post_norm = self.attention_post_norm(after_attention)  # (B, S, 768)
        mlp = self.mlp(attention_post_norm)  # (B, S, 768)
        after_mlp = attention_post_norm + mlp  # (B, S, 768)
        mlp_post_norm = self.mlp_post_norm(after_mlp)  # (B, S, 768)
        return mlp_post_norm


@dataclass
class Output:
    """logits (B, S, vocab); loss, with labels."""

    logits: Tensor
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="roberta-base.Output")


class Model(nn.Module):
    """Token ids to logits: an encoder of 12 layers, 768 wide, over 50265 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50265, 768)
        self.segments = nn.Embedding(1, 768)
        self.positions = nn.Embedding(514, 768)
        self.embedding_norm = nn.LayerNorm(768, eps=1e-05)
        self.layers = nn.ModuleList([Layer() for _ in range(12)])
        self.transform = nn.Linear(768, 768)
        self.transform_norm = nn.LayerNorm(768, eps=1e-05)
        self.head = nn.Linear(768, 50265)
        self.tie_weights()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        checkpoint_layers: bool = False,
    ) -> Output:
        """Logits of each token.

        There is no cache: every token is given each time. input_ids (B, S); attention_mask (B, S), 0 at padding;
        position_ids (B, S), by default counted from the mask;
        labels (B, S) are the token wanted at each place, -100 where none is;
        checkpoint_layers computes each layer again in the backward pass.
        """
        unmasked = attention_mask is None
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, S)
        mask = None if unmasked else visible_both_ways(queries_at, keys_at)  # (B, 1, S, S)
        embedding = self.embedding(input_ids)  # (B, S, 768)
        segments = embedding + self.segments.weight[0]  # (B, S, 768)
        rows = position_ids + 2  # (B, S)
        positions = self.positions(rows)  # (B, S, 768)
        stream = segments + positions  # (B, S, 768)
        x = self.embedding_norm(stream)  # (B, S, 768)
        for layer in layers:
            x = layer(x, mask)  # (B, S, 768)
        x = self.transform(x)  # (B, S, 768)
        x = F.gelu(x)  # (B, S, 768)
        x = self.transform_norm(x)  # (B, S, 768)
        logits = self.head(x)  # (B, S, 50265)
        loss = None
        if labels is not None:  # in fp32; labels of -100 are ignored
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return Output(logits, loss=loss)

    def tie_weights(self) -> None:
        """Makes both names one tensor again."""
        self.head.weight = self.embedding.weight

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        tied = self.head.weight is self.embedding.weight
        super()._apply(*args, **kwargs)
        if tied and self.head.weight is not self.embedding.weight:  # a move may give each name a tensor of its own
            self.tie_weights()
        return self

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        self.tie_weights()
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 24**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of roberta-masked."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = with_prefix(tensors, "roberta.", but=UNPREFIXED)
        tensors = without_tied(tensors, TIED)
        tensors = renamed(tensors, CHECKPOINT, IGNORED, layers=12)
        tensors = {name: t.to(device, dtype, copy=True) for name, t in tensors.items()}
        tensors["head.weight"] = tensors["embedding.weight"]
        model.load_state_dict(tensors, assign=True)
        model.tie_weights()
        return model


# The parameter that each tensor of a checkpoint is; {i} is the layer.
CHECKPOINT = {
    "roberta.embeddings.word_embeddings.weight": "embedding.weight",
    "roberta.embeddings.position_embeddings.weight": "positions.weight",
    "roberta.embeddings.token_type_embeddings.weight": "segments.weight",
    "roberta.embeddings.LayerNorm.weight": "embedding_norm.weight",
    "roberta.embeddings.LayerNorm.bias": "embedding_norm.bias",
    "lm_head.dense.weight": "transform.weight",
    "lm_head.dense.bias": "transform.bias",
    "lm_head.layer_norm.weight": "transform_norm.weight",
    "lm_head.layer_norm.bias": "transform_norm.bias",
    "lm_head.bias": "head.bias",
    "roberta.encoder.layer.{i}.attention.self.query.weight": "layers.{i}.attention.q.weight",
    "roberta.encoder.layer.{i}.attention.self.query.bias": "layers.{i}.attention.q.bias",
    "roberta.encoder.layer.{i}.attention.self.key.weight": "layers.{i}.attention.k.weight",
    "roberta.encoder.layer.{i}.attention.self.key.bias": "layers.{i}.attention.k.bias",
    "roberta.encoder.layer.{i}.attention.self.value.weight": "layers.{i}.attention.v.weight",
    "roberta.encoder.layer.{i}.attention.self.value.bias": "layers.{i}.attention.v.bias",
    "roberta.encoder.layer.{i}.attention.output.dense.weight": "layers.{i}.attention.o.weight",
    "roberta.encoder.layer.{i}.attention.output.dense.bias": "layers.{i}.attention.o.bias",
    "roberta.encoder.layer.{i}.attention.output.LayerNorm.weight": "layers.{i}.attention_post_norm.weight",
    "roberta.encoder.layer.{i}.attention.output.LayerNorm.bias": "layers.{i}.attention_post_norm.bias",
    "roberta.encoder.layer.{i}.intermediate.dense.weight": "layers.{i}.mlp.up.weight",
    "roberta.encoder.layer.{i}.intermediate.dense.bias": "layers.{i}.mlp.up.bias",
    "roberta.encoder.layer.{i}.output.dense.weight": "layers.{i}.mlp.down.weight",
    "roberta.encoder.layer.{i}.output.dense.bias": "layers.{i}.mlp.down.bias",
    "roberta.encoder.layer.{i}.output.LayerNorm.weight": "layers.{i}.mlp_post_norm.weight",
    "roberta.encoder.layer.{i}.output.LayerNorm.bias": "layers.{i}.mlp_post_norm.bias",
}
UNPREFIXED = [
    "lm_head.dense.weight",
    "lm_head.dense.bias",
    "lm_head.layer_norm.weight",
    "lm_head.layer_norm.bias",
    "lm_head.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
]
TIED = {"lm_head.decoder.bias": "lm_head.bias", "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight"}
IGNORED = ["roberta.embeddings.position_ids", "roberta.pooler.dense.weight", "roberta.pooler.dense.bias"]


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of the files of a folder, mapped into memory."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def with_prefix(tensors: dict[str, Tensor], prefix: str, but: list[str]) -> dict[str, Tensor]:
    """The tensors with the prefix in their names, whether the file has it or not."""
    if any(name.startswith(prefix) for name in tensors):
        return tensors
    return {name if name in but else prefix + name: tensor for name, tensor in tensors.items()}


def without_tied(tensors: dict[str, Tensor], tied: dict[str, str]) -> dict[str, Tensor]:
    """The tensors without those that are tied to another one, to which they must be equal."""
    for name, owner in tied.items():
        if name in tensors and owner in tensors and not torch.equal(tensors[name], tensors[owner]):
            raise ValueError(f"checkpoint: {name} differs from {owner}, which it is tied to")
    return {name: tensor for name, tensor in tensors.items() if name not in tied}


def renamed(tensors: dict[str, Tensor], names: dict[str, str], ignored: list[str], layers: int) -> dict[str, Tensor]:
    """The tensors under the model's names; {i} is the layer. Tensors in `ignored` may be present."""
    table = {name.format(i=i): to.format(i=i) for name, to in names.items() for i in range(layers)}
    others = {name.format(i=i) for name in ignored for i in range(layers)}
    missing, unknown = sorted(table.keys() - tensors.keys()), sorted(tensors.keys() - table.keys() - others)
    if missing or unknown:
        raise KeyError(f"checkpoint: missing {missing or 'nothing'}, not known {unknown or 'nothing'}")
    return {to: tensors[name] for name, to in table.items()}
