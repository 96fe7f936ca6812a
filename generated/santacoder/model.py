"""santacoder: a causal decoder of 24 layers, 2048 wide, over 49280 tokens.

1,124,886,528 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def query_positions(attention_mask: Tensor, tokens: int) -> Tensor:
    """Where the last `tokens` tokens stand among the real ones: (B, T) -> (B, tokens)."""
    new = torch.arange(tokens, device=attention_mask.device) + (attention_mask.shape[1] - tokens)
    return attention_mask.cumsum(1)[:, new] - 1


def key_positions(attention_mask: Tensor) -> Tensor:
    """Where each token stands among the real ones; padding stands where no query reaches: (B, T) -> (B, T)."""
    return (attention_mask.cumsum(1) - 1).masked_fill(attention_mask == 0, 2**30)


def visible(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a query sees a key, itself and everything before it: (B, S), (B, T) -> (B, 1, S, T)."""
    return query_positions[:, None, :, None] >= key_positions[:, None, None, :]


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each token given those before it, in fp32; labels of -100 do not count."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)


class Attention(nn.Module):
    """16 query heads of 128 read 1 key-value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(2048, 2048)
        self.k = nn.Linear(2048, 128)
        self.v = nn.Linear(2048, 128)
        self.o = nn.Linear(2048, 2048)

    def forward(self, x: Tensor, mask: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x)  # (B, S, 2048)
        q_heads = q.unflatten(2, (16, 128)).transpose(1, 2)  # (B, 16, S, 128)
        k = self.k(x)  # (B, S, 128)
        k_heads = k.unflatten(2, (1, 128)).transpose(1, 2)  # (B, 1, S, 128)
        v = self.v(x)  # (B, S, 128)
        v_heads = v.unflatten(2, (1, 128)).transpose(1, 2)  # (B, 1, S, 128)
        key = torch.cat((past_key, k_heads), dim=2)  # (B, 1, T, 128)
        value = torch.cat((past_value, v_heads), dim=2)  # (B, 1, T, 128)
        mixed = F.scaled_dot_product_attention(
            q_heads, key, value, attn_mask=mask, scale=0.08838834764831845, enable_gqa=True
        )  # (B, 16, S, 128)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, S, 2048)
        o = self.o(joined)  # (B, S, 2048)
        return o, key, value


class MLP(nn.Module):
    """down(gelu_tanh(up x)), 8192 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2048, 8192)
        self.down = nn.Linear(8192, 2048)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, S, 8192)
        activated = F.gelu(up, approximate="tanh")  # (B, S, 8192)
        down = self.down(activated)  # (B, S, 2048)
        return down


