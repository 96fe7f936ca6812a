from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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
