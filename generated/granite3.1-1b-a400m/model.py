"""granite3.1-1b-a400m: a causal decoder of 24 layers, 1024 wide, over 49155 tokens.

1,334,628,352 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
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

Cache = tuple[Tensor, ...]  # the keys and values of a layer, each (B, heads, T, head_dim)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x[i], x[i + R]) by its angle: (B, H, S, 2R), two of (B, S, R) -> (B, H, S, 2R)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def at_least_fp32(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 as it is: a router that rounds chooses other experts."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def route(
    scores: Tensor, active: int, normalise: bool, scale: float = 1.0, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The experts with the highest scores and their weights: (B, S, E) -> (B, S, active) and (B, S, active).

    A bias chooses and does not weigh.
    """
    choice = scores if bias is None else scores + bias
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


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """16 query heads of 64 read 8 key-value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(1024, 1024, bias=False)
        self.k = nn.Linear(1024, 512, bias=False)
        self.v = nn.Linear(1024, 512, bias=False)
        self.o = nn.Linear(1024, 1024, bias=False)

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        q_heads = self.q(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 16, S, 64)
        k_heads = self.k(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 8, S, 64)
        v_heads = self.v(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 8, S, 64)
        q_rotated = rotate(q_heads, cos, sin)  # (B, 16, S, 64)
        k_rotated = rotate(k_heads, cos, sin)  # (B, 8, S, 64)
        key = k_rotated if past is None else torch.cat((past[0], k_rotated), dim=2)  # (B, 8, T, 64)
        value = v_heads if past is None else torch.cat((past[1], v_heads), dim=2)  # (B, 8, T, 64)
        mixed = F.scaled_dot_product_attention(
            q_rotated, key, value, attn_mask=mask, is_causal=mask is None, scale=0.015625, enable_gqa=True
        )  # (B, 16, S, 64)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 1024)
        return o, (key, value) if use_cache else None


class MoE(nn.Module):
    """8 of 32 experts, each down(silu(gate x) * up x), 512 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(1024, 32, bias=False)
        self.experts = Experts(32, 1024, 512, swiglu)

    def forward(self, x: Tensor) -> Tensor:
        router = self.router(x)  # (B, S, 32)
        chosen, weights = route(at_least_fp32(router).softmax(dim=-1), active=8, normalise=True)  # (B, S, 8)
        experts = self.experts(x, chosen, weights)  # (B, S, 1024)
        return experts


class Layer(nn.Module):
    """x = x + 0.22 * attention(attention_norm(x)); x = x + 0.22 * mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(1024, eps=1e-06)
        self.attention = Attention()
        self.mlp_norm = nn.RMSNorm(1024, eps=1e-06)
        self.mlp = MoE()

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        attention_norm = self.attention_norm(x)  # (B, S, 1024)
        attention, present = self.attention(attention_norm, mask, cos, sin, past, use_cache)  # (B, S, 1024)
        scaled_attention = attention * 0.22  # (B, S, 1024)
        after_attention = x + scaled_attention  # (B, S, 1024)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 1024)
        mlp = self.mlp(mlp_norm)  # (B, S, 1024)
        scaled_mlp = mlp * 0.22  # (B, S, 1024)
        after_mlp = after_attention + scaled_mlp  # (B, S, 1024)
        return after_mlp, present


@dataclass
class Output:
    """logits (B, S, vocab); past_key_values for the next call, with use_cache; loss, with labels."""

    logits: Tensor
    past_key_values: tuple[Cache, ...] | None = None
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="granite3.1-1b-a400m.Output")


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 24 layers, 1024 wide, over 49155 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(49155, 1024)
        self.layers = nn.ModuleList([Layer() for _ in range(24)])
        self.final_norm = nn.RMSNorm(1024, eps=1e-06)
        self.head = nn.Linear(1024, 49155, bias=False)
        self.tie_weights()
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
        pasts, present = past_key_values or 24 * (None,), []
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, T)
        mask = None if unmasked else visible(queries_at, keys_at)  # (B, 1, S, T)
        cos, sin = rotary_table(position_ids, self.rotary_frequencies)  # (B, S, 32)
        embedding = self.embedding(input_ids)  # (B, S, 1024)
        x = embedding * 12.0  # (B, S, 1024)
        for layer, past in zip(layers, pasts, strict=True):
            x, cached = layer(x, mask, cos, sin, past, use_cache)  # (B, S, 1024)
            present.append(cached)
        x = self.final_norm(x)  # (B, S, 1024)
        logits = self.head(x[:, -logits_to_keep:])  # (B, S, 49155)
        logits = logits * 36**-0.5  # (B, S, 49155)
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
            self.rotary_frequencies = rotary_frequencies(1500000.0, pairs=32, over=64)

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
                module.weight.normal_(std=std / 48**0.5 if name.endswith(".o") else std)
            elif isinstance(module, Experts):
                module.reset_parameters(std, last=std / 48**0.5)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of granite-moe."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = without_tied(tensors, TIED)
        experts = load_experts(tensors, model.state_dict(), EXPERTS, dtype, device)
        tensors = renamed(tensors, CHECKPOINT, [], layers=24)
        tensors = experts | {name: t.to(device, dtype, copy=True) for name, t in tensors.items()}
        tensors["head.weight"] = tensors["embedding.weight"]
        model.load_state_dict(tensors, assign=True)
        model.tie_weights()
        model.reset_constants()
        return model


# The parameter that each tensor of a checkpoint is; {i} is the layer.
CHECKPOINT = {
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "final_norm.weight",
    "model.layers.{i}.input_layernorm.weight": "layers.{i}.attention_norm.weight",
    "model.layers.{i}.self_attn.q_proj.weight": "layers.{i}.attention.q.weight",
    "model.layers.{i}.self_attn.k_proj.weight": "layers.{i}.attention.k.weight",
    "model.layers.{i}.self_attn.v_proj.weight": "layers.{i}.attention.v.weight",
    "model.layers.{i}.self_attn.o_proj.weight": "layers.{i}.attention.o.weight",
    "model.layers.{i}.post_attention_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "model.layers.{i}.block_sparse_moe.router.layer.weight": "layers.{i}.mlp.router.weight",
    "model.layers.{i}.block_sparse_moe.output_linear.weight": "layers.{i}.mlp.experts.down",
}
TIED = {"lm_head.weight": "model.embed_tokens.weight"}


# The parameters in each tensor of experts, their groups, whether it is transposed, its layers; {i} is the layer.
EXPERTS = [
    (
        "model.layers.{i}.block_sparse_moe.input_linear.weight",
        ["layers.{i}.mlp.experts.gate", "layers.{i}.mlp.experts.up"],
        1,
        False,
        range(24),
    ),
]


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


def renamed(tensors: dict[str, Tensor], names: dict[str, str], ignored: list[str], layers: int) -> dict[str, Tensor]:
    """The tensors under the model's names; {i} is the layer. Tensors in `ignored` may be present."""
    table = {name.format(i=i): to.format(i=i) for name, to in names.items() for i in range(layers)}
    others = {name.format(i=i) for name in ignored for i in range(layers)}
    missing, unknown = sorted(table.keys() - tensors.keys()), sorted(tensors.keys() - table.keys() - others)
    if missing or unknown:
        raise KeyError(f"checkpoint: missing {missing or 'nothing'}, not known {unknown or 'nothing'}")
    return {to: tensors[name] for name, to in table.items()}
