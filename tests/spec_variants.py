"""Specs that vary all that a spec can: keys of the base, kinds that add and remove things, blocks, parts."""

from __future__ import annotations

from tests.spec_text import BARE

ROPE = "theta: 1e4, pairing: half"
LLAMA3 = "scaling: {type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, original: 16}"
BLOCK = "[{residual: [mlp_norm, mlp]}, {residual: [attention_norm, attention]}]"
# Two MLPs of their own around attention, norms half-way, a gate beside the third: no word names this block.
MACARON = """\
name: macaron
attention: {heads: 2, kv_heads: 1, rope: {theta: 1e4, pairing: half}}
mlp: {type: swiglu, width: 24, bias: [down]}
norm: {type: rms, eps: 1e-5, offset: 1}
block:
  - residual: [before_norm, before]
  - residual: [attention_norm, attention, halfway_norm]
  - residual: [sum: [[gate_norm, after], [mlp_norm, mlp]]]
  - halfway_post_norm
parts:
  before: {mlp: {type: gelu, width: 12}}
  after: {mlp: {width: 16}}
  halfway_norm: {norm: {type: layer, eps: 1e-6, bias: true}}
"""

HEADWISE = "qk_norm: {over: head, weights: shared}"
BEHIND = f"attention: {{heads: 2, qk_norm: {{over: head, weights: shared, order: after_rope}}, rope: {{{ROPE}}}}}"
BIASED = (
    "norm: {type: layer, eps: 1e-5, bias: true, placement: pre}\n"
    "attention: {heads: 2, qk_norm: {over: head, weights: shared, bias: true}}"
)
BARE_HEADS = "attention: {heads: 2, qk_norm: {over: head, weight: false}}"
OFFSET = "norm: {type: rms, eps: 1e-5, offset: 1, placement: branch}"


def two(a: str, b: str, *top: str) -> str:
    """Layers of two kinds by turns, and other keys."""
    return "\n".join((*top, f"layers: {{pattern: [a, b], kinds: {{a: {{{a}}}, b: {{{b}}}}}}}"))


def rope(more: str = "") -> str:
    return f"attention: {{heads: 2, rope: {{{ROPE}{more}}}}}"


