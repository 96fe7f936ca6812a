"""mpt-7b: a causal decoder of 32 layers, 4096 wide, over 50432 tokens.

6,649,286,656 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

import math
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


def alibi_slopes(heads: int, max_bias: float) -> Tensor:
    """2^(-max_bias h/n) for h = 1, ..., n, n the next power of two; if above heads, even h come first: (heads,)."""
    n = 2 ** math.ceil(math.log2(heads))
    slopes = 2 ** (-max_bias * torch.arange(1, n + 1, dtype=torch.float32) / n)
    return slopes if n == heads else torch.cat((slopes[1::2], slopes[::2]))[:heads]


def alibi(mask: Tensor, query_positions: Tensor, key_positions: Tensor, slopes: Tensor) -> Tensor:
    """-slope * distance of each key that a query sees, else -inf, in fp32: (B, S), (B, T) -> (B, heads, S, T)."""
    distance = query_positions[:, None, :, None] - key_positions[:, None, None, :]
    return (-slopes[:, None, None] * distance).masked_fill(~mask, float("-inf"))


class Attention(nn.Module):
    """32 heads of 128, scores lowered by distance."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(4096, 4096, bias=False)
        self.k = nn.Linear(4096, 4096, bias=False)
        self.v = nn.Linear(4096, 4096, bias=False)
        self.o = nn.Linear(4096, 4096, bias=False)

    def forward(self, x: Tensor, bias: Tensor, past: Cache | None, use_cache: bool) -> tuple[Tensor, Cache | None]:
        q_heads = self.q(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 32, S, 128)
        k_heads = self.k(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 32, S, 128)
        v_heads = self.v(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 32, S, 128)
        key = k_heads if past is None else torch.cat((past[0], k_heads), dim=2)  # (B, 32, T, 128)
        value = v_heads if past is None else torch.cat((past[1], v_heads), dim=2)  # (B, 32, T, 128)
        mixed = F.scaled_dot_product_attention(q_heads, key, value, attn_mask=bias.to(q_heads.dtype))  # (B, 32, S, 128)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 4096)
        return o, (key, value) if use_cache else None


class MLP(nn.Module):
    """down(gelu(up x)), 16384 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4096, 16384, bias=False)
        self.down = nn.Linear(16384, 4096, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, S, 16384)
        activated = F.gelu(up)  # (B, S, 16384)
        down = self.down(activated)  # (B, S, 4096)
        return down


class Layer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(4096, eps=1e-05, bias=False)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(4096, eps=1e-05, bias=False)
        self.mlp = MLP()

    def forward(self, x: Tensor, bias: Tensor, past: Cache | None, use_cache: bool) -> tuple[Tensor, Cache | None]:
        attention_norm = self.attention_norm(x)  # (B, S, 4096)
        attention, present = self.attention(attention_norm, bias, past, use_cache)  # (B, S, 4096)
        after_attention = x + attention  # (B, S, 4096)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 4096)
        mlp = self.mlp(mlp_norm)  # (B, S, 4096)
        after_mlp = after_attention + mlp  # (B, S, 4096)
        return after_mlp, present


@dataclass
class Output:
    """logits (B, S, vocab); past_key_values for the next call, with use_cache; loss, with labels."""

    logits: Tensor
    past_key_values: tuple[Cache, ...] | None = None
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="mpt-7b.Output")


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 32 layers, 4096 wide, over 50432 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50432, 4096)
        self.layers = nn.ModuleList([Layer() for _ in range(32)])
        self.final_norm = nn.LayerNorm(4096, eps=1e-05, bias=False)
        self.head = nn.Linear(4096, 50432, bias=False)
        self.tie_weights()
        self.register_buffer("bias_slopes", None, persistent=False)
        self.reset_constants()

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
        if attention_mask is None:
            past_tokens = past_key_values[0][0].shape[2] if past_key_values else 0
            attention_mask = input_ids.new_ones(batch, past_tokens + tokens)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        pasts, present = past_key_values or 32 * (None,), []
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        keys_at = key_positions(attention_mask)  # (B, T)
        bias = alibi(visible(queries_at, keys_at), queries_at, keys_at, self.bias_slopes)  # (B, 32, S, T)
        x = self.embedding(input_ids)  # (B, S, 4096)
        for layer, past in zip(layers, pasts, strict=True):
            x, cached = layer(x, bias, past, use_cache)  # (B, S, 4096)
            present.append(cached)
        x = self.final_norm(x)  # (B, S, 4096)
        logits = self.head(x[:, -logits_to_keep:])  # (B, S, 50432)
        loss = None
        if labels is not None:  # over the logits that are kept, in fp32; labels of -100 are ignored
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, -logits.shape[1] :][:, 1:].flatten())
        return Output(logits, tuple(present) if use_cache else None, loss)

    def tie_weights(self) -> None:
        """Makes both names one tensor again."""
        self.head.weight = self.embedding.weight

    def reset_constants(self) -> None:
        """Computes the buffers anew, in fp32 whatever the parameters' type."""
        with self.embedding.weight.device:
            self.bias_slopes = alibi_slopes(32, 8.0)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        tied = self.head.weight is self.embedding.weight
        super()._apply(*args, **kwargs)
        if tied and self.head.weight is not self.embedding.weight:  # a move may give each name a tensor of its own
            self.tie_weights()
        self.reset_constants()  # a move may have rounded them or left them empty
        return self

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        self.tie_weights()
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 64**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of mpt."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = without_tied(tensors, TIED)
        tensors = renamed(tensors, {name: name for name in CHECKPOINT}, [], layers=32)
        tensors = unpacked(tensors, model.state_dict(), CHECKPOINT, layers=32)
        tensors = {name: t.to(device, dtype, copy=True) for name, t in tensors.items()}
        tensors["head.weight"] = tensors["embedding.weight"]
        model.load_state_dict(tensors, assign=True)
        model.tie_weights()
        model.reset_constants()
        return model


