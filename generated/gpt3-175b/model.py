"""gpt3-175b: a causal decoder of 96 layers, 12288 wide, over 50257 tokens.

174,604,259,328 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Cache = tuple[Tensor, ...]  # the keys and values of a layer, each (B, heads, T, head_dim)


def query_positions(attention_mask: Tensor, tokens: int) -> Tensor:
    """The positions of the last `tokens` tokens; padding is not counted: (B, T) -> (B, tokens)."""
    new = torch.arange(tokens, device=attention_mask.device) + (attention_mask.shape[1] - tokens)
    return attention_mask.cumsum(1)[:, new] - 1


def key_positions(attention_mask: Tensor) -> Tensor:
    """The position of each token; padding is not counted, and gets one that no query reaches: (B, T) -> (B, T)."""
    return (attention_mask.cumsum(1) - 1).masked_fill(attention_mask == 0, 2**30)


def visible(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a query sees a key, itself and everything before it: (B, S), (B, T) -> (B, 1, S, T)."""
    return query_positions[:, None, :, None] >= key_positions[:, None, None, :]


class Attention(nn.Module):
    """96 heads of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(12288, 12288)
        self.k = nn.Linear(12288, 12288)
        self.v = nn.Linear(12288, 12288)
        self.o = nn.Linear(12288, 12288)

    def forward(
        self, x: Tensor, mask: Tensor | None, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        q_heads = self.q(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 96, S, 128)
        k_heads = self.k(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 96, S, 128)
        v_heads = self.v(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 96, S, 128)
        key = k_heads if past is None else torch.cat((past[0], k_heads), dim=2)  # (B, 96, T, 128)
        value = v_heads if past is None else torch.cat((past[1], v_heads), dim=2)  # (B, 96, T, 128)
        mixed = F.scaled_dot_product_attention(
            q_heads, key, value, attn_mask=mask, is_causal=mask is None
        )  # (B, 96, S, 128)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 12288)
        return o, (key, value) if use_cache else None


class MLP(nn.Module):
    """down(gelu_tanh(up x)), 49152 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(12288, 49152)
        self.down = nn.Linear(49152, 12288)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, S, 49152)
        activated = F.gelu(up, approximate="tanh")  # (B, S, 49152)
        down = self.down(activated)  # (B, S, 12288)
        return down


class Layer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(12288, eps=1e-05)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(12288, eps=1e-05)
        self.mlp = MLP()

    def forward(
        self, x: Tensor, mask: Tensor | None, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        attention_norm = self.attention_norm(x)  # (B, S, 12288)
        attention, present = self.attention(attention_norm, mask, past, use_cache)  # (B, S, 12288)
        after_attention = x + attention  # (B, S, 12288)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 12288)
        mlp = self.mlp(mlp_norm)  # (B, S, 12288)
        after_mlp = after_attention + mlp  # (B, S, 12288)
        return after_mlp, present


@dataclass
class Output:
    """logits (B, S, vocab); past_key_values for the next call, with use_cache; loss, with labels."""

    logits: Tensor
    past_key_values: tuple[Cache, ...] | None = None
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="gpt3-175b.Output")


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 96 layers, 12288 wide, over 50257 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50257, 12288)
        self.positions = nn.Embedding(2048, 12288)
        self.layers = nn.ModuleList([Layer() for _ in range(96)])
        self.final_norm = nn.LayerNorm(12288, eps=1e-05)
        self.head = nn.Linear(12288, 50257, bias=False)
        self.tie_weights()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: tuple[Cache, ...] | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        checkpoint_layers: bool = False,
    ) -> Output:
        """Logits of each new token, or of the last `logits_to_keep`; past_key_values for the next call if `use_cache`.

        attention_mask (B, T) is 0 at padding, on either side; position_ids (B, S) are by default counted from it;
        labels (B, S) are the tokens themselves; `checkpoint_layers` computes layers anew in the backward pass.
        """
        batch, tokens = input_ids.shape
        use_cache = use_cache or past_key_values is not None
        unmasked = attention_mask is None and past_key_values is None  # only later tokens are hidden
        if attention_mask is None:
            past_tokens = past_key_values[0][0].shape[2] if past_key_values else 0
            attention_mask = input_ids.new_ones(batch, past_tokens + tokens)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        pasts, present = past_key_values or 96 * (None,), []
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, T)
        mask = None if unmasked else visible(queries_at, keys_at)  # (B, 1, S, T)
        embedding = self.embedding(input_ids)  # (B, S, 12288)
        positions = self.positions(position_ids)  # (B, S, 12288)
        x = embedding + positions  # (B, S, 12288)
        for layer, past in zip(layers, pasts, strict=True):
            x, cached = layer(x, mask, past, use_cache)  # (B, S, 12288)
            present.append(cached)
        x = self.final_norm(x)  # (B, S, 12288)
        logits = self.head(x[:, -logits_to_keep:])  # (B, S, 50257)
        loss = None
        if labels is not None:  # over the logits that are kept, in fp32; labels of -100 are ignored
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, -logits.shape[1] :][:, 1:].flatten())
        return Output(logits, tuple(present) if use_cache else None, loss)

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
                module.weight.normal_(std=std / 192**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, under the names of its parameters."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = without_tied(tensors, {"head.weight": "embedding.weight"})
        names = model.state_dict().keys() - ["head.weight"]
        tensors = renamed(tensors, {name: name for name in names}, [], layers=1)
        tensors = {name: t.to(device, dtype, copy=True) for name, t in tensors.items()}
        tensors["head.weight"] = tensors["embedding.weight"]
        model.load_state_dict(tensors, assign=True)
        model.tie_weights()
        return model


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of the files of a folder, mapped into memory."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


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
