"""Graph to graph. A pass never knows who emits; `verify` holds after each."""

from blockc.ir import inline
from blockc.passes.buffer import with_buffer
from blockc.passes.cache import with_cache
from blockc.passes.last_token import last_token
from blockc.passes.top import top
from blockc.passes.verify import verify

__all__ = ["inline", "last_token", "top", "verify", "with_buffer", "with_cache"]