# The parameters in each tensor of a checkpoint, their groups, and whether it is transposed; {i} is the layer.
CHECKPOINT = {
    "transformer.wte.weight": (["embedding.weight"], 1, False),
    "transformer.norm_f.weight": (["final_norm.weight"], 1, False),
    "transformer.blocks.{i}.norm_1.weight": (["layers.{i}.attention_norm.weight"], 1, False),
    "transformer.blocks.{i}.attn.Wqkv.weight": (
        ["layers.{i}.attention.q.weight", "layers.{i}.attention.k.weight", "layers.{i}.attention.v.weight"],
        1,
        False,
    ),
    "transformer.blocks.{i}.attn.out_proj.weight": (["layers.{i}.attention.o.weight"], 1, False),
    "transformer.blocks.{i}.norm_2.weight": (["layers.{i}.mlp_norm.weight"], 1, False),
    "transformer.blocks.{i}.ffn.up_proj.weight": (["layers.{i}.mlp.up.weight"], 1, False),
    "transformer.blocks.{i}.ffn.down_proj.weight": (["layers.{i}.mlp.down.weight"], 1, False),
}
TIED = {"lm_head.weight": "transformer.wte.weight"}


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


def unpacked(
    tensors: dict[str, Tensor], like: dict[str, Tensor], rows: dict[str, tuple[list[str], int, bool]], layers: int
) -> dict[str, Tensor]:
    """The tensors under the model's names, by (the names packed in each, in how many groups, whether transposed).

    Within each group the parameters' rows follow one another: groups 1 is stacked, groups heads is head by head.
    """
    state = {}
    for name, i in [(name, i) for name in rows for i in range(layers)]:
        (targets, groups, transposed), tensor = rows[name], tensors[name.format(i=i)]
        targets = [target.format(i=i) for target in targets]
        tensor = tensor.T if transposed and tensor.dim() == 2 else tensor
        shapes = [tuple(like[target].shape) for target in targets]
        shape = (sum(each[0] for each in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]
        if tensor.shape != shape:
            raise ValueError(f"checkpoint: {name.format(i=i)} is {tuple(tensor.shape)}, wanted {shape}")
        parts = [tensor]
        if len(shapes) > 1:
            parts = tensor.unflatten(0, (groups, -1)).split([each[0] // groups for each in shapes], dim=1)
            parts = [part.flatten(0, 1) for part in parts]
        state.update({target: part.contiguous() for target, part in zip(targets, parts, strict=True)})
    return state
