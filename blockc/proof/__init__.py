"""The proof that what was emitted is what the spec says."""

from blockc.proof.matrix import Proof, Row, prove

__all__ = ["Proof", "Row", "prove"]
