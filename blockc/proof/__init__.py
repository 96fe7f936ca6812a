"""The proof that what was emitted is what the spec says."""

from blockc.proof.matrix import TARGETS, Proof, Row, prove, targets_of

__all__ = ["TARGETS", "Proof", "Row", "prove", "targets_of"]
