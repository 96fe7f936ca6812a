"""glm4-9b: a causal decoder of 40 layers, 4096 wide, over 151552 tokens.

9,399,951,360 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
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


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x[2i], x[2i + 1]) by its angle: (B, H, S, 2R), two of (B, S, R) -> (B, H, S, 2R)."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)


def rotate_first_interleaved(width: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs of the first `width` coordinates and leaves the rest: (B, H, S, D) -> (B, H, S, D)."""
    return torch.cat((rotate_interleaved(x[..., :width], cos, sin), x[..., width:]), dim=-1)


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


def rotary_frequencies(theta: float, pairs: int, over: int) -> Tensor:
    """theta^(-2i/over) for i < pairs: the angle by which pair i turns from one position to the next."""
    return theta ** (-2 * torch.arange(pairs, dtype=torch.float32) / over)


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """32 query heads of 128 read 2 key-value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(4096, 4096)
        self.k = nn.Linear(4096, 256)
        self.v = nn.Linear(4096, 256)
        self.o = nn.Linear(4096, 4096, bias=False)

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        q_heads = self.q(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 32, S, 128)
        k_heads = self.k(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 2, S, 128)
        v_heads = self.v(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 2, S, 128)
        q_rotated = rotate_first_interleaved(64, q_heads, cos, sin)  # (B, 32, S, 128)
        k_rotated = rotate_first_interleaved(64, k_heads, cos, sin)  # (B, 2, S, 128)
        key = k_rotated if past is None else torch.cat((past[0], k_rotated), dim=2)  # (B, 2, T, 128)
        value = v_heads if past is None else torch.cat((past[1], v_heads), dim=2)  # (B, 2, T, 128)
        mixed = F.scaled_dot_product_attention(
            q_rotated, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )  # (B, 32, S, 128)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 4096)
        return o, (key, value) if use_cache else None


class MLP(nn.Module):
    """down(silu(gate x) * up x), 13696 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4096, 13696, bias=False)
        self.up = nn.Linear(4096, 13696, bias=False)
        self.down = nn.Linear(13696, 4096, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 13696)
        activated = F.silu(gate)  # (B, S, 13696)
        up = self.up(x)  # (B, S, 13696)
        gated = activated * up  # (B, S, 13696)
        down = self.down(gated)  # (B, S, 4096)
        return down


class Layer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(4096, eps=1.5625e-07)
        self.attention = Attention()
        self.mlp_norm = nn.RMSNorm(4096, eps=1.5625e-07)
        self.mlp = MLP()

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        attention_norm = self.attention_norm(x)  # (B, S, 4096)
        attention, present = self.attention(attention_norm, mask, cos, sin, past, use_cache)  # (B, S, 4096)
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


torch.export.register_dataclass(Output, serialized_type_name="glm4-9b.Output")


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 40 layers, 4096 wide, over 151552 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(151552, 4096)
        self.layers = nn.ModuleList([Layer() for _ in range(40)])
        self.final_norm = nn.RMSNorm(4096, eps=1.5625e-07)
        self.head = nn.Linear(4096, 151552, bias=False)
        self.register_buffer("rotary_frequencies", None, persistent=False)
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
        unmasked = attention_mask is None and past_key_values is None  # only later tokens are hidden
        if attention_mask is None:
            past_tokens = past_key_values[0][0].shape[2] if past_key_values else 0
            attention_mask = input_ids.new_ones(batch, past_tokens + tokens)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        pasts, present = past_key_values or 40 * (None,), []
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, T)
        mask = None if unmasked else visible(queries_at, keys_at)  # (B, 1, S, T)
        cos, sin = rotary_table(position_ids, self.rotary_frequencies)  # (B, S, 32)
        x = self.embedding(input_ids)  # (B, S, 4096)
        for layer, past in zip(layers, pasts, strict=True):
            x, cached = layer(x, mask, cos, sin, past, use_cache)  # (B, S, 4096)
            present.append(cached)
        x = self.final_norm(x)  # (B, S, 4096)
        logits = self.head(x[:, -logits_to_keep:])  # (B, S, 151552)
        loss = None
        if labels is not None:  # over the logits that are kept, in fp32; labels of -100 are ignored
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, -logits.shape[1] :][:, 1:].flatten())
        return Output(logits, tuple(present) if use_cache else None, loss)

    def reset_constants(self) -> None:
        """Computes the buffers anew, in fp32 whatever the parameters' type."""
        with self.embedding.weight.device:
            self.rotary_frequencies = rotary_frequencies(10000.0, pairs=32, over=64)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)
        self.reset_constants()  # a move may have rounded them or left them empty
        return self

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 80**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of glm."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = renamed(tensors, {name: name for name in CHECKPOINT}, [], layers=40)
        tensors = unpacked(tensors, model.state_dict(), CHECKPOINT, layers=40)
        model.load_state_dict({name: t.to(device, dtype, copy=True) for name, t in tensors.items()}, assign=True)
        model.reset_constants()
        return model


# The parameters in each tensor of a checkpoint, their groups, and whether it is transposed; {i} is the layer.
CHECKPOINT = {
    "model.embed_tokens.weight": (["embedding.weight"], 1, False),
    "model.norm.weight": (["final_norm.weight"], 1, False),
    "lm_head.weight": (["head.weight"], 1, False),
    "model.layers.{i}.input_layernorm.weight": (["layers.{i}.attention_norm.weight"], 1, False),
    "model.layers.{i}.self_attn.q_proj.weight": (["layers.{i}.attention.q.weight"], 1, False),
    "model.layers.{i}.self_attn.q_proj.bias": (["layers.{i}.attention.q.bias"], 1, False),
    "model.layers.{i}.self_attn.k_proj.weight": (["layers.{i}.attention.k.weight"], 1, False),
    "model.layers.{i}.self_attn.k_proj.bias": (["layers.{i}.attention.k.bias"], 1, False),
    "model.layers.{i}.self_attn.v_proj.weight": (["layers.{i}.attention.v.weight"], 1, False),
    "model.layers.{i}.self_attn.v_proj.bias": (["layers.{i}.attention.v.bias"], 1, False),
    "model.layers.{i}.self_attn.o_proj.weight": (["layers.{i}.attention.o.weight"], 1, False),
    "model.layers.{i}.post_attention_layernorm.weight": (["layers.{i}.mlp_norm.weight"], 1, False),
    "model.layers.{i}.mlp.gate_up_proj.weight": (
        ["layers.{i}.mlp.gate.weight", "layers.{i}.mlp.up.weight"],
        1,
        False,
    ),
    "model.layers.{i}.mlp.down_proj.weight": (["layers.{i}.mlp.down.weight"], 1, False),
}


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of the files of a folder, mapped into memory."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


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
