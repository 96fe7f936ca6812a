"""A block in text: the residual stream runs down the left side, branches leave it to the right and come back at a +."""

from __future__ import annotations

from collections.abc import Iterator

from blockc.language.algebra import Chain, Leaf, Residual, Scaled, Sum, Term, leaves_of
from blockc.language.parts import Mlp
from blockc.language.parts.experts import Experts

Box = list[str]  # lines of one width; a value comes in at the left of the first and leaves at its right

PRIMES = 3  # x, x', x'', x'''; then x(4), as in the table of matrices


def draw_block(layer: Chain) -> str:
    """The term from top to bottom; x, x', x'' name the stream after 0, 1, 2 additions."""
    return "\n".join(line.rstrip() for line in _Drawing().draw(layer))


def draw_experts(layer: Chain) -> Iterator[str]:
    """Each mixture of experts of a layer, from left to right, under its label."""
    for leaf in leaves_of(layer):
        if isinstance(leaf.part, Mlp) and leaf.part.experts:
            yield "\n".join(line.rstrip() for line in (leaf.label, *_experts_box(leaf.part.experts)))


def _experts_box(experts: Experts) -> Box:
    routed = f"──→ router ──→ {experts.active} of {experts.count:,} experts, weighed "
    if not experts.shared:
        return [f"{routed}──→"]
    gate = " times its gate" if experts.shared.gate else ""
    forked = _fork([[routed], [f"──→ shared{gate} "]])
    return _join_boxes(forked, ["──→"])


def stream_name(additions: int) -> str:
    return "x" + "'" * additions if additions <= PRIMES else f"x({additions})"


class _Drawing:
    """The vertical line, and how many additions it has been through."""

    def __init__(self) -> None:
        self.additions = 0

    def draw(self, layer: Chain) -> list[str]:
        return [f"│ {stream_name(0)}", *self.terms(layer), "↓"]

    def terms(self, chain: Chain) -> list[str]:
        lines: list[str] = []
        for term in chain.terms:
            lines += self.term(term)
        return lines

    def term(self, term: Term) -> list[str]:
        match term:
            case Leaf(label, _, _):
                return [label, "│"]
            case Scaled(factor):
                return [f"times {factor:g}", "│"]
            case Chain():
                return self.terms(term)
            case Residual(body):
                self.additions += 1
                return [*_rails(_branches_of(body), kept=True), f"│ {stream_name(self.additions)}"]
            case Sum(branches):
                return [*_rails(branches, kept=False), "│"]


def _branches_of(body: Chain) -> tuple[Chain, ...]:
    """x + (a + b) is one addition with two branches."""
    only = body.terms[0]
    return only.branches if len(body.terms) == 1 and isinstance(only, Sum) else (body,)


def _rails(branches: tuple[Chain, ...], kept: bool) -> list[str]:
    """Branches leave the stream one below the other and meet at the right; `kept` says that the stream goes on."""
    boxes = [_chain_box(branch) for branch in branches]
    width = max(len(box[0]) for box in boxes)
    lines: list[str] = []
    for i, box in enumerate(boxes):
        last = i == len(boxes) - 1
        leave, pass_by = ("├", "│") if kept or not last else ("└", " ")
        for j, line in enumerate(box):
            if j == 0:
                lines.append(leave + _extend_line(line, width) + "──" + ("┤" if i else "┐"))
            else:
                lines.append(pass_by + line.ljust(width) + "  │")
    return [*lines, "+←" + "─" * (width + 1) + "┘"]


def _chain_box(chain: Chain) -> Box:
    box: Box = [""]
    for term in chain.terms:
        box = _join_boxes(box, _term_box(term))
    return box


def _term_box(term: Term) -> Box:
    match term:
        case Leaf(label, _, _):
            return [f"──→ {label} "]
        case Scaled(factor):
            return [f"──→ times {factor:g} "]
        case Chain():
            return _chain_box(term)
        case Residual(body):
            return _fork([*map(_chain_box, _branches_of(body)), [""]])
        case Sum(branches):
            return _fork([_chain_box(branch) for branch in branches])


def _fork(boxes: list[Box]) -> Box:
    """Boxes one below the other, all fed from the left and added at the right of the first."""
    width = max(len(box[0]) for box in boxes)
    lines: list[str] = []
    for i, box in enumerate(boxes):
        left, right = ("──┬", "──+") if i == 0 else ("  └", "──┘") if i == len(boxes) - 1 else ("  ├", "──┤")
        lines.append(left + _extend_line(box[0], width) + right)
        down = "   " if i == len(boxes) - 1 else "  │"
        lines += [down + line.ljust(width) + down for line in box[1:]]
    return lines


def _extend_line(line: str, width: int) -> str:
    return line + "─" * (width - len(line))


def _join_boxes(left: Box, right: Box) -> Box:
    height = max(len(left), len(right))
    padded = [box + [" " * len(box[0])] * (height - len(box)) for box in (left, right)]
    return [a + b for a, b in zip(*padded, strict=True)]