VARIANTS = {
    "base": "",
    "post": "norm: {type: layer, eps: 1e-5, bias: true, placement: post, final: true}",
    "sandwich": "norm: {type: rms, eps: 1e-6, offset: 1, placement: sandwich, final: false}",
    "scaled positions": "positions: {type: learned}\nembedding: {scale: sqrt_width}",
    "embedding of its own": "embedding: {scale: 2, width: 4, norm: {type: layer, eps: 1e-5, bias: false}}",
    "scaled branches": "norm: {type: rms, eps: 1e-5, placement: sandwich}\nresidual_scale: 0.5\n"
    "head: {tied: true, bias: true, scale: 3, softcap: 2}",
    "norms without weight": "norm: {type: layer, eps: 1e-5, weight: false, placement: pre}",
    "weights in one": two(
        "", "norm: {weight: true, bias: true}", "norm: {type: layer, eps: 1e-5, weight: false, placement: pre}"
    ),
    "no weights in one": two(
        "", "norm: {weight: false, bias: false}", "norm: {type: layer, eps: 1e-5, bias: true, placement: pre}"
    ),
    "clipped": "attention: {heads: 2, bias: [k], clip: 2, qk_norm: {over: projection}}",
    "values normed": "attention: {heads: 2, v_norm: {over: head, weight: false}}",
    "values from keys": "attention: {heads: 2, v_from: k, bias: [k], clip: 2, qk_norm: {over: projection}}",
    "values from keys in one": two(
        "",
        "attention: {v_norm: none, v_from: none}",
        "attention: {heads: 2, v_from: k, v_norm: {over: head, weight: false, type: layer, eps: 0.1}}",
    ),
    "keys of another layer": "depth: 5\nlayers: {first: [a, b], pattern: [c, c, d], kinds: {a: {}, "
    "b: {attention: {heads: 4}}, c: {attention: {kv_from: a, window: 4}}, d: {attention: {heads: 4, kv_from: b}}}}",
    "keys of another layer, joined": "depth: 4\nlayers: {pattern: [a, a+b], "
    "kinds: {a: {attention: {window: 4}}, b: {attention: {kv_from: a}}}}",
    "keys of another layer, both ways": two("", "attention: {kv_from: a}", "attention: {heads: 2, causal: false}"),
    "keys of another layer, turned": two("", "attention: {kv_from: a}", rope()),
    "keys of another layer's part": two(
        "",
        "parts: {wide: {attention: {kv_from: a, sinks: true}}}",
        "parts: {wide: {attention: {heads: 4, kv_heads: 1}}}",
        f"{BARE}block: [attention, {{residual: [wide]}}, mlp]",
    ),
    "sinks": "attention: {heads: 4, kv_heads: 2, sinks: true, window: 4}",
    "no sinks in one": two("", "attention: {sinks: none}", "attention: {heads: 2, sinks: true}"),
    "a clamped gate": "mlp: {type: swiglu_clamped, width: 8, limit: 0.5, alpha: 1.7, bias: [gate, up]}",
    "a clamped gate in one": two("", "mlp: {type: swiglu_clamped, width: 8, limit: 0.5, alpha: 1.7}"),
    "reglu": "mlp: {type: reglu, width: 8}",
    "reglu2": "mlp: {type: reglu2, width: 8}",
    "quick_gelu": "mlp: {type: quick_gelu, width: 8, bias: [up]}",
    "layer norms of 1 + weight": "norm: {type: layer, eps: 1e-5, bias: false, offset: 1, placement: pre}",
    "relu2 and silu": two("mlp: {type: relu2, width: 8}", "mlp: {type: silu, width: 8}"),
    "clipped in one": two("", "attention: {clip: none}", "attention: {heads: 2, clip: 2}"),
    "branches scaled in one": two("", "residual_scale: 0.25"),
    "branches not scaled in one": two("", "residual_scale: none", "residual_scale: 0.25"),
    "scales of a block": f"{BARE}block: [{{scale: 0.5}}, {{residual: [{{sum: [[attention], [{{scale: 2}}]]}}]}}, mlp]",
    "sines": "positions: {type: sinusoidal}\nhead: {tied: false, softcap: 30}",
    "partial dims": rope(", dims: 2"),
    "partial pairs": rope(f", pairs: 1, {LLAMA3}"),
    "one list": rope(", scaling: {type: longrope, short: [1, 2], long: [3, 4], choose: long, attention_factor: 1.5}"),
    "a list by length": rope(
        ", scaling: {type: longrope, short: [1, 2], long: [3, 4], choose: by_length, original: 8, attention_factor: 2}"
    ),
    "a theta that grows": rope(", scaling: {type: dynamic, factor: 4, original: 8}"),
    "a theta that grows in one": two(
        "attention: {rope: {scaling: none}}", "", rope(", scaling: {type: dynamic, factor: 4, original: 8}")
    ),
    "neighbours": rope(", dims: 2").replace("half", "interleaved"),
    "other pairing": two("", "attention: {rope: {pairing: interleaved}}", rope()),
    "one norm": "norm: {type: layer, eps: 1e-5, bias: true, placement: parallel_one}\nhead: {tied: true, bias: true}",
    "both ways": "attention: {heads: 2, causal: false}",
    "sizes": "attention: {heads: 4, kv_heads: 2, head_dim: 6, scale: 0.25, softcap: 5, bias: [o, q], window: 4}",
    "text": 'description: "a: b\\n  # c\\n{{ 7*7 }} \\u00e9 \\U0001F600 1e5"\nname: "1e5"\ncheckpoint: "0o17"',
    "norms of heads": "attention: {heads: 2, qk_norm: {over: head, weights: shared}}",
    "own norms of heads": "attention: {heads: 2, kv_heads: 1, qk_norm: {over: head, weights: own}}",
    "layer norms of heads": "norm: {type: layer, eps: 1e-5, bias: true, placement: pre}\n"
    "attention: {heads: 2, qk_norm: {over: head, weights: own}}",
    "layer norms of projections": "attention: {heads: 2, qk_norm: {over: projection, type: layer, eps: 1e-3}}",
    "norms of projections": f"{OFFSET}\nattention: {{heads: 2, kv_heads: 1, qk_norm: {{over: projection}}}}",
    "norms behind rope": BEHIND,
    "norms behind rope in one": two("attention: {qk_norm: {order: none}}", "", BEHIND),
    "no rope before norms": two("attention: {rope: none}", "", BEHIND),
    "norms of heads with a bias": two("attention: {qk_norm: {bias: none}}", "", BIASED),
    "norms of heads without weight": two("attention: {qk_norm: {weight: true, weights: own}}", "", BARE_HEADS),
    "norms within": "attention: {heads: 2, sub_norm: {weight: true}}\n"
    "mlp: {type: gelu, width: 8, sub_norm: {weight: false, type: layer, eps: 0.1}}",
    "norms within in one": two(
        "attention: {sub_norm: none}, norm: {eps: 0.01}",
        "attention: {sub_norm: {bias: none}}, mlp: {sub_norm: none}",
        "norm: {type: layer, eps: 1e-5, bias: true, placement: pre}",
        "attention: {heads: 2, sub_norm: {weight: true, bias: true}}\n"
        "mlp: {type: xielu, width: 8, sub_norm: {weight: true}}",
    ),
    "reglu2 and xielu": two("mlp: {type: reglu2, width: 8}", "mlp: {type: xielu, width: 8}"),
    "other norms of heads": two("norm: {eps: 0.01}", f"attention: {{{HEADWISE}}}"),
    "norms of heads in a part": f"parts: {{wide: {{attention: {{{HEADWISE}}}}}}}\n{BARE}block: [attention, wide, mlp]",
    "five and one": "depth: 6\nlayers: {pattern: [{local: 5}, global], "
    "kinds: {local: {attention: {window: 4}}, global: {}}}",
    "no window in one": two("", "attention: {window: none}", "attention: {heads: 2, window: 4}"),
    "no rope in one": two("", "attention: {rope: none}", rope()),
    "rope in one": two("", f"attention: {{rope: {{{ROPE}}}}}"),
    "other scaling": two("attention: {rope: {scaling: none}}", "", rope(f", {LLAMA3}")),
    "other heads": two("", "attention: {heads: 4}"),
    "other head_dim": two("attention: {head_dim: 8}", "", "attention: {heads: 2, head_dim: 4}"),
    "other mlp": two(
        "mlp: {type: gelu_tanh, width: 4}", "mlp: {bias: none}", "mlp: {type: swiglu, width: 16, bias: [gate, up]}"
    ),
    "other norm": two("norm: {type: layer, eps: 1e-3, bias: false, placement: post}", ""),
    "first and last": "depth: 5\nlayers: {first: [a], pattern: [b, a], last: [{b: 1}], "
    "kinds: {a: {attention: {bias: [q]}}, b: {}}}",
    "joined": "depth: 3\nlayers: {pattern: [a+b, a, b+c], "
    "kinds: {a: {attention: {window: 4}}, b: {attention: {heads: 4}}, c: {mlp: {width: 8}}}}",
    "a block": f"{BARE}block: {BLOCK}",
    "a block in the first kind": two(f"block: {BLOCK}", ""),
    "a block in the second kind": two("", f"block: {BLOCK}"),
    "words over a block": two("", "norm: {placement: post}", f"{BARE}block: {BLOCK}"),
    "an MLP alone": two("block: [{residual: [mlp]}]", "", "attention: {heads: 2, window: 4}"),
    "attention removed": two("", "attention: none, block: [{residual: [mlp]}]"),
    "norm removed": two("norm: none, block: [attention, mlp]", ""),
    "macaron": MACARON,
    "parts in one kind": two("", "block: [attention, wide], parts: {wide: {mlp: {width: 3}}}"),
    "parts of the top in one kind": two(
        "block: [attention, other, wide]", "", "parts: {wide: {mlp: {width: 3}}, other: {norm: {eps: 0.1}}}"
    ),
    "parts varied": two(
        "",
        "parts: {wide: {attention: {window: none, softcap: none}}}",
        "attention: {heads: 2, softcap: 3}",
        "parts: {wide: {attention: {heads: 4, window: 4}}}",
        f"{BARE}block: [attention, wide, mlp]",
    ),
    "a part without its key": f"attention: none\nparts: {{own: {{attention: {{heads: 2}}}}}}\n{BARE}block: [own, mlp]",
    "a part of a placement": "parts: {mlp_norm: {norm: {eps: 0.1}}}",
}

