"""Fuses the choice of experts with the experts themselves."""

from __future__ import annotations

from collections.abc import Callable

from blockc.ir import Node, Param, Value, node
from blockc.ir.derive import SkippedNode
from blockc.ops import Experts, Route
from blockc.ort.fuse.rewrite import Mismatch, Rewrite
from blockc.ort.kernels import has_kernel
from blockc.ort.ops import ChoiceLogits, RoutedExperts, WeightSum, why_no_moe

LINKED = "its kernel reads gate and up as one matrix, their rows in turn, and linked weights are not copied"


def fuse_experts(rewrite: Rewrite) -> None:
    """Fuses each mixture of experts that the kernel computes."""
    for n in rewrite.old.nodes:
        if isinstance(n.op, Experts):
            try:
                rewrite.plans[n] = _plan(rewrite, n, n.op)
            except Mismatch as why:
                rewrite.left.append(SkippedNode(n.name, str(why)))


def _plan(rewrite: Rewrite, n: Node, experts: Experts) -> Callable[[], None]:
    """Raises Mismatch for what the kernel does not take."""
    if not has_kernel(rewrite.target, RoutedExperts.kernel):
        raise Mismatch(f"{RoutedExperts.kernel} is used on the CPU in fp32 alone")
    if why := why_no_moe(experts):
        raise Mismatch(why)
    if experts.gated and not rewrite.target.packed:
        raise Mismatch(LINKED)
    route = n.inputs[1].node
    if not isinstance(route.op, Route) or n.inputs[2].node is not route:
        raise Mismatch("no choice of experts comes before it")
    op = route.op

    def make() -> None:
        x = rewrite.map_values(n.inputs[0])
        if op.by_logits:  # the kernel makes this choice
            fused = RoutedExperts(experts, op.active, op.normalise, op.scale)
            routed = (*x, *rewrite.map_values(route.inputs[0]))
        elif op.normalise:
            fused = RoutedExperts(experts, op.active, scale=op.scale)
            routed = (*x, _choice_logits(rewrite, route, op))
        else:  # the sum of its weights has the scale in it
            fused = RoutedExperts(experts, op.active)
            routed = (*x, _choice_logits(rewrite, route, op), _sum_weights(rewrite, n))
        made = node(fused, *routed, name=n.name, params=_derive(rewrite, n, fused), place=n.place)
        rewrite.new[n[0]] = made[0]

    return make


def _choice_logits(rewrite: Rewrite, route: Node, op: Route) -> Value:
    """Logits by which the kernel makes a choice that is not its own."""
    chosen = rewrite.map_values(route[0], route[1])
    return node(ChoiceLogits(op.count), *chosen, name=f"{route.name}.logits", place=route.place)[0]


def _sum_weights(rewrite: Rewrite, n: Node) -> Value:
    """What the kernel divides the weights by, and y is multiplied by again."""
    weights = rewrite.map_values(n.inputs[2])
    return node(WeightSum(), *weights, name=f"{n.name}.sum", place=n.place)[0]


def _derive(rewrite: Rewrite, n: Node, fused: RoutedExperts) -> list[Param]:
    """The tensors of the kernel, under the names of the experts'."""
    assert isinstance(n.op, Experts)
    own = dict(zip((param.name for param in n.op.params()), n.params, strict=True))
    held = {param.name: param for param in n.params}
    derivations = fused.derivations({name: param.name for name, param in own.items()})
    made: list[Param] = []
    for param in fused.params():
        if param.name not in derivations:
            made.append(own[param.name])
            continue
        path = f"{n.name}.{param.name}"
        rewrite.derived[path] = derivations[param.name]
        made.append(derivations[param.name].param_of(path, held))
    return made
