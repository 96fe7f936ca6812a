import torch
from torch import Tensor


def route_in_groups(
    scores: Tensor,
    active: int,
    normalise: bool,
    groups: int,
    active_groups: int,
    best: int,
    scale: float = 1.0,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The experts with the highest scores within the best groups, and their weights: (B, S, E) -> (B, S, active) twice.

    A group is as good as the sum of its `best` highest scores. A bias chooses and does not weigh.
    """
    choice = (scores if bias is None else scores + bias).unflatten(-1, (groups, -1))
    kept = choice.topk(best, dim=-1).values.sum(dim=-1).topk(active_groups, dim=-1).indices
    others = torch.ones(choice.shape[:-1], dtype=torch.bool, device=choice.device).scatter(-1, kept, False)
    choice = choice.masked_fill(others.unsqueeze(-1), float("-inf")).flatten(-2)
    experts = choice.topk(active, dim=-1).indices
    weights = scores.gather(-1, experts)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return experts, weights * scale
