"""BLC3xx: what a spec expects of itself, and what others expect of it.

From 310 on, those others are a policy; from 320 on, a policy of quantising.
"""

from __future__ import annotations

from blockc.diagnostics.code import error

EXPECT = error(
    "BLC301",
    "a figure of expect does not hold",
    "expect states published or agreed figures; they are compared with what the graph has, and never filled in. The "
    "computed figure is shown part by part, so that the part that differs is seen.",
    bad="expect: {kv_values_per_token: 512}\n",
    good="expect: {kv_values_per_token: 256}\n",
)
CHECKPOINT = error(
    "BLC302",
    "the checkpoint layout does not fit",
    "checkpoint names a layout, which says how published files name and pack their tensors. There is none of this "
    "name, or it names tensors that the model has not, or leaves some of its tensors without a name.",
    bad="checkpoint: lama\n",
    good="checkpoint: llama\n",
)

POLICY_PARAMETERS = error(
    "BLC310",
    "more or fewer parameters than the policy allows",
    "A policy file bounds what all specs of a team may be. The finding stands at the width, and shows the "
    "count part by part.",
    bad="policy: 1\nparameters: {max: 100e3}\n",
    good="policy: 1\nparameters: {min: 100e3, max: 200e3}\n",
)
POLICY_KV = error(
    "BLC311",
    "more cache a token than the policy allows",
    "Each token that is kept costs its keys and values in every layer, for every sequence that is served. Fewer "
    "key-value heads cost less.",
    bad="policy: 1\nkv_bytes_per_token: {max: 256, dtype: bf16}\n",
    good="policy: 1\nkv_bytes_per_token: {max: 512, dtype: bf16}\n",
)
POLICY_MEMORY = error(
    "BLC312",
    "more memory than the policy's devices have",
    "Weights, cache and the peak of activations, at the policy's context, batch and dtype, are compared with what its "
    "devices hold together. The finding stands at the key that decides the largest of the three.",
    bad="policy: 1\nmemory: {context: 256, batch: 1, dtype: bf16, devices: 1, device_memory: 256KiB}\n",
    good="policy: 1\nmemory: {context: 256, batch: 1, dtype: bf16, devices: 2, device_memory: 1MiB}\n",
)
POLICY_HEAD_DIM = error(
    "BLC313",
    "heads of a size that the policy does not list",
    "Kernels are written and tuned for some sizes of heads; a policy lists those that a team serves.",
    bad="policy: 1\nhead_dims: [64, 128]\n",
    good="policy: 1\nhead_dims: [16, 64, 128]\n",
)
POLICY_PLACEMENT = error(
    "BLC314",
    "norms that stand where the policy has none",
    "A policy lists the placements of norms that a team trains. A block that says the same as one of them is that one.",
    bad="policy: 1\nplacements: [sandwich]\n",
    good="policy: 1\nplacements: [pre, sandwich]\n",
)
POLICY_EXPECT = error(
    "BLC315",
    "a figure that the policy wants expected is not",
    "A figure of expect is seen in review, and keeps a change of sizes from going unseen.",
    bad="policy: 1\nexpect: [parameters]\n",
    good="policy: 1\nexpect: [layers]\n",
)
POLICY_WEIGHTS = error(
    "BLC316",
    "more bytes of weights than the policy allows",
    "A file of weights must fit where it is sent and loaded. The bytes are those of all parameters in the policy's "
    "dtype, with its recipe of quantising where it names one: codes, scales, and what stays in floats.",
    bad="policy: 1\nweights: {max: 100KiB, dtype: fp32, quant: int8}\n",
    good="policy: 1\nweights: {max: 200KiB, dtype: fp32, quant: int8}\n",
)

QUANT_UNMATCHED = error(
    "BLC320",
    "a pattern that matches no matrix",
    "In a policy of quantising a pattern is the name of what reads a matrix or a part of it between dots, with * for "
    "any characters. One that matches nothing is a misspelt one, or meant for another model: the matrices that "
    "it should name would be stored as a later pattern says.",
    bad='blockc_quant: 1\nmatrices: {dwon: int8, "*": int4}\n',
    good='blockc_quant: 1\nmatrices: {down: int8, "*": int4}\n',
)
QUANT_SHADOWED = error(
    "BLC321",
    "a pattern that comes too late",
    "Patterns go from first to last, and the first that matches a matrix says how it is stored. A tied table is one "
    "matrix, which both embedding and head name.",
    bad='blockc_quant: 1\nmatrices: {"*": int4, head: int8}\n',
    good='blockc_quant: 1\nmatrices: {head: int8, "*": int4}\n',
)
