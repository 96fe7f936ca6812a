from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("blockc::grouped_linear", mutates_args=())
def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """weight[e] x for rows x (N, inputs), those of expert e before ends[e]: one node, however many rows each has."""
    return torch.cat(
        [F.linear(rows, w) for rows, w in zip(x.tensor_split(ends[:-1].long().cpu()), weight, strict=True)]
    )


@torch.library.custom_op("blockc::grouped_gradient", mutates_args=())
def grouped_gradient(x: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    """The gradient of the weight, (E, outputs, inputs)."""
    cut = ends[:-1].long().cpu()
    return torch.stack([g.T @ rows for g, rows in zip(gradient.tensor_split(cut), x.tensor_split(cut), strict=True)])


def keep_grouped(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def grouped_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight, ends = ctx.saved_tensors
    return grouped_linear(gradient, weight.mT, ends), grouped_gradient(x, gradient, ends), None


@grouped_linear.register_fake
def shape_of_grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@grouped_gradient.register_fake
def shape_of_gradient(x: Tensor, gradient: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], gradient.shape[1], x.shape[1])


grouped_linear.register_autograd(grouped_backward, setup_context=keep_grouped)


def expert_linear(x: Tensor, weight: Tensor, bias: Tensor | None, experts: Tensor, ends: Tensor) -> Tensor:
    """y = weight[e] x + bias[e] for each row: x (N, inputs), weight (E, outputs, inputs), experts (N) in order.

    ends (E) is the number of rows of expert e and all before it. torch's own grouped product takes no fp64 and no odd
    sizes, and is compiled in bf16 only.
    """
    compiled = torch.compiler.is_compiling() and x.dtype != torch.bfloat16
    odd = any(size * x.element_size() % 16 for size in weight.shape[1:])
    if compiled or odd or x.dtype == torch.float64:
        y = grouped_linear(x, weight, ends)
    else:
        y = F.grouped_mm(x, weight.mT, offs=ends)
    return y if bias is None else y + bias[experts]
