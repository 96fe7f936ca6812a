import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LatentAttention(nn.Module):
    """Attention whose keys and values are products of a latent c (B, T, rank): k_up c beside k_r, and v_up c.

    k_r (B, 1, T, rope) is one key that all heads share. Two orders of the products give the same numbers, and the one
    that multiplies less is taken: expanded makes the keys and values of all tokens, absorbed takes k_up into the
    queries and applies v_up to what comes out.
    """

    def __init__(self, heads: int, rank: int, nope: int, v_dim: int, scale: float) -> None:
        super().__init__()
        self.rank, self.made, self.scale = rank, nope + v_dim, scale
        self.k_up = nn.Parameter(torch.empty(heads * nope, rank))
        self.v_up = nn.Parameter(torch.empty(heads * v_dim, rank))
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        nn.init.normal_(self.k_up, std=std)
        nn.init.normal_(self.v_up, std=std)

    def forward(
        self, c: Tensor, k_r: Tensor, q_n: Tensor, q_r: Tensor, mask: Tensor | None, is_causal: bool = False
    ) -> Tensor:
        tokens, keys = q_n.shape[2], c.shape[1]
        fewer = tokens * keys * (2 * self.rank - self.made) < (keys - tokens) * self.rank * self.made
        if mask is not None and (torch.compiler.is_exporting() or fewer):  # one exported program has all lengths
            return self.absorbed(c, k_r, q_n, q_r, mask)
        return self.expanded(c, k_r, torch.cat((q_n, q_r), dim=-1), mask, is_causal)

    def expanded(self, c: Tensor, k_r: Tensor, q: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        heads = q.shape[1]
        k, v = (F.linear(c, up).unflatten(2, (heads, -1)).transpose(1, 2) for up in (self.k_up, self.v_up))
        k = torch.cat((k, k_r.expand(-1, heads, -1, -1)), dim=-1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=self.scale)

    def absorbed(self, c: Tensor, k_r: Tensor, q_n: Tensor, q_r: Tensor, mask: Tensor) -> Tensor:
        """The queries of all heads are rows of one head, so that c and k_r are read once."""
        batch, heads, tokens, _ = q_n.shape
        k_up, v_up = (up.unflatten(0, (heads, -1)) for up in (self.k_up, self.v_up))
        q = torch.cat((q_n @ k_up, q_r), dim=-1).reshape(batch, 1, heads * tokens, -1)
        k, v, seen = torch.cat((c[:, None], k_r), dim=-1), c[:, None], mask.repeat(1, 1, heads, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=self.scale)
        return y.reshape(batch, heads, tokens, -1) @ v_up.mT
