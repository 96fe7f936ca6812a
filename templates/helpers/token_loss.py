import torch.nn.functional as F
from torch import Tensor


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each token wanted, in fp32; labels of -100 do not count."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)
