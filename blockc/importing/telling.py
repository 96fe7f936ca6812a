"""Words that suggest that a key changes the function: a key with one of them in its name is never skipped."""

from __future__ import annotations

WORDS = (
    "rope", "rotary", "theta", "freq", "scal", "multipl", "norm", "eps", "residual", "parallel", "layer",
    "attn", "attention", "head", "alibi", "bias", "window", "sliding", "swa", "cap", "clip", "clamp", "limit", "logit",
    "expert", "rout", "topk", "index", "tie",
    "act",  # activation, factor
)  # fmt: skip


def may_change_function(name: str) -> bool:
    return any(word in name.lower() for word in WORDS)
