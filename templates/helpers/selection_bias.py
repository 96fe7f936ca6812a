from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


class SelectionBias(nn.Module):
    """A number for each expert, added to its score for the choice alone. It is no parameter, and stays in fp32."""

    selection_bias: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("selection_bias", torch.zeros(count, dtype=torch.float32))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.selection_bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        kept = self.selection_bias
        super()._apply(fn, *args, **kwargs)
        if not kept.is_meta:  # a rounded bias chooses other experts
            self.selection_bias = kept.to(self.selection_bias.device)
        return self
