"""BLC4xx: warnings, of what is right and costs something all the same. A line silences them for itself."""

from __future__ import annotations

from blockc.diagnostics.code import warning

FUSED_HEADS = warning(
    "BLC401",
    "heads that no fused attention takes",
    "The attention kernels take heads of a multiple of 8 coordinates, and with rope inside a multiple of 16, of which "
    "a multiple of 16 is turned. Other heads are computed right, op by op, and slower.",
    bad="attention: {heads: 4, head_dim: 20, rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, head_dim: 32, rope: {theta: 10000, pairing: half}}\n",
)
WIDTH = warning(
    "BLC402",
    "a width that fills no tiles",
    "Matrix kernels work in tiles of 64 or 128 numbers: a width in between costs as much as the next multiple of 64, "
    "and may lose alignment besides. Models less than 64 wide are not warned of.",
    bad="mlp: {type: swiglu, width: 170}\n",
    good="mlp: {type: swiglu, width: 192}\n",
)
ROPE_COVERAGE = warning(
    "BLC403",
    "a context beyond what the rope scaling covers",
    "Scaling by a factor stretches the positions of the original context to factor x original. Beyond, a model sees "
    "angles that the original one was never trained on, and has to be trained on them itself. Where it was, and is "
    "published with that context, expect: {context: N} says so, and nothing is warned of; an import writes it.",
    bad="context: 1024\nattention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: llama3, factor: 4, low_freq_factor: 1, high_freq_factor: 4, original: 128}\n",
    good="context: 1024\nattention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, original: 128}\n",
)
NO_EXPECT = warning(
    "BLC404",
    "nothing is expected of the spec",
    "Without expect a slip of a digit gives another model, and no finding. Write the published figures, or the "
    "computed ones that the hint shows, once they are what is meant.",
    bad="expect: none\n",
    good="expect: {parameters: 172352, kv_values_per_token: 256}\n",
)
IDLE_IGNORE = warning(
    "BLC405",
    "an ignore that silences nothing",
    "A comment blockc: ignore BLC402 silences the warnings of these codes on its own line, and warnings alone: an "
    "error remains an error. One that silences nothing would hide the next warning that comes to its line.",
    bad="mlp: {type: swiglu, width: 192}  # blockc: ignore BLC402\n",
    good="mlp: {type: swiglu, width: 170}  # blockc: ignore BLC402\n",
)
