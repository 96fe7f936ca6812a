"""top: the k highest logits of the last token, and their token ids."""

from __future__ import annotations

from dataclasses import replace

from blockc.graph.contract import LOGITS, TOP_LOGITS, TOP_TOKENS
from blockc.ir import Function, apply
from blockc.ops import Top


def keep_top(function: Function, k: int) -> Function:
    """The logits (B, 1, V) become two, top_logits and top_tokens, (B, 1, k); all V where these are fewer.

    Takes a function that gives the last token's logits.
    """
    logits, others = function.output(LOGITS), [each for each in function.outputs if each[0] != LOGITS]
    vocab = logits.type.shape[-1].value
    made = apply(Top(k if vocab is None else min(k, vocab)), logits, name="top").node
    return replace(function, outputs=((TOP_LOGITS, made[0]), (TOP_TOKENS, made[1]), *others))
