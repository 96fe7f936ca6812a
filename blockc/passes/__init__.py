"""Graph to graph. A pass does not know the emitter; `verify_graph` passes after each."""

from blockc.ir import inline
from blockc.passes.buffer import with_buffer
from blockc.passes.cache import with_cache
from blockc.passes.last_token import keep_last_token
from blockc.passes.one_token import one_token
from blockc.passes.place_by_mask import place_by_mask
from blockc.passes.top import keep_top
from blockc.passes.verify import verify_graph

__all__ = [
    "inline",
    "keep_last_token",
    "keep_top",
    "one_token",
    "place_by_mask",
    "verify_graph",
    "with_buffer",
    "with_cache",
]
