"""Graph to graph. A pass never knows who emits; `verify` holds after each."""

from blockc.ir import inline
from blockc.passes.cache import with_cache
from blockc.passes.fuse import Fused, Unfused, fuse
from blockc.passes.last_token import last_token
from blockc.passes.verify import verify

__all__ = ["Fused", "Unfused", "fuse", "inline", "last_token", "verify", "with_cache"]
