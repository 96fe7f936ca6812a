"""deepseek-v3: a causal decoder of 61 layers, 7168 wide, over 129280 tokens.

671,026,404,352 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Cache = tuple[Tensor, ...]  # the states of a layer


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x[2i], x[2i + 1]) by its angle: (B, H, S, 2R), two of (B, S, R) -> (B, H, S, 2R)."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)


class LatentAttention(nn.Module):
    """Attention whose keys and values are products of a latent c (B, T, rank): k_up c beside k_r, and v_up c.

    k_r (B, 1, T, rope) is one key that all heads share. Two orders of the products give the same numbers, and the one
    that multiplies less is taken: expanded makes the keys and values of all tokens, absorbed takes k_up into the
    queries and applies v_up to what comes out.
    """

    def __init__(self, heads: int, rank: int, nope: int, v_dim: int, scale: float) -> None:
        super().__init__()
        self.rank, self.made, self.scale = rank, nope + v_dim, scale
        self.k_up = nn.Parameter(torch.empty(heads * nope, rank))
        self.v_up = nn.Parameter(torch.empty(heads * v_dim, rank))
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.k_up, std=std)
        nn.init.normal_(self.v_up, std=std)

    def forward(
        self, c: Tensor, k_r: Tensor, q_n: Tensor, q_r: Tensor, mask: Tensor | None, is_causal: bool = False
    ) -> Tensor:
        tokens, keys = q_n.shape[2], c.shape[1]
        fewer = tokens * keys * (2 * self.rank - self.made) < (keys - tokens) * self.rank * self.made
        if mask is not None and (torch.compiler.is_exporting() or fewer):  # one exported program has all lengths
            return self.absorbed(c, k_r, q_n, q_r, mask)
        return self.expanded(c, k_r, torch.cat((q_n, q_r), dim=-1), mask, is_causal)

    def expanded(self, c: Tensor, k_r: Tensor, q: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        heads = q.shape[1]
        k, v = (F.linear(c, up).unflatten(2, (heads, -1)).transpose(1, 2) for up in (self.k_up, self.v_up))
        k = torch.cat((k, k_r.expand(-1, heads, -1, -1)), dim=-1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=self.scale)

    def absorbed(self, c: Tensor, k_r: Tensor, q_n: Tensor, q_r: Tensor, mask: Tensor) -> Tensor:
        """The queries of all heads are rows of one head, so that c and k_r are read once."""
        batch, heads, tokens, _ = q_n.shape
        k_up, v_up = (up.unflatten(0, (heads, -1)) for up in (self.k_up, self.v_up))
        q = torch.cat((q_n @ k_up, q_r), dim=-1).reshape(batch, 1, heads * tokens, -1)
        k, v, seen = torch.cat((c[:, None], k_r), dim=-1), c[:, None], mask.repeat(1, 1, heads, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=self.scale)
        return y.reshape(batch, heads, tokens, -1) @ v_up.mT


def at_least_fp32(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 as it is: a router that rounds chooses other experts."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class SelectionBias(nn.Module):
    """A number for each expert, added to its score for the choice alone. It is no parameter, and stays in fp32."""

    selection_bias: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("selection_bias", torch.zeros(count, dtype=torch.float32))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.selection_bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        kept = self.selection_bias
        super()._apply(fn, *args, **kwargs)
        if not kept.is_meta:  # a rounded bias chooses other experts
            self.selection_bias = kept.to(self.selection_bias.device)
        return self


def route_in_groups(
    scores: Tensor,
    active: int,
    normalise: bool,
    groups: int,
    active_groups: int,
    best: int,
    scale: float = 1.0,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The experts with the highest scores within the best groups, and their weights: (B, S, E) -> (B, S, active) twice.

    A group is as good as the sum of its `best` highest scores. A bias chooses and does not weigh.
    """
    choice = (scores if bias is None else scores + bias).unflatten(-1, (groups, -1))
    kept = choice.topk(best, dim=-1).values.sum(dim=-1).topk(active_groups, dim=-1).indices
    others = torch.ones(choice.shape[:-1], dtype=torch.bool, device=choice.device).scatter(-1, kept, False)
    choice = choice.masked_fill(others.unsqueeze(-1), float("-inf")).flatten(-2)
    experts = choice.topk(active, dim=-1).indices
    weights = scores.gather(-1, experts)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return experts, weights * scale


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return F.silu(gate) * up


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """weight[e] x for rows x (N, inputs), those of expert e before ends[e]."""
    rows = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([F.linear(part, w) for part, w in zip(rows, weight, strict=True)])


def grouped_gradient(x: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """The gradient of the weight, (E, outputs, inputs)."""
    cut = ends[:-1].long().cpu()
    return torch.stack([g.T @ rows for g, rows in zip(gradient.tensor_split(cut), x.tensor_split(cut), strict=True)])


def grouped_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight, ends = ctx.saved_tensors
    products = torch.ops.blockc
    return products.grouped_linear(gradient, weight.mT, ends), products.grouped_gradient(x, gradient, ends), None


def shape_of_grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


def shape_of_gradient(x: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], gradient.shape[1], x.shape[1])