# As large as what is published, for a twin has something to make smaller.
BIG = "width: 2048\ncontext: 4096\nvocab: 32000\ndepth: 12\nmlp: {type: swiglu, width: 8192}\n"
HEADS = "attention: {heads: 16}"
LARGE = {
    "other head_dim": two(
        "attention: {head_dim: 64, window: 512}", "", "attention: {heads: 16, kv_heads: 4, head_dim: 128}"
    ),
    "other heads": two("", "attention: {kv_heads: 1, head_dim: 256}", "attention: {heads: 16, kv_heads: 4}"),
    "five and one": f"{HEADS}\nlayers: {{pattern: [{{local: 5}}, global], "
    "kinds: {local: {attention: {window: 512}}, global: {}}}",
    "first and last": f"{HEADS}\nlayers: {{first: [{{a: 3}}], pattern: [{{b: 2}}], last: [a], "
    "kinds: {a: {mlp: {width: 1024}}, b: {}}}",
    "parts": f"{HEADS}\n{BARE}block: [{{residual: [attention]}}, {{residual: [second]}}, mlp, wide]\n"
    "parts: {second: {attention: {heads: 32, window: 1000}}, wide: {mlp: {width: 16384}}}",
    "parts in a kind": two("", "block: [attention, wide], parts: {wide: {mlp: {width: 16384}}}", HEADS),
    "rope dims": f"attention: {{heads: 16, rope: {{{ROPE}, dims: 32}}}}",
    "rope pairs": f"attention: {{heads: 16, rope: {{{ROPE}, pairs: 16}}}}",
    "rope in a kind": two("", f"attention: {{rope: {{{ROPE}, dims: 64}}}}", HEADS),
    "joined": f"{HEADS}\nlayers: {{pattern: [{{a+b: 2}}, a], "
    "kinds: {a: {attention: {window: 512}}, b: {mlp: {width: 4096}}}}",
}
