"""Runs a build with weights in onnxruntime: from token ids to logits, to tokens, to text; from texts to vectors.

from blockc.runtime import Sampler, Session
session = Session("out/smollm2")
for step in session.generate([[1, 2, 3], [4, 5]], 20, stop={2}, sampler=Sampler(0.8, top_p=0.9)):
    print(step)                                        # one token a row, None after a row's end

from blockc.runtime import Encoder
vectors = Encoder("out/minilm").embed(["one text", "another"])    # (2, 384), float32
"""

from __future__ import annotations

from blockc.runtime.encoder import Encoder, Ranked
from blockc.runtime.opening import ProviderError, SessionError
from blockc.runtime.sampling import Sampler, TopLogits, greedy
from blockc.runtime.session import Session

__all__ = ["Encoder", "ProviderError", "Ranked", "Sampler", "Session", "SessionError", "TopLogits", "greedy"]