def keep_operands(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def define_products() -> None:
    """Makes the two products operators of torch: each is one node of a compiled graph, however many rows experts have.

    Models of one process share them.
    """
    if hasattr(torch.ops.blockc, "grouped_linear"):
        return
    for name, second, function, shape in (
        ("blockc::grouped_linear", "weight", grouped_linear, shape_of_grouped),
        ("blockc::grouped_gradient", "gradient", grouped_gradient, shape_of_gradient),
    ):
        torch.library.define(name, f"(Tensor x, Tensor {second}, Tensor ends) -> Tensor")
        torch.library.impl(name, "default", function)
        torch.library.register_fake(name, shape)
    torch.library.register_autograd("blockc::grouped_linear", grouped_backward, setup_context=keep_operands)


define_products()


def expert_linear(x: Tensor, weight: Tensor, bias: Tensor | None, experts: Tensor, ends: Tensor) -> Tensor:
    """y = weight[e] x + bias[e] for each row: x (N, inputs), weight (E, outputs, inputs), experts (N) in order.

    ends (E) is the number of rows of expert e and all before it. torch's own grouped product takes no fp64 and no odd
    sizes, and is compiled in bf16 only.
    """
    compiled = torch.compiler.is_compiling() and x.dtype != torch.bfloat16
    odd = any(size * x.element_size() % 16 for size in weight.shape[1:])
    if compiled or odd or x.dtype == torch.float64:
        y = torch.ops.blockc.grouped_linear(x, weight, ends)
    else:
        y = F.grouped_mm(x, weight.mT, offs=ends)
    return y if bias is None else y + bias[experts]


class Experts(nn.Module):
    """y = sum of w * down_e(act(gate_e x, up_e x)) over the experts e of each token, w their weights."""

    def __init__(
        self, count: int, width: int, inner: int, act: Callable[[Tensor, Tensor], Tensor], bias: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.act = act
        self.gate = nn.Parameter(torch.empty(count, inner, width))
        self.up = nn.Parameter(torch.empty(count, inner, width))
        self.down = nn.Parameter(torch.empty(count, width, inner))
        for name, size in (("gate", inner), ("up", inner), ("down", width)):
            made = nn.Parameter(torch.empty(count, size)) if name in bias else None
            self.register_parameter(f"{name}_bias", made)
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02, last: float = 0.02) -> None:
        """Normal matrices, `last` for those into the residual stream, and zero biases."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=last if name == "down" else std)

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """x (B, S, width), experts and weights (B, S, k) -> (B, S, width)."""
        chosen, order = experts.flatten().sort(stable=True)  # pairs of a token and an expert, by expert
        count = torch.arange(len(self.up), device=x.device)
        ends = torch.searchsorted(chosen, count, right=True, out_int32=True)
        token = order // experts.shape[-1]
        read = x.flatten(0, 1)[token]
        gate = expert_linear(read, self.gate, self.gate_bias, chosen, ends)
        up = expert_linear(read, self.up, self.up_bias, chosen, ends)
        made = expert_linear(self.act(gate, up), self.down, self.down_bias, chosen, ends)
        made = made * weights.flatten()[order].unsqueeze(-1)  # and the sum, in the type of the weights
        return made.new_zeros(x.flatten(0, 1).shape).index_add(0, token, made).view_as(x).to(x.dtype)


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


def yarn_scaling(frequencies: Tensor, factor: float, first: float, last: float) -> Tensor:
    """Pairs up to `first` are kept, those from `last` on stretched by factor, others blended."""
    ramp = (torch.arange(len(frequencies), dtype=torch.float32) - first) / max(last - first, 1e-3)
    ramp = ramp.clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / factor * ramp


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """128 heads of 128 + 64 turned, keys and values made of 512."""

    def __init__(self) -> None:
        super().__init__()
        self.q_a = nn.Linear(7168, 1536, bias=False)
        self.q_a_norm = nn.RMSNorm(1536, eps=1e-06)
        self.q_b = nn.Linear(1536, 24576, bias=False)
        self.kv_a = nn.Linear(7168, 576, bias=False)
        self.kv_a_norm = nn.RMSNorm(512, eps=1e-06)
        self.mixed = LatentAttention(128, rank=512, nope=128, v_dim=128, scale=0.1352337788608801)
        self.o = nn.Linear(16384, 7168, bias=False)

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        q_a = self.q_a(x)  # (B, S, 1536)
        q_a_norm = self.q_a_norm(q_a)  # (B, S, 1536)
        q_heads = self.q_b(q_a_norm).unflatten(2, (-1, 192)).transpose(1, 2)  # (B, 128, S, 192)
        q_nope = q_heads[..., :128]  # (B, 128, S, 128)
        q_rope = q_heads[..., 128:192]  # (B, 128, S, 64)
        q_rotated = rotate_interleaved(q_rope, cos, sin)  # (B, 128, S, 64)
        kv_a = self.kv_a(x)  # (B, S, 576)
        kv_latent = kv_a[..., :512]  # (B, S, 512)
        kv_a_norm = self.kv_a_norm(kv_latent)  # (B, S, 512)
        k_rope = kv_a[..., 512:576]  # (B, S, 64)
        k_head = k_rope.unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 1, S, 64)
        k_rotated = rotate_interleaved(k_head, cos, sin)  # (B, 1, S, 64)
        latent = kv_a_norm if past is None else torch.cat((past[0], kv_a_norm), dim=1)  # (B, T, 512)
        key = k_rotated if past is None else torch.cat((past[1], k_rotated), dim=2)  # (B, 1, T, 64)
        mixed = self.mixed(latent, key, q_nope, q_rotated, mask, is_causal=mask is None)  # (B, 128, S, 128)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 7168)
        return o, (latent, key) if use_cache else None


class MLP(nn.Module):
    """down(silu(gate x) * up x), 18432 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(7168, 18432, bias=False)
        self.up = nn.Linear(7168, 18432, bias=False)
        self.down = nn.Linear(18432, 7168, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 18432)
        activated = F.silu(gate)  # (B, S, 18432)
        up = self.up(x)  # (B, S, 18432)
        gated = activated * up  # (B, S, 18432)
        down = self.down(gated)  # (B, S, 7168)
        return down


class Layer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(7168, eps=1e-06)
        self.attention = Attention()
        self.mlp_norm = nn.RMSNorm(7168, eps=1e-06)
        self.mlp = MLP()

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        attention_norm = self.attention_norm(x)  # (B, S, 7168)
        attention, present = self.attention(attention_norm, mask, cos, sin, past, use_cache)  # (B, S, 7168)
        after_attention = x + attention  # (B, S, 7168)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 7168)
        mlp = self.mlp(mlp_norm)  # (B, S, 7168)
        after_mlp = after_attention + mlp  # (B, S, 7168)
        return after_mlp, present


class SparseMLP(nn.Module):
    """down(silu(gate x) * up x), 2048 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(7168, 2048, bias=False)
        self.up = nn.Linear(7168, 2048, bias=False)
        self.down = nn.Linear(2048, 7168, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 2048)
        activated = F.silu(gate)  # (B, S, 2048)
        up = self.up(x)  # (B, S, 2048)
        gated = activated * up  # (B, S, 2048)
        down = self.down(gated)  # (B, S, 7168)
        return down


class MoE(nn.Module):
    """8 of 256 experts, each down(silu(gate x) * up x), 2048 wide, and one for all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(7168, 256, bias=False)
        self.route = SelectionBias(256)
        self.experts = Experts(256, 7168, 2048, swiglu)
        self.shared = SparseMLP()

    def forward(self, x: Tensor) -> Tensor:
        router = self.router(x)  # (B, S, 256)
        chosen, weights = route_in_groups(
            at_least_fp32(router).sigmoid(),
            active=8,
            normalise=True,
            scale=2.5,
            bias=self.route.selection_bias,
            groups=8,
            active_groups=4,
            best=2,
        )  # (B, S, 8)
        experts = self.experts(x, chosen, weights)  # (B, S, 7168)
        shared = self.shared(x)  # (B, S, 7168)
        with_shared = experts + shared  # (B, S, 7168)
        return with_shared


class SparseLayer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(7168, eps=1e-06)
        self.attention = Attention()
        self.mlp_norm = nn.RMSNorm(7168, eps=1e-06)
        self.mlp = MoE()

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        attention_norm = self.attention_norm(x)  # (B, S, 7168)
        attention, present = self.attention(attention_norm, mask, cos, sin, past, use_cache)  # (B, S, 7168)
        after_attention = x + attention  # (B, S, 7168)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 7168)
        mlp = self.mlp(mlp_norm)  # (B, S, 7168)
        after_mlp = after_attention + mlp  # (B, S, 7168)
        return after_mlp, present


@dataclass
class Output:
    """logits (B, S, vocab); past_key_values for the next call, with use_cache; loss, with labels."""

    logits: Tensor
    past_key_values: tuple[Cache, ...] | None = None
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="deepseek-v3.Output")


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 61 layers, 7168 wide, over 129280 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(129280, 7168)
        self.layers = nn.ModuleList([Layer() if i < 3 else SparseLayer() for i in range(61)])
        self.final_norm = nn.RMSNorm(7168, eps=1e-06)
        self.head = nn.Linear(7168, 129280, bias=False)
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
            past_tokens = past_key_values[0][0].shape[1] if past_key_values else 0
            attention_mask = input_ids.new_ones(batch, past_tokens + tokens)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        pasts, present = past_key_values or 61 * (None,), []
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, T)
        mask = None if unmasked else visible(queries_at, keys_at)  # (B, 1, S, T)
        cos, sin = rotary_table(position_ids, self.rotary_frequencies)  # (B, S, 32)
        x = self.embedding(input_ids)  # (B, S, 7168)
        for layer, past in zip(layers, pasts, strict=True):
            x, cached = layer(x, mask, cos, sin, past, use_cache)  # (B, S, 7168)
            present.append(cached)
        x = self.final_norm(x)  # (B, S, 7168)
        logits = self.head(x[:, -logits_to_keep:])  # (B, S, 129280)
        loss = None
        if labels is not None:  # over the logits that are kept, in fp32; labels of -100 are ignored
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, -logits.shape[1] :][:, 1:].flatten())
        return Output(logits, tuple(present) if use_cache else None, loss)

    def reset_constants(self) -> None:
        """Computes the buffers anew, in fp32 whatever the parameters' type."""
        with self.embedding.weight.device:
            self.rotary_frequencies = yarn_scaling(
                rotary_frequencies(10000.0, pairs=32, over=64),
                factor=40.0,
                first=10.0,
                last=23.0,
            )

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)
        self.reset_constants()  # a move may have rounded them or left them empty
        return self

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 122**0.5 if name.endswith((".down", ".o")) else std)
            elif isinstance(module, Experts):
                module.reset_parameters(std, last=std / 122**0.5)
            elif isinstance(module, LatentAttention):
                module.reset_parameters(std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of deepseek."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = without_further_layers(tensors, ["model.layers.{i}.eh_proj.weight"], layers=61)
        experts = load_experts(tensors, model.state_dict(), EXPERTS, dtype, device)
        tensors = renamed(tensors, {name: name for name in CHECKPOINT}, IGNORED, layers=61)
        tensors = unpacked(tensors, model.state_dict(), CHECKPOINT, layers=61)
        tensors = experts | moved(tensors, "selection_bias", dtype, device)
        model.load_state_dict(tensors, assign=True)
        model.reset_constants()
        return model


# The parameters in each tensor of a checkpoint, their groups, and whether it is transposed; {i} is the layer.
CHECKPOINT = {
    "model.embed_tokens.weight": (["embedding.weight"], 1, False),
    "model.norm.weight": (["final_norm.weight"], 1, False),
    "lm_head.weight": (["head.weight"], 1, False),
    "model.layers.{i}.input_layernorm.weight": (["layers.{i}.attention_norm.weight"], 1, False),
    "model.layers.{i}.self_attn.q_a_proj.weight": (["layers.{i}.attention.q_a.weight"], 1, False),
    "model.layers.{i}.self_attn.q_a_layernorm.weight": (["layers.{i}.attention.q_a_norm.weight"], 1, False),
    "model.layers.{i}.self_attn.q_b_proj.weight": (["layers.{i}.attention.q_b.weight"], 1, False),
    "model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight": (["layers.{i}.attention.kv_a.weight"], 1, False),
    "model.layers.{i}.self_attn.kv_a_layernorm.weight": (["layers.{i}.attention.kv_a_norm.weight"], 1, False),
    "model.layers.{i}.self_attn.kv_b_proj.weight": (
        ["layers.{i}.attention.mixed.k_up", "layers.{i}.attention.mixed.v_up"],
        128,
        False,
    ),
    "model.layers.{i}.self_attn.o_proj.weight": (["layers.{i}.attention.o.weight"], 1, False),
    "model.layers.{i}.post_attention_layernorm.weight": (["layers.{i}.mlp_norm.weight"], 1, False),
    "model.layers.3.mlp.gate.weight": (["layers.3.mlp.router.weight"], 1, False),
    "model.layers.4.mlp.gate.weight": (["layers.4.mlp.router.weight"], 1, False),
    "model.layers.5.mlp.gate.weight": (["layers.5.mlp.router.weight"], 1, False),
    "model.layers.6.mlp.gate.weight": (["layers.6.mlp.router.weight"], 1, False),
    "model.layers.7.mlp.gate.weight": (["layers.7.mlp.router.weight"], 1, False),
    "model.layers.8.mlp.gate.weight": (["layers.8.mlp.router.weight"], 1, False),
    "model.layers.9.mlp.gate.weight": (["layers.9.mlp.router.weight"], 1, False),
    "model.layers.10.mlp.gate.weight": (["layers.10.mlp.router.weight"], 1, False),
    "model.layers.11.mlp.gate.weight": (["layers.11.mlp.router.weight"], 1, False),
    "model.layers.12.mlp.gate.weight": (["layers.12.mlp.router.weight"], 1, False),
    "model.layers.13.mlp.gate.weight": (["layers.13.mlp.router.weight"], 1, False),
    "model.layers.14.mlp.gate.weight": (["layers.14.mlp.router.weight"], 1, False),
    "model.layers.15.mlp.gate.weight": (["layers.15.mlp.router.weight"], 1, False),
    "model.layers.16.mlp.gate.weight": (["layers.16.mlp.router.weight"], 1, False),
    "model.layers.17.mlp.gate.weight": (["layers.17.mlp.router.weight"], 1, False),
    "model.layers.18.mlp.gate.weight": (["layers.18.mlp.router.weight"], 1, False),
    "model.layers.19.mlp.gate.weight": (["layers.19.mlp.router.weight"], 1, False),
    "model.layers.20.mlp.gate.weight": (["layers.20.mlp.router.weight"], 1, False),
    "model.layers.21.mlp.gate.weight": (["layers.21.mlp.router.weight"], 1, False),
    "model.layers.22.mlp.gate.weight": (["layers.22.mlp.router.weight"], 1, False),
    "model.layers.23.mlp.gate.weight": (["layers.23.mlp.router.weight"], 1, False),
    "model.layers.24.mlp.gate.weight": (["layers.24.mlp.router.weight"], 1, False),
    "model.layers.25.mlp.gate.weight": (["layers.25.mlp.router.weight"], 1, False),
    "model.layers.26.mlp.gate.weight": (["layers.26.mlp.router.weight"], 1, False),
    "model.layers.27.mlp.gate.weight": (["layers.27.mlp.router.weight"], 1, False),
    "model.layers.28.mlp.gate.weight": (["layers.28.mlp.router.weight"], 1, False),
    "model.layers.29.mlp.gate.weight": (["layers.29.mlp.router.weight"], 1, False),
    "model.layers.30.mlp.gate.weight": (["layers.30.mlp.router.weight"], 1, False),
    "model.layers.31.mlp.gate.weight": (["layers.31.mlp.router.weight"], 1, False),
    "model.layers.32.mlp.gate.weight": (["layers.32.mlp.router.weight"], 1, False),
    "model.layers.33.mlp.gate.weight": (["layers.33.mlp.router.weight"], 1, False),
    "model.layers.34.mlp.gate.weight": (["layers.34.mlp.router.weight"], 1, False),
    "model.layers.35.mlp.gate.weight": (["layers.35.mlp.router.weight"], 1, False),
    "model.layers.36.mlp.gate.weight": (["layers.36.mlp.router.weight"], 1, False),
    "model.layers.37.mlp.gate.weight": (["layers.37.mlp.router.weight"], 1, False),
    "model.layers.38.mlp.gate.weight": (["layers.38.mlp.router.weight"], 1, False),
    "model.layers.39.mlp.gate.weight": (["layers.39.mlp.router.weight"], 1, False),
    "model.layers.40.mlp.gate.weight": (["layers.40.mlp.router.weight"], 1, False),
    "model.layers.41.mlp.gate.weight": (["layers.41.mlp.router.weight"], 1, False),
    "model.layers.42.mlp.gate.weight": (["layers.42.mlp.router.weight"], 1, False),
    "model.layers.43.mlp.gate.weight": (["layers.43.mlp.router.weight"], 1, False),
    "model.layers.44.mlp.gate.weight": (["layers.44.mlp.router.weight"], 1, False),
    "model.layers.45.mlp.gate.weight": (["layers.45.mlp.router.weight"], 1, False),
    "model.layers.46.mlp.gate.weight": (["layers.46.mlp.router.weight"], 1, False),
    "model.layers.47.mlp.gate.weight": (["layers.47.mlp.router.weight"], 1, False),
    "model.layers.48.mlp.gate.weight": (["layers.48.mlp.router.weight"], 1, False),
    "model.layers.49.mlp.gate.weight": (["layers.49.mlp.router.weight"], 1, False),
    "model.layers.50.mlp.gate.weight": (["layers.50.mlp.router.weight"], 1, False),
    "model.layers.51.mlp.gate.weight": (["layers.51.mlp.router.weight"], 1, False),
    "model.layers.52.mlp.gate.weight": (["layers.52.mlp.router.weight"], 1, False),
    "model.layers.53.mlp.gate.weight": (["layers.53.mlp.router.weight"], 1, False),
    "model.layers.54.mlp.gate.weight": (["layers.54.mlp.router.weight"], 1, False),
    "model.layers.55.mlp.gate.weight": (["layers.55.mlp.router.weight"], 1, False),
    "model.layers.56.mlp.gate.weight": (["layers.56.mlp.router.weight"], 1, False),
    "model.layers.57.mlp.gate.weight": (["layers.57.mlp.router.weight"], 1, False),
    "model.layers.58.mlp.gate.weight": (["layers.58.mlp.router.weight"], 1, False),
    "model.layers.59.mlp.gate.weight": (["layers.59.mlp.router.weight"], 1, False),
    "model.layers.60.mlp.gate.weight": (["layers.60.mlp.router.weight"], 1, False),
    "model.layers.3.mlp.gate.e_score_correction_bias": (["layers.3.mlp.route.selection_bias"], 1, False),
    "model.layers.4.mlp.gate.e_score_correction_bias": (["layers.4.mlp.route.selection_bias"], 1, False),
    "model.layers.5.mlp.gate.e_score_correction_bias": (["layers.5.mlp.route.selection_bias"], 1, False),
    "model.layers.6.mlp.gate.e_score_correction_bias": (["layers.6.mlp.route.selection_bias"], 1, False),
    "model.layers.7.mlp.gate.e_score_correction_bias": (["layers.7.mlp.route.selection_bias"], 1, False),
    "model.layers.8.mlp.gate.e_score_correction_bias": (["layers.8.mlp.route.selection_bias"], 1, False),
    "model.layers.9.mlp.gate.e_score_correction_bias": (["layers.9.mlp.route.selection_bias"], 1, False),
    "model.layers.10.mlp.gate.e_score_correction_bias": (["layers.10.mlp.route.selection_bias"], 1, False),
    "model.layers.11.mlp.gate.e_score_correction_bias": (["layers.11.mlp.route.selection_bias"], 1, False),
    "model.layers.12.mlp.gate.e_score_correction_bias": (["layers.12.mlp.route.selection_bias"], 1, False),
    "model.layers.13.mlp.gate.e_score_correction_bias": (["layers.13.mlp.route.selection_bias"], 1, False),
    "model.layers.14.mlp.gate.e_score_correction_bias": (["layers.14.mlp.route.selection_bias"], 1, False),
    "model.layers.15.mlp.gate.e_score_correction_bias": (["layers.15.mlp.route.selection_bias"], 1, False),
    "model.layers.16.mlp.gate.e_score_correction_bias": (["layers.16.mlp.route.selection_bias"], 1, False),
    "model.layers.17.mlp.gate.e_score_correction_bias": (["layers.17.mlp.route.selection_bias"], 1, False),
    "model.layers.18.mlp.gate.e_score_correction_bias": (["layers.18.mlp.route.selection_bias"], 1, False),
    "model.layers.19.mlp.gate.e_score_correction_bias": (["layers.19.mlp.route.selection_bias"], 1, False),
    "model.layers.20.mlp.gate.e_score_correction_bias": (["layers.20.mlp.route.selection_bias"], 1, False),
    "model.layers.21.mlp.gate.e_score_correction_bias": (["layers.21.mlp.route.selection_bias"], 1, False),
    "model.layers.22.mlp.gate.e_score_correction_bias": (["layers.22.mlp.route.selection_bias"], 1, False),
    "model.layers.23.mlp.gate.e_score_correction_bias": (["layers.23.mlp.route.selection_bias"], 1, False),
    "model.layers.24.mlp.gate.e_score_correction_bias": (["layers.24.mlp.route.selection_bias"], 1, False),
    "model.layers.25.mlp.gate.e_score_correction_bias": (["layers.25.mlp.route.selection_bias"], 1, False),
    "model.layers.26.mlp.gate.e_score_correction_bias": (["layers.26.mlp.route.selection_bias"], 1, False),
    "model.layers.27.mlp.gate.e_score_correction_bias": (["layers.27.mlp.route.selection_bias"], 1, False),
    "model.layers.28.mlp.gate.e_score_correction_bias": (["layers.28.mlp.route.selection_bias"], 1, False),
    "model.layers.29.mlp.gate.e_score_correction_bias": (["layers.29.mlp.route.selection_bias"], 1, False),
    "model.layers.30.mlp.gate.e_score_correction_bias": (["layers.30.mlp.route.selection_bias"], 1, False),
    "model.layers.31.mlp.gate.e_score_correction_bias": (["layers.31.mlp.route.selection_bias"], 1, False),
    "model.layers.32.mlp.gate.e_score_correction_bias": (["layers.32.mlp.route.selection_bias"], 1, False),
    "model.layers.33.mlp.gate.e_score_correction_bias": (["layers.33.mlp.route.selection_bias"], 1, False),
    "model.layers.34.mlp.gate.e_score_correction_bias": (["layers.34.mlp.route.selection_bias"], 1, False),
    "model.layers.35.mlp.gate.e_score_correction_bias": (["layers.35.mlp.route.selection_bias"], 1, False),
    "model.layers.36.mlp.gate.e_score_correction_bias": (["layers.36.mlp.route.selection_bias"], 1, False),
    "model.layers.37.mlp.gate.e_score_correction_bias": (["layers.37.mlp.route.selection_bias"], 1, False),
    "model.layers.38.mlp.gate.e_score_correction_bias": (["layers.38.mlp.route.selection_bias"], 1, False),
    "model.layers.39.mlp.gate.e_score_correction_bias": (["layers.39.mlp.route.selection_bias"], 1, False),
    "model.layers.40.mlp.gate.e_score_correction_bias": (["layers.40.mlp.route.selection_bias"], 1, False),
    "model.layers.41.mlp.gate.e_score_correction_bias": (["layers.41.mlp.route.selection_bias"], 1, False),
    "model.layers.42.mlp.gate.e_score_correction_bias": (["layers.42.mlp.route.selection_bias"], 1, False),
    "model.layers.43.mlp.gate.e_score_correction_bias": (["layers.43.mlp.route.selection_bias"], 1, False),
    "model.layers.44.mlp.gate.e_score_correction_bias": (["layers.44.mlp.route.selection_bias"], 1, False),
    "model.layers.45.mlp.gate.e_score_correction_bias": (["layers.45.mlp.route.selection_bias"], 1, False),
    "model.layers.46.mlp.gate.e_score_correction_bias": (["layers.46.mlp.route.selection_bias"], 1, False),
    "model.layers.47.mlp.gate.e_score_correction_bias": (["layers.47.mlp.route.selection_bias"], 1, False),
    "model.layers.48.mlp.gate.e_score_correction_bias": (["layers.48.mlp.route.selection_bias"], 1, False),
    "model.layers.49.mlp.gate.e_score_correction_bias": (["layers.49.mlp.route.selection_bias"], 1, False),
    "model.layers.50.mlp.gate.e_score_correction_bias": (["layers.50.mlp.route.selection_bias"], 1, False),
    "model.layers.51.mlp.gate.e_score_correction_bias": (["layers.51.mlp.route.selection_bias"], 1, False),
    "model.layers.52.mlp.gate.e_score_correction_bias": (["layers.52.mlp.route.selection_bias"], 1, False),
    "model.layers.53.mlp.gate.e_score_correction_bias": (["layers.53.mlp.route.selection_bias"], 1, False),
    "model.layers.54.mlp.gate.e_score_correction_bias": (["layers.54.mlp.route.selection_bias"], 1, False),
    "model.layers.55.mlp.gate.e_score_correction_bias": (["layers.55.mlp.route.selection_bias"], 1, False),
    "model.layers.56.mlp.gate.e_score_correction_bias": (["layers.56.mlp.route.selection_bias"], 1, False),
    "model.layers.57.mlp.gate.e_score_correction_bias": (["layers.57.mlp.route.selection_bias"], 1, False),
    "model.layers.58.mlp.gate.e_score_correction_bias": (["layers.58.mlp.route.selection_bias"], 1, False),
    "model.layers.59.mlp.gate.e_score_correction_bias": (["layers.59.mlp.route.selection_bias"], 1, False),
    "model.layers.60.mlp.gate.e_score_correction_bias": (["layers.60.mlp.route.selection_bias"], 1, False),
    "model.layers.3.mlp.shared_experts.gate_proj.weight": (["layers.3.mlp.shared.gate.weight"], 1, False),
    "model.layers.4.mlp.shared_experts.gate_proj.weight": (["layers.4.mlp.shared.gate.weight"], 1, False),
    "model.layers.5.mlp.shared_experts.gate_proj.weight": (["layers.5.mlp.shared.gate.weight"], 1, False),
    "model.layers.6.mlp.shared_experts.gate_proj.weight": (["layers.6.mlp.shared.gate.weight"], 1, False),
    "model.layers.7.mlp.shared_experts.gate_proj.weight": (["layers.7.mlp.shared.gate.weight"], 1, False),
    "model.layers.8.mlp.shared_experts.gate_proj.weight": (["layers.8.mlp.shared.gate.weight"], 1, False),
    "model.layers.9.mlp.shared_experts.gate_proj.weight": (["layers.9.mlp.shared.gate.weight"], 1, False),
    "model.layers.10.mlp.shared_experts.gate_proj.weight": (["layers.10.mlp.shared.gate.weight"], 1, False),
    "model.layers.11.mlp.shared_experts.gate_proj.weight": (["layers.11.mlp.shared.gate.weight"], 1, False),
    "model.layers.12.mlp.shared_experts.gate_proj.weight": (["layers.12.mlp.shared.gate.weight"], 1, False),
    "model.layers.13.mlp.shared_experts.gate_proj.weight": (["layers.13.mlp.shared.gate.weight"], 1, False),
    "model.layers.14.mlp.shared_experts.gate_proj.weight": (["layers.14.mlp.shared.gate.weight"], 1, False),
    "model.layers.15.mlp.shared_experts.gate_proj.weight": (["layers.15.mlp.shared.gate.weight"], 1, False),
    "model.layers.16.mlp.shared_experts.gate_proj.weight": (["layers.16.mlp.shared.gate.weight"], 1, False),
    "model.layers.17.mlp.shared_experts.gate_proj.weight": (["layers.17.mlp.shared.gate.weight"], 1, False),
    "model.layers.18.mlp.shared_experts.gate_proj.weight": (["layers.18.mlp.shared.gate.weight"], 1, False),
    "model.layers.19.mlp.shared_experts.gate_proj.weight": (["layers.19.mlp.shared.gate.weight"], 1, False),
    "model.layers.20.mlp.shared_experts.gate_proj.weight": (["layers.20.mlp.shared.gate.weight"], 1, False),
    "model.layers.21.mlp.shared_experts.gate_proj.weight": (["layers.21.mlp.shared.gate.weight"], 1, False),
    "model.layers.22.mlp.shared_experts.gate_proj.weight": (["layers.22.mlp.shared.gate.weight"], 1, False),
    "model.layers.23.mlp.shared_experts.gate_proj.weight": (["layers.23.mlp.shared.gate.weight"], 1, False),
    "model.layers.24.mlp.shared_experts.gate_proj.weight": (["layers.24.mlp.shared.gate.weight"], 1, False),
    "model.layers.25.mlp.shared_experts.gate_proj.weight": (["layers.25.mlp.shared.gate.weight"], 1, False),
    "model.layers.26.mlp.shared_experts.gate_proj.weight": (["layers.26.mlp.shared.gate.weight"], 1, False),
    "model.layers.27.mlp.shared_experts.gate_proj.weight": (["layers.27.mlp.shared.gate.weight"], 1, False),
    "model.layers.28.mlp.shared_experts.gate_proj.weight": (["layers.28.mlp.shared.gate.weight"], 1, False),
    "model.layers.29.mlp.shared_experts.gate_proj.weight": (["layers.29.mlp.shared.gate.weight"], 1, False),
    "model.layers.30.mlp.shared_experts.gate_proj.weight": (["layers.30.mlp.shared.gate.weight"], 1, False),
    "model.layers.31.mlp.shared_experts.gate_proj.weight": (["layers.31.mlp.shared.gate.weight"], 1, False),
    "model.layers.32.mlp.shared_experts.gate_proj.weight": (["layers.32.mlp.shared.gate.weight"], 1, False),
    "model.layers.33.mlp.shared_experts.gate_proj.weight": (["layers.33.mlp.shared.gate.weight"], 1, False),
    "model.layers.34.mlp.shared_experts.gate_proj.weight": (["layers.34.mlp.shared.gate.weight"], 1, False),
    "model.layers.35.mlp.shared_experts.gate_proj.weight": (["layers.35.mlp.shared.gate.weight"], 1, False),
    "model.layers.36.mlp.shared_experts.gate_proj.weight": (["layers.36.mlp.shared.gate.weight"], 1, False),
    "model.layers.37.mlp.shared_experts.gate_proj.weight": (["layers.37.mlp.shared.gate.weight"], 1, False),
    "model.layers.38.mlp.shared_experts.gate_proj.weight": (["layers.38.mlp.shared.gate.weight"], 1, False),
    "model.layers.39.mlp.shared_experts.gate_proj.weight": (["layers.39.mlp.shared.gate.weight"], 1, False),
    "model.layers.40.mlp.shared_experts.gate_proj.weight": (["layers.40.mlp.shared.gate.weight"], 1, False),
    "model.layers.41.mlp.shared_experts.gate_proj.weight": (["layers.41.mlp.shared.gate.weight"], 1, False),
    "model.layers.42.mlp.shared_experts.gate_proj.weight": (["layers.42.mlp.shared.gate.weight"], 1, False),
    "model.layers.43.mlp.shared_experts.gate_proj.weight": (["layers.43.mlp.shared.gate.weight"], 1, False),
    "model.layers.44.mlp.shared_experts.gate_proj.weight": (["layers.44.mlp.shared.gate.weight"], 1, False),
    "model.layers.45.mlp.shared_experts.gate_proj.weight": (["layers.45.mlp.shared.gate.weight"], 1, False),
    "model.layers.46.mlp.shared_experts.gate_proj.weight": (["layers.46.mlp.shared.gate.weight"], 1, False),
    "model.layers.47.mlp.shared_experts.gate_proj.weight": (["layers.47.mlp.shared.gate.weight"], 1, False),
    "model.layers.48.mlp.shared_experts.gate_proj.weight": (["layers.48.mlp.shared.gate.weight"], 1, False),
    "model.layers.49.mlp.shared_experts.gate_proj.weight": (["layers.49.mlp.shared.gate.weight"], 1, False),
    "model.layers.50.mlp.shared_experts.gate_proj.weight": (["layers.50.mlp.shared.gate.weight"], 1, False),
    "model.layers.51.mlp.shared_experts.gate_proj.weight": (["layers.51.mlp.shared.gate.weight"], 1, False),
    "model.layers.52.mlp.shared_experts.gate_proj.weight": (["layers.52.mlp.shared.gate.weight"], 1, False),
    "model.layers.53.mlp.shared_experts.gate_proj.weight": (["layers.53.mlp.shared.gate.weight"], 1, False),
    "model.layers.54.mlp.shared_experts.gate_proj.weight": (["layers.54.mlp.shared.gate.weight"], 1, False),
    "model.layers.55.mlp.shared_experts.gate_proj.weight": (["layers.55.mlp.shared.gate.weight"], 1, False),
    "model.layers.56.mlp.shared_experts.gate_proj.weight": (["layers.56.mlp.shared.gate.weight"], 1, False),
    "model.layers.57.mlp.shared_experts.gate_proj.weight": (["layers.57.mlp.shared.gate.weight"], 1, False),
    "model.layers.58.mlp.shared_experts.gate_proj.weight": (["layers.58.mlp.shared.gate.weight"], 1, False),
    "model.layers.59.mlp.shared_experts.gate_proj.weight": (["layers.59.mlp.shared.gate.weight"], 1, False),
    "model.layers.60.mlp.shared_experts.gate_proj.weight": (["layers.60.mlp.shared.gate.weight"], 1, False),
    "model.layers.3.mlp.shared_experts.up_proj.weight": (["layers.3.mlp.shared.up.weight"], 1, False),
    "model.layers.4.mlp.shared_experts.up_proj.weight": (["layers.4.mlp.shared.up.weight"], 1, False),
    "model.layers.5.mlp.shared_experts.up_proj.weight": (["layers.5.mlp.shared.up.weight"], 1, False),
    "model.layers.6.mlp.shared_experts.up_proj.weight": (["layers.6.mlp.shared.up.weight"], 1, False),
    "model.layers.7.mlp.shared_experts.up_proj.weight": (["layers.7.mlp.shared.up.weight"], 1, False),
    "model.layers.8.mlp.shared_experts.up_proj.weight": (["layers.8.mlp.shared.up.weight"], 1, False),
    "model.layers.9.mlp.shared_experts.up_proj.weight": (["layers.9.mlp.shared.up.weight"], 1, False),
    "model.layers.10.mlp.shared_experts.up_proj.weight": (["layers.10.mlp.shared.up.weight"], 1, False),
    "model.layers.11.mlp.shared_experts.up_proj.weight": (["layers.11.mlp.shared.up.weight"], 1, False),
    "model.layers.12.mlp.shared_experts.up_proj.weight": (["layers.12.mlp.shared.up.weight"], 1, False),
    "model.layers.13.mlp.shared_experts.up_proj.weight": (["layers.13.mlp.shared.up.weight"], 1, False),
    "model.layers.14.mlp.shared_experts.up_proj.weight": (["layers.14.mlp.shared.up.weight"], 1, False),
    "model.layers.15.mlp.shared_experts.up_proj.weight": (["layers.15.mlp.shared.up.weight"], 1, False),
    "model.layers.16.mlp.shared_experts.up_proj.weight": (["layers.16.mlp.shared.up.weight"], 1, False),
    "model.layers.17.mlp.shared_experts.up_proj.weight": (["layers.17.mlp.shared.up.weight"], 1, False),
    "model.layers.18.mlp.shared_experts.up_proj.weight": (["layers.18.mlp.shared.up.weight"], 1, False),
    "model.layers.19.mlp.shared_experts.up_proj.weight": (["layers.19.mlp.shared.up.weight"], 1, False),
    "model.layers.20.mlp.shared_experts.up_proj.weight": (["layers.20.mlp.shared.up.weight"], 1, False),
    "model.layers.21.mlp.shared_experts.up_proj.weight": (["layers.21.mlp.shared.up.weight"], 1, False),
    "model.layers.22.mlp.shared_experts.up_proj.weight": (["layers.22.mlp.shared.up.weight"], 1, False),
    "model.layers.23.mlp.shared_experts.up_proj.weight": (["layers.23.mlp.shared.up.weight"], 1, False),
    "model.layers.24.mlp.shared_experts.up_proj.weight": (["layers.24.mlp.shared.up.weight"], 1, False),
    "model.layers.25.mlp.shared_experts.up_proj.weight": (["layers.25.mlp.shared.up.weight"], 1, False),
    "model.layers.26.mlp.shared_experts.up_proj.weight": (["layers.26.mlp.shared.up.weight"], 1, False),
    "model.layers.27.mlp.shared_experts.up_proj.weight": (["layers.27.mlp.shared.up.weight"], 1, False),
    "model.layers.28.mlp.shared_experts.up_proj.weight": (["layers.28.mlp.shared.up.weight"], 1, False),
    "model.layers.29.mlp.shared_experts.up_proj.weight": (["layers.29.mlp.shared.up.weight"], 1, False),
    "model.layers.30.mlp.shared_experts.up_proj.weight": (["layers.30.mlp.shared.up.weight"], 1, False),
    "model.layers.31.mlp.shared_experts.up_proj.weight": (["layers.31.mlp.shared.up.weight"], 1, False),
    "model.layers.32.mlp.shared_experts.up_proj.weight": (["layers.32.mlp.shared.up.weight"], 1, False),
    "model.layers.33.mlp.shared_experts.up_proj.weight": (["layers.33.mlp.shared.up.weight"], 1, False),
    "model.layers.34.mlp.shared_experts.up_proj.weight": (["layers.34.mlp.shared.up.weight"], 1, False),
    "model.layers.35.mlp.shared_experts.up_proj.weight": (["layers.35.mlp.shared.up.weight"], 1, False),
    "model.layers.36.mlp.shared_experts.up_proj.weight": (["layers.36.mlp.shared.up.weight"], 1, False),
    "model.layers.37.mlp.shared_experts.up_proj.weight": (["layers.37.mlp.shared.up.weight"], 1, False),
    "model.layers.38.mlp.shared_experts.up_proj.weight": (["layers.38.mlp.shared.up.weight"], 1, False),
    "model.layers.39.mlp.shared_experts.up_proj.weight": (["layers.39.mlp.shared.up.weight"], 1, False),
    "model.layers.40.mlp.shared_experts.up_proj.weight": (["layers.40.mlp.shared.up.weight"], 1, False),
    "model.layers.41.mlp.shared_experts.up_proj.weight": (["layers.41.mlp.shared.up.weight"], 1, False),
    "model.layers.42.mlp.shared_experts.up_proj.weight": (["layers.42.mlp.shared.up.weight"], 1, False),
    "model.layers.43.mlp.shared_experts.up_proj.weight": (["layers.43.mlp.shared.up.weight"], 1, False),
    "model.layers.44.mlp.shared_experts.up_proj.weight": (["layers.44.mlp.shared.up.weight"], 1, False),
    "model.layers.45.mlp.shared_experts.up_proj.weight": (["layers.45.mlp.shared.up.weight"], 1, False),
    "model.layers.46.mlp.shared_experts.up_proj.weight": (["layers.46.mlp.shared.up.weight"], 1, False),
    "model.layers.47.mlp.shared_experts.up_proj.weight": (["layers.47.mlp.shared.up.weight"], 1, False),
    "model.layers.48.mlp.shared_experts.up_proj.weight": (["layers.48.mlp.shared.up.weight"], 1, False),
    "model.layers.49.mlp.shared_experts.up_proj.weight": (["layers.49.mlp.shared.up.weight"], 1, False),
    "model.layers.50.mlp.shared_experts.up_proj.weight": (["layers.50.mlp.shared.up.weight"], 1, False),
    "model.layers.51.mlp.shared_experts.up_proj.weight": (["layers.51.mlp.shared.up.weight"], 1, False),
    "model.layers.52.mlp.shared_experts.up_proj.weight": (["layers.52.mlp.shared.up.weight"], 1, False),
    "model.layers.53.mlp.shared_experts.up_proj.weight": (["layers.53.mlp.shared.up.weight"], 1, False),
    "model.layers.54.mlp.shared_experts.up_proj.weight": (["layers.54.mlp.shared.up.weight"], 1, False),
    "model.layers.55.mlp.shared_experts.up_proj.weight": (["layers.55.mlp.shared.up.weight"], 1, False),
    "model.layers.56.mlp.shared_experts.up_proj.weight": (["layers.56.mlp.shared.up.weight"], 1, False),
    "model.layers.57.mlp.shared_experts.up_proj.weight": (["layers.57.mlp.shared.up.weight"], 1, False),
    "model.layers.58.mlp.shared_experts.up_proj.weight": (["layers.58.mlp.shared.up.weight"], 1, False),
    "model.layers.59.mlp.shared_experts.up_proj.weight": (["layers.59.mlp.shared.up.weight"], 1, False),
    "model.layers.60.mlp.shared_experts.up_proj.weight": (["layers.60.mlp.shared.up.weight"], 1, False),
    "model.layers.3.mlp.shared_experts.down_proj.weight": (["layers.3.mlp.shared.down.weight"], 1, False),
    "model.layers.4.mlp.shared_experts.down_proj.weight": (["layers.4.mlp.shared.down.weight"], 1, False),
    "model.layers.5.mlp.shared_experts.down_proj.weight": (["layers.5.mlp.shared.down.weight"], 1, False),
    "model.layers.6.mlp.shared_experts.down_proj.weight": (["layers.6.mlp.shared.down.weight"], 1, False),
    "model.layers.7.mlp.shared_experts.down_proj.weight": (["layers.7.mlp.shared.down.weight"], 1, False),
    "model.layers.8.mlp.shared_experts.down_proj.weight": (["layers.8.mlp.shared.down.weight"], 1, False),
    "model.layers.9.mlp.shared_experts.down_proj.weight": (["layers.9.mlp.shared.down.weight"], 1, False),
    "model.layers.10.mlp.shared_experts.down_proj.weight": (["layers.10.mlp.shared.down.weight"], 1, False),
    "model.layers.11.mlp.shared_experts.down_proj.weight": (["layers.11.mlp.shared.down.weight"], 1, False),
    "model.layers.12.mlp.shared_experts.down_proj.weight": (["layers.12.mlp.shared.down.weight"], 1, False),
    "model.layers.13.mlp.shared_experts.down_proj.weight": (["layers.13.mlp.shared.down.weight"], 1, False),
    "model.layers.14.mlp.shared_experts.down_proj.weight": (["layers.14.mlp.shared.down.weight"], 1, False),
    "model.layers.15.mlp.shared_experts.down_proj.weight": (["layers.15.mlp.shared.down.weight"], 1, False),
    "model.layers.16.mlp.shared_experts.down_proj.weight": (["layers.16.mlp.shared.down.weight"], 1, False),
    "model.layers.17.mlp.shared_experts.down_proj.weight": (["layers.17.mlp.shared.down.weight"], 1, False),
    "model.layers.18.mlp.shared_experts.down_proj.weight": (["layers.18.mlp.shared.down.weight"], 1, False),
    "model.layers.19.mlp.shared_experts.down_proj.weight": (["layers.19.mlp.shared.down.weight"], 1, False),
    "model.layers.20.mlp.shared_experts.down_proj.weight": (["layers.20.mlp.shared.down.weight"], 1, False),
    "model.layers.21.mlp.shared_experts.down_proj.weight": (["layers.21.mlp.shared.down.weight"], 1, False),
    "model.layers.22.mlp.shared_experts.down_proj.weight": (["layers.22.mlp.shared.down.weight"], 1, False),
    "model.layers.23.mlp.shared_experts.down_proj.weight": (["layers.23.mlp.shared.down.weight"], 1, False),
    "model.layers.24.mlp.shared_experts.down_proj.weight": (["layers.24.mlp.shared.down.weight"], 1, False),
    "model.layers.25.mlp.shared_experts.down_proj.weight": (["layers.25.mlp.shared.down.weight"], 1, False),
    "model.layers.26.mlp.shared_experts.down_proj.weight": (["layers.26.mlp.shared.down.weight"], 1, False),
    "model.layers.27.mlp.shared_experts.down_proj.weight": (["layers.27.mlp.shared.down.weight"], 1, False),
    "model.layers.28.mlp.shared_experts.down_proj.weight": (["layers.28.mlp.shared.down.weight"], 1, False),
    "model.layers.29.mlp.shared_experts.down_proj.weight": (["layers.29.mlp.shared.down.weight"], 1, False),
    "model.layers.30.mlp.shared_experts.down_proj.weight": (["layers.30.mlp.shared.down.weight"], 1, False),
    "model.layers.31.mlp.shared_experts.down_proj.weight": (["layers.31.mlp.shared.down.weight"], 1, False),
    "model.layers.32.mlp.shared_experts.down_proj.weight": (["layers.32.mlp.shared.down.weight"], 1, False),
    "model.layers.33.mlp.shared_experts.down_proj.weight": (["layers.33.mlp.shared.down.weight"], 1, False),
    "model.layers.34.mlp.shared_experts.down_proj.weight": (["layers.34.mlp.shared.down.weight"], 1, False),
    "model.layers.35.mlp.shared_experts.down_proj.weight": (["layers.35.mlp.shared.down.weight"], 1, False),
    "model.layers.36.mlp.shared_experts.down_proj.weight": (["layers.36.mlp.shared.down.weight"], 1, False),
    "model.layers.37.mlp.shared_experts.down_proj.weight": (["layers.37.mlp.shared.down.weight"], 1, False),
    "model.layers.38.mlp.shared_experts.down_proj.weight": (["layers.38.mlp.shared.down.weight"], 1, False),
    "model.layers.39.mlp.shared_experts.down_proj.weight": (["layers.39.mlp.shared.down.weight"], 1, False),
    "model.layers.40.mlp.shared_experts.down_proj.weight": (["layers.40.mlp.shared.down.weight"], 1, False),
    "model.layers.41.mlp.shared_experts.down_proj.weight": (["layers.41.mlp.shared.down.weight"], 1, False),
    "model.layers.42.mlp.shared_experts.down_proj.weight": (["layers.42.mlp.shared.down.weight"], 1, False),
    "model.layers.43.mlp.shared_experts.down_proj.weight": (["layers.43.mlp.shared.down.weight"], 1, False),
    "model.layers.44.mlp.shared_experts.down_proj.weight": (["layers.44.mlp.shared.down.weight"], 1, False),
    "model.layers.45.mlp.shared_experts.down_proj.weight": (["layers.45.mlp.shared.down.weight"], 1, False),
    "model.layers.46.mlp.shared_experts.down_proj.weight": (["layers.46.mlp.shared.down.weight"], 1, False),
    "model.layers.47.mlp.shared_experts.down_proj.weight": (["layers.47.mlp.shared.down.weight"], 1, False),
    "model.layers.48.mlp.shared_experts.down_proj.weight": (["layers.48.mlp.shared.down.weight"], 1, False),
    "model.layers.49.mlp.shared_experts.down_proj.weight": (["layers.49.mlp.shared.down.weight"], 1, False),
    "model.layers.50.mlp.shared_experts.down_proj.weight": (["layers.50.mlp.shared.down.weight"], 1, False),
    "model.layers.51.mlp.shared_experts.down_proj.weight": (["layers.51.mlp.shared.down.weight"], 1, False),
    "model.layers.52.mlp.shared_experts.down_proj.weight": (["layers.52.mlp.shared.down.weight"], 1, False),
    "model.layers.53.mlp.shared_experts.down_proj.weight": (["layers.53.mlp.shared.down.weight"], 1, False),
    "model.layers.54.mlp.shared_experts.down_proj.weight": (["layers.54.mlp.shared.down.weight"], 1, False),
    "model.layers.55.mlp.shared_experts.down_proj.weight": (["layers.55.mlp.shared.down.weight"], 1, False),
    "model.layers.56.mlp.shared_experts.down_proj.weight": (["layers.56.mlp.shared.down.weight"], 1, False),
    "model.layers.57.mlp.shared_experts.down_proj.weight": (["layers.57.mlp.shared.down.weight"], 1, False),
    "model.layers.58.mlp.shared_experts.down_proj.weight": (["layers.58.mlp.shared.down.weight"], 1, False),
    "model.layers.59.mlp.shared_experts.down_proj.weight": (["layers.59.mlp.shared.down.weight"], 1, False),
    "model.layers.60.mlp.shared_experts.down_proj.weight": (["layers.60.mlp.shared.down.weight"], 1, False),
    "model.layers.0.mlp.gate_proj.weight": (["layers.0.mlp.gate.weight"], 1, False),
    "model.layers.1.mlp.gate_proj.weight": (["layers.1.mlp.gate.weight"], 1, False),
    "model.layers.2.mlp.gate_proj.weight": (["layers.2.mlp.gate.weight"], 1, False),
    "model.layers.0.mlp.up_proj.weight": (["layers.0.mlp.up.weight"], 1, False),
    "model.layers.1.mlp.up_proj.weight": (["layers.1.mlp.up.weight"], 1, False),
    "model.layers.2.mlp.up_proj.weight": (["layers.2.mlp.up.weight"], 1, False),
    "model.layers.0.mlp.down_proj.weight": (["layers.0.mlp.down.weight"], 1, False),
    "model.layers.1.mlp.down_proj.weight": (["layers.1.mlp.down.weight"], 1, False),
    "model.layers.2.mlp.down_proj.weight": (["layers.2.mlp.down.weight"], 1, False),
}
IGNORED = ["model.layers.{i}.self_attn.rotary_emb.inv_freq"]


# The parameters in each tensor of experts, their groups, whether it is transposed, its layers; {i} is the layer.
EXPERTS = [
    ("model.layers.{i}.mlp.experts.{e}.gate_proj.weight", ["layers.{i}.mlp.experts.gate"], 1, False, range(3, 61)),
    ("model.layers.{i}.mlp.experts.{e}.up_proj.weight", ["layers.{i}.mlp.experts.up"], 1, False, range(3, 61)),
    ("model.layers.{i}.mlp.experts.{e}.down_proj.weight", ["layers.{i}.mlp.experts.down"], 1, False, range(3, 61)),
]


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of the files of a folder, mapped into memory."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def without_further_layers(tensors: dict[str, Tensor], marks: list[str], layers: int) -> dict[str, Tensor]:
    """The tensors without those of layers after the last one; each such layer has a tensor of a name in `marks`."""
    for before, after in [mark.split("{i}") for mark in marks]:
        numbers = [n.removeprefix(before).removesuffix(after) for n in tensors if n.startswith(before)]
        further = tuple(f"{before}{i}." for i in numbers if i.isdigit() and int(i) >= layers)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(further)}
    return tensors


