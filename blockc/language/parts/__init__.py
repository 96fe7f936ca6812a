"""The parts: what a spec's keys stand for, each with the ops that it expands to."""

from blockc.language.parts.attention import Alibi, Attention
from blockc.language.parts.base import Lent, Loc, Model, OrNone, Part, Piece, Problem, Request, Scope, Shared
from blockc.language.parts.head import AnyHead, Classifier, Head
from blockc.language.parts.mlp import Mlp
from blockc.language.parts.norm import Norm, QkNorm
from blockc.language.parts.pool import Pool
from blockc.language.parts.position import Learned, Positions, Sine
from blockc.language.parts.rope import Dynamic, Linear, Llama3, Longrope, Rope, Yarn

# The keys of a layer, each with the part that it describes: the one list of what there is.
PARTS: dict[str, type[Part]] = {"attention": Attention, "mlp": Mlp, "norm": Norm}

__all__ = [
    "PARTS", "Alibi", "AnyHead", "Attention", "Classifier", "Dynamic", "Head", "Learned", "Lent", "Linear", "Llama3",
    "Loc", "Longrope", "Mlp", "Model", "Norm", "OrNone", "Part", "Piece", "Pool", "Positions", "Problem", "QkNorm",
    "Request", "Rope", "Scope", "Shared", "Sine", "Yarn",
]  # fmt: skip
