"""Fuses a norm with the addition before it, and an activation with the bias before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from blockc.ir import Node, Param, Value, node
from blockc.ir.derive import SkippedNode
from blockc.ops import Add, Gelu, GeluTanh, LayerNorm, Linear, RmsNorm
from blockc.ort.fuse.rewrite import Rewrite
from blockc.ort.kernels import why_no_kernel
from blockc.ort.ops import BiasedGelu, SkipNorm


def fuse_norms(rewrite: Rewrite) -> None:
    """Fuses each addition with the first norm that reads it."""
    for n in rewrite.old.nodes:
        if not isinstance(n.op, RmsNorm | LayerNorm):
            continue
        added = n.inputs[0].node
        if n in rewrite.gone:  # a norm of heads, already fused with its attention
            continue
        if not isinstance(added.op, Add):
            rewrite.left.append(SkippedNode(n.name, "no addition comes before it"))
        elif added in rewrite.plans:
            rewrite.left.append(SkippedNode(n.name, "another norm of the same sum has the kernel"))
        elif why := why_no_kernel(rewrite.target, SkipNorm(n.op).kernel):
            rewrite.left.append(SkippedNode(n.name, why))
        else:
            rewrite.plans[added] = _plan_skip_norm(rewrite, added, n)
            rewrite.gone.add(n)


def _plan_skip_norm(rewrite: Rewrite, added: Node, norm: Node) -> Callable[[], None]:
    """The bias of a linear is fused too, if the linear is an operand of the sum that nothing else reads."""
    first, second = added.inputs
    biased = _find_biased_linear(rewrite, second) or _find_biased_linear(rewrite, first)
    if biased is not None:
        rewrite.gone.add(biased)

    def make() -> None:
        assert isinstance(norm.op, RmsNorm | LayerNorm)
        bias: tuple[Param, ...] = ()
        operands = [first, second]
        if biased is not None:
            operands = [second if biased is first.node else first]
            bias = biased.params[1:]
        values = [*rewrite.map_values(*operands), *([_drop_bias(rewrite, biased)] if biased else [])]
        op = SkipNorm(norm.op, bool(bias))
        made = node(op, *values, name=norm.name, params=(*norm.params, *bias), place=norm.place)
        rewrite.new.update({norm[0]: made[0], added[0]: made[1]})

    return make


def fuse_activations(rewrite: Rewrite) -> None:
    """Fuses GELU with the bias of the linear before it."""
    for n in rewrite.old.nodes:
        if isinstance(n.op, Gelu | GeluTanh) and (linear := _find_biased_linear(rewrite, n.inputs[0])) is not None:
            op = BiasedGelu(n.op, linear.params[1].shape[0])
            if why := why_no_kernel(rewrite.target, op.kernel):
                rewrite.left.append(SkippedNode(n.name, why))
            else:
                rewrite.gone.add(linear)
                rewrite.plans[n] = _plan_biased_gelu(rewrite, n, linear, op)


def _plan_biased_gelu(rewrite: Rewrite, gelu: Node, linear: Node, op: BiasedGelu) -> Callable[[], None]:
    def make() -> None:
        made = node(op, _drop_bias(rewrite, linear), name=gelu.name, params=linear.params[1:], place=gelu.place)
        rewrite.new[gelu[0]] = made[0]

    return make


def _find_biased_linear(rewrite: Rewrite, value: Value) -> Node | None:
    """The linear with a bias whose output is this value, if it is read once."""
    n = value.node
    return n if isinstance(n.op, Linear) and n.op.bias and rewrite.only_user(value) is not None else None


def _drop_bias(rewrite: Rewrite, linear: Node) -> Value:
    assert isinstance(linear.op, Linear)
    op = replace(linear.op, bias=False)
    return node(
        op, *rewrite.map_values(*linear.inputs), name=linear.name, params=linear.params[:1], place=linear.place
    )[0]