def load_experts(
    tensors: dict[str, Tensor],
    like: dict[str, Tensor],
    rows: list[tuple[str, list[str], int, bool, range | list[int]]],
    dtype: torch.dtype,
    device: str | torch.device,
) -> dict[str, Tensor]:
    """The parameters of all experts, each number copied once; their tensors leave `tensors`.

    A row is (a tensor's name, the parameters joined in it along axis 1, in how many groups, whether it is transposed,
    its layers). {i} is the layer, {e} the expert, whose tensor is a slice of the parameter.
    """

    def take(name: str, shape: tuple[int, ...], transposed: bool = False) -> Tensor:
        if name not in tensors:
            coded = ", whose codes in MXFP4 are not read here" if f"{name}_blocks" in tensors else ""
            raise KeyError(f"checkpoint: missing {name}{coded}")
        tensor = tensors.pop(name)
        tensor = tensor.mT if transposed else tensor
        if tensor.shape != shape:
            raise ValueError(f"checkpoint: {name} is {tuple(tensor.shape)}, wanted {tuple(shape)}")
        return tensor

    state = {}
    for name, targets, groups, transposed, i in [(*row[:4], i) for row in rows for i in row[4]]:
        paths = [target.format(i=i) for target in targets]
        wholes = [torch.empty(like[path].shape, dtype=dtype, device=device) for path in paths]
        state.update(zip(paths, wholes, strict=True))
        if "{e}" in name:
            for e, part in enumerate(wholes[0]):
                part.copy_(take(name.format(i=i, e=e), part.shape))
        else:
            count, _, *rest = wholes[0].shape
            tensor = take(name.format(i=i), (count, sum(whole.shape[1] for whole in wholes), *rest), transposed)
            parts = [whole.unflatten(1, (groups, -1)) for whole in wholes]
            joined = tensor.unflatten(1, (groups, -1)).split([part.shape[2] for part in parts], dim=2)
            for part, given in zip(parts, joined, strict=True):
                part.copy_(given)
    return state


def moved(tensors: dict[str, Tensor], exact: str, dtype: torch.dtype, device: str | torch.device) -> dict[str, Tensor]:
    """Copies on the device in a float type, but for those of the name `exact`, which stay in fp32."""
    types = {name: torch.float32 if name.endswith(exact) else dtype for name in tensors}
    return {name: tensor.to(device, types[name], copy=True) for name, tensor in tensors.items()}


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
