"""Words in the name of a key that may change the function: a file's key of such a name is never passed over."""

from __future__ import annotations

WORDS = (
    "rope", "rotary", "theta", "freq", "scal", "multipl", "norm", "eps", "residual", "parallel", "layer",
    "attn", "attention", "head", "alibi", "bias", "window", "sliding", "swa", "cap", "clip", "clamp", "limit", "logit",
    "expert", "tie",
    "act",  # activation, factor
)  # fmt: skip


def telling(name: str) -> bool:
    return any(word in name.lower() for word in WORDS)
