"""Where parameters that a pass makes come from."""

from __future__ import annotations

from collections.abc import Mapping

Parts = Mapping[str, tuple[str, ...]]  # by path: the parameters whose rows it holds, one after another
