from torch import Tensor


def route(
    scores: Tensor, active: int, normalise: bool, scale: float = 1.0, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The experts with the highest scores and their weights: (B, S, E) -> (B, S, active) and (B, S, active).

    A bias chooses and does not weigh.
    """
    choice = scores if bias is None else scores + bias
    experts = choice.topk(active, dim=-1).indices
    weights = scores.gather(-1, experts)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return experts, weights * scale