class Layer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(2048, eps=1e-05)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(2048, eps=1e-05)
        self.mlp = MLP()

    def forward(self, x: Tensor, mask: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention_norm = self.attention_norm(x)  # (B, S, 2048)
        attention, key, value = self.attention(attention_norm, mask, past_key, past_value)  # (B, S, 2048)
        after_attention = x + attention  # (B, S, 2048)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 2048)
        mlp = self.mlp(mlp_norm)  # (B, S, 2048)
        after_mlp = after_attention + mlp  # (B, S, 2048)
        return after_mlp, key, value


class Output(NamedTuple):
    """logits (B, S, vocab); past_key_values to pass in with the next tokens; loss where labels were given."""

    logits: Tensor
    past_key_values: tuple[tuple[Tensor, ...], ...]
    loss: Tensor | None


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 24 layers, 2048 wide, over 49280 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(49280, 2048)
        self.positions = nn.Embedding(2048, 2048)
        self.layers = nn.ModuleList([Layer() for _ in range(24)])
        self.final_norm = nn.LayerNorm(2048, eps=1e-05)
        self.head = nn.Linear(2048, 49280, bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: tuple[tuple[Tensor, ...], ...] | None = None,
        labels: Tensor | None = None,
    ) -> Output:
        """Logits of each new token.

        input_ids (B, S); attention_mask (B, T), 0 at padding on either side; position_ids (B, S), by default counted
        from the mask; past_key_values as an earlier call returned them; labels (B, S) are the tokens themselves.
        """
        batch, tokens = input_ids.shape
        if past_key_values is None:
            past_key_values = self.empty_cache(batch)
        if attention_mask is None:
            attention_mask = input_ids.new_ones(batch, past_key_values[0][0].shape[2] + tokens)
        if position_ids is None:
            position_ids = query_positions(attention_mask, tokens).clamp(min=0)
        present = []
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        keys_at = key_positions(attention_mask)  # (B, T)
        mask = visible(queries_at, keys_at)  # (B, 1, S, T)
        embedding = self.embedding(input_ids)  # (B, S, 2048)
        positions = self.positions(position_ids)  # (B, S, 2048)
        stream = embedding + positions  # (B, S, 2048)
        x = stream
        for layer, past in zip(self.layers, past_key_values, strict=True):
            x, key, value = layer(x, mask, *past)  # (B, S, 2048)
            present.append((key, value))
        final_norm = self.final_norm(x)  # (B, S, 2048)
        head = self.head(final_norm)  # (B, S, 49280)
        loss = None if labels is None else next_token_loss(head, labels)
        return Output(head, tuple(present), loss)

    def empty_cache(self, batch: int) -> tuple[tuple[Tensor, ...], ...]:
        """A cache without tokens: for each layer keys and values, (B, heads, 0, head_dim)."""
        sizes = 24 * [((1, 128), (1, 128))]
        like = self.embedding.weight
        return tuple(tuple(like.new_empty(batch, heads, 0, dim) for heads, dim in layer) for layer in sizes)

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; what writes to the stream is smaller the more of it there is."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                writes = name.endswith((".down", ".o"))
                module.weight.normal_(std=std / 48**0.5 if writes else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32) -> Model:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of gpt-bigcode."""
        with torch.device("meta"):
            model = cls().to(dtype)
        model.to_empty(device="cpu")
        model.head.weight = model.embedding.weight
        tensors = open_tensors(Path(path))
        tensors = with_prefix(tensors, "transformer.", but=["lm_head.weight"])
        tensors = without_ignored(tensors, IGNORED)
        copy_packed(model, tensors, CHECKPOINT, TIED, layers=24)
        return model


# A checkpoint's tensor, the parameters packed in it, in how many groups, whether transposed; {i} is the layer.
CHECKPOINT = [
    ("transformer.wte.weight", ["embedding.weight"], 1, False),
    ("transformer.wpe.weight", ["positions.weight"], 1, False),
    ("transformer.ln_f.weight", ["final_norm.weight"], 1, False),
    ("transformer.ln_f.bias", ["final_norm.bias"], 1, False),
    ("transformer.h.{i}.ln_1.weight", ["layers.{i}.attention_norm.weight"], 1, False),
    ("transformer.h.{i}.ln_1.bias", ["layers.{i}.attention_norm.bias"], 1, False),
    ("transformer.h.{i}.attn.c_proj.weight", ["layers.{i}.attention.o.weight"], 1, False),
    ("transformer.h.{i}.attn.c_proj.bias", ["layers.{i}.attention.o.bias"], 1, False),
    ("transformer.h.{i}.ln_2.weight", ["layers.{i}.mlp_norm.weight"], 1, False),
    ("transformer.h.{i}.ln_2.bias", ["layers.{i}.mlp_norm.bias"], 1, False),
    ("transformer.h.{i}.mlp.c_fc.weight", ["layers.{i}.mlp.up.weight"], 1, False),
    ("transformer.h.{i}.mlp.c_fc.bias", ["layers.{i}.mlp.up.bias"], 1, False),
    ("transformer.h.{i}.mlp.c_proj.weight", ["layers.{i}.mlp.down.weight"], 1, False),
    ("transformer.h.{i}.mlp.c_proj.bias", ["layers.{i}.mlp.down.bias"], 1, False),
    (
        "transformer.h.{i}.attn.c_attn.weight",
        ["layers.{i}.attention.q.weight", "layers.{i}.attention.k.weight", "layers.{i}.attention.v.weight"],
        1,
        False,
    ),
    (
        "transformer.h.{i}.attn.c_attn.bias",
        ["layers.{i}.attention.q.bias", "layers.{i}.attention.k.bias", "layers.{i}.attention.v.bias"],
        1,
        False,
    ),
]
TIED: dict[str, str] = {"lm_head.weight": "embedding.weight"}
IGNORED = [
    "transformer.h.{i}.attn.bias",
    "transformer.h.{i}.attn.masked_bias",
]


def open_tensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Every tensor of a safetensors file, or of the files of a folder, read when it is called."""
    from safetensors import safe_open

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    opened = [safe_open(file, framework="pt") for file in files]
    return {name: partial(file.get_tensor, name) for file in opened for name in file.keys()}


def with_prefix(tensors: dict[str, Any], prefix: str, but: list[str]) -> dict[str, Any]:
    """The tensors under the names of a file that has the prefix, whether this one has it or not."""
    if any(name.startswith(prefix) for name in tensors):
        return tensors
    return {name if name in but else prefix + name: read for name, read in tensors.items()}


def without_ignored(tensors: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    """The tensors less those known to be without effect; {i} stands for any layer."""
    patterns = [re.compile(re.escape(name).replace(r"\{i\}", r"\d+")) for name in ignored]
    return {name: read for name, read in tensors.items() if not any(p.fullmatch(name) for p in patterns)}


def check_names(wanted: Iterable[str], found: Iterable[str]) -> None:
    """Nothing may be missing from the checkpoint, and nothing left over."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise KeyError(f"checkpoint: missing {missing or 'nothing'}, not known {extra or 'nothing'}")


def fitting(tensor: Tensor, parameter: Tensor, name: str) -> Tensor:
    """The tensor, if it has the parameter's shape: copying would stretch one that has not."""
    if tensor.shape != parameter.shape:
        raise ValueError(f"checkpoint: {name} is {tuple(tensor.shape)}, wanted {tuple(parameter.shape)}")
    return tensor


@torch.no_grad()
def copy_packed(
    model: nn.Module,
    tensors: dict[str, Callable[[], Tensor]],
    rows: list[tuple[str, list[str], int, bool]],
    tied: dict[str, str],
    layers: int,
) -> None:
    """Fills the model through rows of (name in the file, parameters packed in it, groups, transposed).

    Within each group the parameters' rows follow one another: groups 1 is stacked, groups heads is head by head.
    """
    parameters = dict(model.named_parameters())
    table = {
        name.format(i=i): ([to.format(i=i) for to in targets], groups, transposed)
        for name, targets, groups, transposed in rows
        for i in range(layers)
    }
    check_names(table, tensors.keys() - tied.keys())
    for name, (targets, groups, transposed) in table.items():
        tensor = tensors[name]()
        tensor = tensor.T if transposed and tensor.dim() == 2 else tensor
        packed = torch.cat([parameters[target] for target in targets])
        sizes = [parameters[target].shape[0] // groups for target in targets]
        parts = fitting(tensor, packed, name).unflatten(0, (groups, -1)).split(sizes, dim=1)
        for target, part in zip(targets, parts, strict=True):
            parameters[target].copy_(part.flatten(0, 1))
    for name in tied.keys() & tensors.keys():
        if not torch.equal(tensors[name]().to(parameters[tied[name]].dtype), parameters[tied[name]]):
            raise ValueError(f"checkpoint: {name} differs from {tied[name]}, which it is tied to")
