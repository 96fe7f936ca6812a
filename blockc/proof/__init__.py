"""The proof that what was emitted is what the spec says."""

from blockc.proof.comparison import Row
from blockc.proof.matrix import TARGETS, Proof, prove, targets_of

__all__ = ["TARGETS", "Proof", "Row", "prove", "targets_of"]
