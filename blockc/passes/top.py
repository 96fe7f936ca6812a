"""top: of the last token's logits the highest alone, with the tokens whose they are."""

from __future__ import annotations

from dataclasses import replace

from blockc.ir import Function, apply
from blockc.ops import Top

VALUES, TOKENS = "top_logits", "top_tokens"


def top(function: Function, k: int) -> Function:
    """The first output (B, 1, V) becomes two, top_logits and top_tokens, (B, 1, k); all V where these are fewer.

    Takes a function that gives the last token's logits.
    """
    (_, logits), *others = function.outputs
    vocab = logits.type.shape[-1].value
    made = apply(Top(k if vocab is None else min(k, vocab)), logits, name="top").node
    return replace(function, outputs=((VALUES, made[0]), (TOKENS, made[1]), *others))
