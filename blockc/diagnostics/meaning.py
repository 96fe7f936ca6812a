"""BLC2xx: values that are right by themselves and do not go together."""

from __future__ import annotations

from blockc.diagnostics.code import error

HEADS = error(
    "BLC201",
    "heads do not divide the width",
    "head_dim is width / heads where it is not given, and a head has a whole number of coordinates. Models whose heads "
    "are not width / heads wide say head_dim.",
    bad="attention: {heads: 5, rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 5, head_dim: 16, rope: {theta: 10000, pairing: half}}\n",
)
KV_HEADS = error(
    "BLC202",
    "kv_heads do not divide heads",
    "Each key-value head serves heads / kv_heads query heads.",
    bad="attention: {heads: 4, kv_heads: 3, rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, kv_heads: 2, rope: {theta: 10000, pairing: half}}\n",
)
BIAS_TWICE = error(
    "BLC203",
    "a matrix is named twice",
    "bias lists the matrices that have one, each once.",
    bad="attention: {heads: 4, bias: [q, k, q], rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, bias: [q, k, v], rope: {theta: 10000, pairing: half}}\n",
)
WINDOW = error(
    "BLC204",
    "a window that does nothing",
    "A window as long as the context hides nothing, and one beside causal: false looks back where the attention looks "
    "both ways. A key without effect says something that is not so.",
    bad="attention: {heads: 4, window: 256, rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, window: 128, rope: {theta: 10000, pairing: half}}\n",
)
ROPE_PART = error(
    "BLC205",
    "rope turns a part that a head has not",
    "dims turns the first coordinates of a head, pairs its first pairs; the two differ in their frequencies, so one of "
    "them is said, and it is no more than the head has.",
    bad="attention: {heads: 4, rope: {theta: 10000, pairing: half, dims: 32}}\n",
    good="attention: {heads: 4, rope: {theta: 10000, pairing: half, dims: 16}}\n",
)
ROPE_ODD = error(
    "BLC206",
    "rope turns an odd number of coordinates",
    "A rotation turns two coordinates at a time.",
    bad="attention: {heads: 4, head_dim: 17, rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, head_dim: 16, rope: {theta: 10000, pairing: half}}\n",
)
ROPE_BANDS = error(
    "BLC207",
    "the bands of rope scaling cross",
    "llama3 scaling leaves wavelengths below original / high_freq_factor, divides the frequencies of those above "
    "original / low_freq_factor, and blends between: low_freq_factor is below high_freq_factor. yarn keeps pairs that "
    "turn beta_fast times within original and stretches those that turn beta_slow times: beta_slow is not above "
    "beta_fast, and theta above 1.",
    bad="attention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: llama3, factor: 8, low_freq_factor: 4, high_freq_factor: 1, original: 64}\n",
    good="attention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, original: 64}\n",
)
NORM_BIAS = error(
    "BLC208",
    "a key of another norm",
    "A layer norm says whether it has a bias, an rms norm has none. A norm without weight has neither bias nor offset.",
    bad="norm: {type: rms, eps: 1e-5, bias: true, placement: pre}\n",
    good="norm: {type: layer, eps: 1e-5, bias: true, placement: pre}\n",
)
QK_NORM = error(
    "BLC209",
    "a norm of queries and keys that is not fully said",
    "Over each head it says whose its weights are, or weight: false; over the projection each number has its own. Type "
    "and eps are those of the layer's norm, or said here. Rope turns heads, so that a norm behind it is over each.",
    bad="attention: {heads: 4, qk_norm: {over: head}, rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, qk_norm: {over: head, weights: shared}, rope: {theta: 10000, pairing: half}}\n",
)
NO_GATE = error(
    "BLC210",
    "a gate's bias without a gate",
    "gelu, gelu_tanh, quick_gelu, relu, relu2, silu and xielu are plain MLPs: up and down. The others are gated.",
    bad="mlp: {type: gelu, width: 256, bias: [gate]}\n",
    good="mlp: {type: gelu, width: 256, bias: [up]}\n",
)
NO_POSITIONS = error(
    "BLC211",
    "nothing says where a token stands",
    "Attention alone does not see order. A spec says positions, attention.rope, attention.alibi, or positions: none.",
    bad="attention: {heads: 4}\n",
    good="attention: {heads: 4}\npositions: none\n",
)
TWO_WORDS = error(
    "BLC212",
    "norm.placement and block say the same thing",
    "A placement is a word for a block. With both, one of them would be ignored.",
    bad="block: [{residual: [attention_norm, attention]}, {residual: [mlp_norm, mlp]}]\n",
    good="norm: {type: rms, eps: 1e-5}\n"
    "block: [{residual: [attention_norm, attention]}, {residual: [mlp_norm, mlp]}]\n",
)
PLACED_NONE = error(
    "BLC213",
    "norm.placement places a part that is none",
    "Every placement has an attention and an mlp. A layer without one of them is said by a block.",
    bad="mlp: none\n",
    good="norm: {type: rms, eps: 1e-5}\nblock: [{residual: [attention_norm, attention]}]\nmlp: none\n",
)
MANY_LAYERS = error(
    "BLC214",
    "more layers than can be laid",
    "Each layer is laid and checked by itself; the cap of 10,000 keeps the answer prompt.",
    bad="depth: 1000000\n",
    good="depth: 2\n",
)
EMBEDDING = error(
    "BLC215",
    "an embedding width that is the stream's own",
    "A table of another width than the stream is projected in, and out again for the head. One of the same width needs "
    "no projection, and a square one would be a guess.",
    bad="embedding: {width: 64}\n",
    good="embedding: {width: 32}\n",
)
TWO_SCALES = error(
    "BLC216",
    "residual_scale beside a block",
    "residual_scale is a word for {scale: x} at the end of each branch of a placement. A block says where its factors "
    "stand itself.",
    bad="norm: {type: rms, eps: 1e-5}\nresidual_scale: 0.5\n"
    "block: [{residual: [attention_norm, attention]}, {residual: [mlp_norm, mlp]}]\n",
    good="norm: {type: rms, eps: 1e-5}\n"
    "block: [{residual: [attention_norm, attention, {scale: 0.5}]}, {residual: [mlp_norm, mlp]}]\n",
)
ALIBI = error(
    "BLC217",
    "alibi where the attention looks both ways",
    "alibi takes from a score what its key lies back. Beside causal: false half of the keys lie ahead.",
    bad="attention: {heads: 4, causal: false, alibi: {max_bias: 8}}\n",
    good="attention: {heads: 4, alibi: {max_bias: 8}}\n",
)
ROPE_LISTS = error(
    "BLC218",
    "the lists of longrope do not fit",
    "longrope divides the frequency of each pair by a factor of its own: the list that is chosen is there, and each "
    "list has a number for every pair that rope turns.",
    bad="attention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: longrope, long: [1, 2, 4], choose: long, attention_factor: 1.2}\n",
    good="attention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: longrope, long: [1, 1, 1, 2, 2, 2, 4, 4], choose: long, attention_factor: 1.2}\n",
)
SINKS = error(
    "BLC219",
    "sinks beside scores that are changed",
    "A sink is a logit that joins the softmax of the scores as they are. Whether a cap or a bias by distance would "
    "change it too is said by no model.",
    bad="attention: {heads: 4, softcap: 30, sinks: true, rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, sinks: true, rope: {theta: 10000, pairing: half}}\n",
)
CLAMPS = error(
    "BLC220",
    "a bound without its MLP, or the other way round",
    "swiglu_clamped says limit, between which gate and up are kept, and alpha, which sharpens the sigmoid. No other "
    "MLP reads them.",
    bad="mlp: {type: swiglu, width: 192, limit: 7.0}\n",
    good="mlp: {type: swiglu_clamped, width: 192, limit: 7.0, alpha: 1.702}\n",
)
LAYER_COUNT = error(
    "BLC221",
    "the layers do not fill the depth",
    "first and last are laid once, pattern is tiled over what lies between: together they lay depth layers.",
    bad="layers: {first: [a, a, a], kinds: {a: {}}}\n",
    good="layers: {first: [a], pattern: [b], kinds: {a: {}, b: {}}}\nexpect: {layers: {a: 1, b: 1}}\n",
)
KIND_UNDEFINED = error(
    "BLC222",
    "a layer kind that is not defined",
    "The entries of first, pattern and last are names of layers.kinds.",
    bad="layers: {pattern: [globl], kinds: {global: {}}}\n",
    good="layers: {pattern: [global], kinds: {global: {}}}\nexpect: {layers: {global: 2}}\n",
)
KIND_UNUSED = error(
    "BLC223",
    "a layer kind that is never laid",
    "A kind that no list names changes nothing, and says something that is not so.",
    bad="layers: {pattern: [a], kinds: {a: {}, b: {attention: {window: 64}}}}\n",
    good="layers: {pattern: [a, b], kinds: {a: {}, b: {attention: {window: 64}}}}\nexpect: {layers: {a: 1, b: 1}}\n",
)
LAYER_ENTRY = error(
    "BLC224",
    "not an entry of a layer list",
    "An entry is kind, kindA+kindB, or {kind: count} with a count above 0.",
    bad="layers: {pattern: [{a: 0}], kinds: {a: {}}}\n",
    good="layers: {pattern: [{a: 2}], kinds: {a: {}}}\nexpect: {layers: {a: 2}}\n",
)
FINAL_OF_KIND = error(
    "BLC225",
    "a final norm in a layer kind",
    "The final norm follows the last layer and is the model's: it is said by the top-level norm.",
    bad="layers: {pattern: [a], kinds: {a: {norm: {final: false}}}}\n",
    good="layers: {pattern: [a], kinds: {a: {}}}\nnorm: {type: rms, eps: 1e-5, placement: pre, final: false}\n"
    "expect: {layers: {a: 2}}\n",
)
JOINED = error(
    "BLC226",
    "two joined kinds set the same key",
    "a+b merges both, and neither goes before the other: a key is set by one of them.",
    bad="layers: {pattern: [a+b], kinds: {a: {mlp: {width: 128}}, b: {mlp: {width: 256}}}}\n",
    good="layers: {pattern: [a+b], kinds: {a: {mlp: {width: 128}}, b: {attention: {window: 64}}}}\n"
    "expect: {layers: {a+b: 2}}\n",
)
INERT = error(
    "BLC227",
    "a key that another leaves without effect",
    "With v_from: k there is no matrix of values, and so no bias of it; with kv_from there is none of keys either, and "
    "no norm of values. A key without effect says something that is not so.",
    bad="attention: {heads: 4, v_from: k, bias: [k, v], rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, v_from: k, bias: [k], rope: {theta: 10000, pairing: half}}\n",
)
V_NORM = error(
    "BLC228",
    "a norm of values that is not fully said",
    "Its type and eps are those of the layer's norm, or said here.",
    bad="norm: none\nblock: [attention, mlp]\n"
    "attention: {heads: 4, v_norm: {over: head, weight: false}, rope: {theta: 10000, pairing: half}}\n",
    good="norm: none\nblock: [attention, mlp]\nattention:\n  heads: 4\n  rope: {theta: 10000, pairing: half}\n"
    "  v_norm: {over: head, weight: false, type: rms, eps: 1e-6}\n",
)
KV_KIND = error(
    "BLC229",
    "keys and values of a layer kind that is not there",
    "kv_from names the kind of the layers whose keys and values are read: one of layers.kinds that is laid.",
    bad="layers: {pattern: [local, shared], kinds: {local: {}, shared: {attention: {kv_from: lokal}}}}\n",
    good="layers: {pattern: [local, shared], kinds: {local: {}, shared: {attention: {kv_from: local}}}}\n"
    "expect: {layers: {local: 1, shared: 1}}\n",
)
KV_SOURCE = error(
    "BLC230",
    "no layer to read keys and values from",
    "kv_from reads what the latest earlier layer of the kind makes. The first layer of all makes its own, and one that "
    "reads another's lends none.",
    bad="layers: {pattern: [shared, local], kinds: {local: {}, shared: {attention: {kv_from: local}}}}\n",
    good="layers: {pattern: [local, shared], kinds: {local: {}, shared: {attention: {kv_from: local}}}}\n"
    "expect: {layers: {local: 1, shared: 1}}\n",
)
TERM = error(
    "BLC231",
    "not a term",
    "A block is made of labels, chains [a, b], {residual: [...]}, {sum: [[...], [...]]} and {scale: x}.",
    bad="norm: {type: rms, eps: 1e-5}\nblock: [{residul: [attention]}, mlp]\n",
    good="norm: {type: rms, eps: 1e-5}\nblock: [{residual: [attention]}, mlp]\n",
)
LABEL = error(
    "BLC232",
    "not a label",
    "A label is a path of parameters, an attribute of a PyTorch module and a variable of its forward, so it is no word "
    "of Python's, PyTorch's or the emitted code's.",
    bad="norm: {type: rms, eps: 1e-5}\nblock: [attention, class]\nparts: {class: {mlp: {width: 64}}}\n",
    good="norm: {type: rms, eps: 1e-5}\nblock: [attention, wide]\nparts: {wide: {mlp: {width: 64}}}\n",
)
LABEL_TWICE = error(
    "BLC233",
    "a label stands twice in one block",
    "A label is one set of parameters. Whether a second mention shares or copies them would be a guess.",
    bad="norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp, mlp]\n",
    good="norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp, second_mlp]\nparts: {second_mlp: {mlp: {width: 64}}}\n",
)
NO_SUCH_PART = error(
    "BLC234",
    "no part is called so",
    "A label is attention, mlp or norm, a label of parts, or ends in _norm.",
    bad="norm: {type: rms, eps: 1e-5}\nblock: [attn, mlp]\n",
    good="norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp]\n",
)
PART_ABSENT = error(
    "BLC235",
    "a block names a part that is not there",
    "The label stands for a key of the spec, which is absent or none.",
    bad="norm: {type: rms, eps: 1e-5}\nmlp: none\nblock: [attention, mlp]\n",
    good="norm: {type: rms, eps: 1e-5}\nmlp: {type: gelu, width: 256}\nblock: [attention, mlp]\n",
)
UNREAD = error(
    "BLC236",
    "read by no layer",
    "A key or a part that stands in no layer's block changes nothing, and says something that is not so.",
    bad="norm: {type: rms, eps: 1e-5}\nblock: [attention]\n",
    good="norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp]\n",
)
OWN_PART = error(
    "BLC237",
    "a part that varies no key, or several",
    "parts gives a label to a variation on one of attention, mlp and norm: {label: {mlp: {...}}}.",
    bad="norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp, wide]\nparts: {wide: {width: 64}}\n",
    good="norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp, wide]\nparts: {wide: {mlp: {width: 64}}}\n",
)
KV_UNLIKE = error(
    "BLC238",
    "keys and values that do not fit their reader",
    "An attention that reads an earlier layer's keys and values has as many key-value heads, of the same size, and "
    "turns its queries as the keys were turned.",
    bad="layers: {pattern: [local, shared], kinds: {local: {attention: {kv_heads: 2}}, "
    "shared: {attention: {kv_from: local}}}}\n",
    good="layers: {pattern: [local, shared], kinds: {local: {attention: {kv_heads: 2}}, "
    "shared: {attention: {kv_heads: 2, kv_from: local}}}}\nexpect: {layers: {local: 1, shared: 1}}\n",
)
ROPE_LENGTH = error(
    "BLC240",
    "a scaling by length without a length that changes it",
    "longrope by_length and dynamic choose frequencies by how many tokens the longest row of a call has, otherwise "
    "beyond `original` than within. It is said for these alone, and some calls are longer, or nothing is chosen.",
    bad="context: 64\nattention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: dynamic, factor: 2, original: 64}\n",
    good="context: 128\nattention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: dynamic, factor: 2, original: 64}\n",
)
SUB_NORM = error(
    "BLC241",
    "a norm before the last matrix of a part that is not fully said",
    "Its type and eps are those of the layer's norm, or said here. A bias is part of a layer norm, and weight: "
    "false leaves it out, and offset too.",
    bad="mlp: {type: swiglu, width: 256, sub_norm: {weight: false, type: layer, eps: 1e-5, bias: true}}\n",
    good="mlp: {type: swiglu, width: 256, sub_norm: {weight: true, type: layer, eps: 1e-5, bias: true}}\n",
)
EXPERTS = error(
    "BLC242",
    "experts that do not go together with what stands beside them",
    "A token takes at most as many experts as there are. Each expert is an MLP of a type without numbers of its own, "
    "and without a norm inside.",
    bad="mlp:\n  type: swiglu\n  width: 64\n"
    "  experts: {count: 4, active: 5, router: {scores: softmax, normalise: true}}\n",
    good="mlp:\n  type: swiglu\n  width: 64\n"
    "  experts: {count: 4, active: 2, router: {scores: softmax, normalise: true}}\n",
)
EXPERT_GROUPS = error(
    "BLC243",
    "groups of experts that cannot be chosen from",
    "Groups are of equal size, and the best of them together hold the experts that a token takes. A sum of two scores "
    "is of groups of two experts or more.",
    bad="mlp:\n  type: swiglu\n  width: 64\n  experts:\n    count: 8\n    active: 3\n"
    "    router: {scores: sigmoid, normalise: true, groups: {count: 4, active: 1, score: max}}\n",
    good="mlp:\n  type: swiglu\n  width: 64\n  experts:\n    count: 8\n    active: 3\n"
    "    router: {scores: sigmoid, normalise: true, groups: {count: 4, active: 2, score: max}}\n",
)
LATENT = error(
    "BLC244",
    "what is not defined for latent attention",
    "Latent attention says its own sizes, and rope turns rope_dim numbers of each query and of one key that all heads "
    "share: it has a rope, which turns all of them. Keys that change keys, values or scores otherwise are not defined "
    "beside it.",
    bad="attention:\n  heads: 4\n  kv_heads: 2\n"
    "  latent: {kv_rank: 32, nope_dim: 16, rope_dim: 8, v_dim: 12, norm: {eps: 1e-6}}\n"
    "  rope: {theta: 10000, pairing: interleaved}\n",
    good="attention:\n  heads: 4\n"
    "  latent: {kv_rank: 32, nope_dim: 16, rope_dim: 8, v_dim: 12, norm: {eps: 1e-6}}\n"
    "  rope: {theta: 10000, pairing: interleaved}\n",
)
RELATIVE_BIAS = error(
    "BLC245",
    "a relative bias without distances to tell apart",
    "Half of the buckets of a side have one distance each, and the others grow with the logarithm up to max_distance, "
    "which is therefore more. Beside causal: false half of the buckets are for keys ahead. One attention has either "
    "alibi or a relative bias.",
    bad="attention: {heads: 4, causal: false, relative_bias: {buckets: 32, max_distance: 8}}\n",
    good="attention: {heads: 4, causal: false, relative_bias: {buckets: 32, max_distance: 128}}\n",
)
POOL = error(
    "BLC246",
    "a head of the vocabulary behind a pool",
    "A pool makes one vector of all tokens. It comes out as it is beside head: none, or gives the logits of classes; "
    "logits of the vocabulary are of each token.",
    bad="pool: {type: mean}\nhead: {tied: true}\n",
    good="pool: {type: mean}\nhead: none\n",
)
