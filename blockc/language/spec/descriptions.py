"""What an editor says of each key: its meaning, its unit, and what its absence means."""

from __future__ import annotations

from typing import Any

_EPS = "Added to the mean square (rms) or the variance (layer) before the root. A number of 0 or more, such as 1e-5."

# Class and key: the text. No key of the language is without one.
KEYS: dict[str, str] = {
    "Document.blockc": "The version of the language: 1. It is the first key of a spec.",
    "Document.name": "The model's name, of files and of classes: letters, digits and . _ -, at most 100, a letter or "
    "digit first. No effect on the function.",
    "Document.description": "A sentence for people. No effect on the function.",
    "Document.checkpoint": "The layout of published weight files, such as llama: how they name and pack the tensors. "
    "No effect on the function. Absent or none: files name the parameters as the model does.",
    "Document.vocab": "Rows of the embedding, and logits of a token. An integer above 0.",
    "Document.width": "Numbers of the residual stream for each token (d_model). An integer above 0.",
    "Document.depth": "Layers. An integer from 1 to 10000.",
    "Document.context": "Tokens that the model is made for, counted with those before. An integer above 0.",
    "Document.positions": "What is added to the embedding to say where a token stands. This, attention.rope "
    "or attention.alibi is said; none for a model without.",
    "Document.embedding": "What is done to a token's row before the first layer. Absent or none: nothing.",
    "Document.head": "The linear map from the stream to the logits.",
    "Document.layers": "Layers of several kinds. Absent or none: all are alike.",
    "Document.init": "How an untrained model starts. No effect on the function.",
    "Document.expect": "Known figures, or bounds of them: compared with the computed ones, never filled in. No effect "
    "on the function.",
    "Document.norm": "The norm of every label that ends in _norm, where the norms stand, and the final norm.",
    "Document.residual_scale": "Number that each branch of the placement is multiplied by before it is added: x + "
    "scale * f(x). Absent or none: 1. In a block, write {scale: x}.",
    "Document.attention": "softmax(q k^T * scale) v in heads; o reads the heads, concatenated.",
    "Document.mlp": "down(act(up x)), or with a gate down(act(gate x) * up x).",
    "Document.block": "A layer as a term, where no norm.placement names it: [a, b] is a chain, {residual: [...]} adds "
    "its branch to what it reads, {sum: [[...], [...]]} adds branches that read the same.",
    "Document.parts": "Labels of further parts for the block: what each changes of the layer's key, as in {first_mlp: "
    "{mlp: {width: 512}}}.",
    "Embedding.scale": "Number that a looked-up row is multiplied by, before positions are added; sqrt_width for the "
    "root of width, {rsqrt: N} for 1 over the root of N. Absent or none: 1.",
    "Rsqrt.rsqrt": "N of the factor 1/sqrt(N). A number above 0.",
    "Embedding.width": "Numbers of a row of the embedding, where they are not width: a matrix takes them in, another "
    "takes the stream out for the head. Absent or none: width.",
    "Embedding.norm": "A norm of the stream before the first layer, behind the positions. Absent or none: none.",
    "Head.tied": "Whether the head is the embedding's own matrix. true or false; there is no default.",
    "Head.bias": "Whether vocab numbers are added to the logits, before the softcap. Absent: false.",
    "Head.scale": "Number that the logits are multiplied by, before the softcap. A number above 0. Absent or none: 1.",
    "Head.softcap": "Logits become cap * tanh(logits / cap). A number above 0. Absent or none: no cap.",
    "Learned.type": "learned: a table of context rows of width numbers.",
    "Learned.offset": "Rows of the table before that of the first token; no token reads them. An integer above 0. "
    "Absent or none: 0.",
    "Sine.type": "sinusoidal: sines and cosines of wavelengths from 2 pi to 10000 * 2 pi tokens.",
    "NormKeys.type": "rms: x / rms(x) * weight. layer: (x - mean) / std * weight, with a bias or without.",
    "NormKeys.eps": _EPS,
    "NormKeys.weight": "Whether the norm has parameters: false for x / rms(x) or (x - mean) / std. Absent: true.",
    "NormKeys.bias": "Whether a layer norm adds width numbers. It must be said for layer, and is refused for rms.",
    "NormKeys.offset": "Number added to the gain: (offset + weight) in the place of weight. Absent: 0.",
    "NormKeys.placement": "Where the norms of a layer stand. pre: x + f(norm x). post: norm(x + f x). sandwich: x + "
    "norm(f(norm x)). branch: x + norm(f x). parallel_one: x + attention(norm x) + mlp(norm x), one norm. "
    "parallel_two: the same with a norm each. Or write a block.",
    "NormKeys.final": "Whether a norm follows the last layer. Absent: false for placement post, else true.",
    "Attention.heads": "Query heads. An integer above 0.",
    "Attention.kv_heads": "Key-value heads, each read by heads / kv_heads query heads; a divisor of heads. Absent or "
    "none: heads.",
    "Attention.head_dim": "Numbers of one head's query, key and value. Absent or none: width / heads, which must "
    "divide.",
    "Attention.scale": "Number that the scores q k^T are multiplied by. Absent or none: head_dim^-0.5.",
    "Attention.causal": "true: a token sees itself and what is before it. false: it sees all, and there is no cache.",
    "Attention.bias": "The matrices that have a bias, of q, k, v, o. Absent, none or []: none of them.",
    "Attention.window": "Tokens that a query sees, itself among them: keys (i - window, i]. Less than context. Absent "
    "or none: all before it.",
    "Attention.rope": "Rotary positions of queries and keys. Absent or none: they are not turned.",
    "Attention.alibi": "A number for each head times the distance of a key, taken from its score. Absent or "
    "none: none.",
    "Attention.softcap": "Scores become cap * tanh(scores / cap), before the mask. A number above 0. Absent or none: "
    "no cap.",
    "Attention.clip": "Queries, keys and values are kept inside (-clip, clip), behind their biases. A number above 0. "
    "Absent or none: they are not.",
    "Attention.sinks": "Whether each head has a learned logit that joins the softmax of its scores, and whose weight "
    "goes nowhere. true or false. Absent or none: false.",
    "Attention.qk_norm": "A norm of the queries and one of the keys, before rope or behind it. Absent or none: none.",
    "Attention.v_norm": "A norm of the values of each head, without parameters. Absent or none: none.",
    "Attention.sub_norm": "A norm of the concatenated heads, which o reads. Absent or none: none.",
    "Attention.v_from": "k: there is no matrix of values; they are the keys before their norm and rope. Absent or "
    "none: values have a matrix of their own.",
    "Attention.kv_from": "A layer kind: there are no matrices of keys and values; those of the latest earlier layer of "
    "that kind which makes its own are read. Absent or none: it makes its own.",
    "QkNorm.over": "head: each head by itself. projection: all heads at once.",
    "QkNorm.weights": "shared: one gain of head_dim numbers for all heads. own: each head has its own. Said with over: "
    "head unless weight is false, refused with projection.",
    "QkNorm.order": "before_rope, or after_rope: heads are normed once they are turned. Absent or none: before_rope.",
    "QkNorm.type": "rms, or layer. Absent: that of norm.",
    "QkNorm.weight": "false: x / rms(x) or (x - mean) / std, without parameters. Absent: true.",
    "QkNorm.bias": "Whether a layer norm adds numbers of its own, head_dim of them or those of the projection. Absent: "
    "false.",
    "QkNorm.eps": _EPS + " Absent: that of norm.",
    "QkNorm.offset": "Number added to the gain: (offset + weight). Absent: that of norm.",
    "VNorm.over": "head: each head by itself.",
    "VNorm.weight": "false: x / rms(x) or (x - mean) / std, without parameters.",
    "VNorm.type": "rms, or layer. Absent: that of norm.",
    "VNorm.eps": _EPS + " Absent: that of norm.",
    "SubNorm.weight": "true: a gain for each number. false: x / rms(x) or (x - mean) / std, without parameters.",
    "SubNorm.type": "rms, or layer. Absent: that of norm.",
    "SubNorm.eps": _EPS + " Absent: that of norm.",
    "SubNorm.bias": "Whether a layer norm adds numbers of its own. Absent: false.",
    "SubNorm.offset": "Number added to the gain: (offset + weight). Absent: that of norm.",
    "Rope.theta": "Base of the frequencies theta^(-2i/n) of the pairs i, in radians a token. A number above 0, such "
    "as 10000.",
    "Rope.pairing": "Which coordinates turn together. half: i and i + n/2. interleaved: 2i and 2i + 1.",
    "Rope.dims": "Coordinates of a head that are turned, the first ones, with frequencies over this number; even. "
    "Absent or none: all.",
    "Rope.pairs": "Pairs that are turned, the first ones, with frequencies over head_dim. Absent or none: all.",
    "Rope.scaling": "Frequencies changed for a longer context. Absent or none: as they are.",
    "Alibi.max_bias": "The slope of head h of n is 2^(-max_bias h/n). A number above 0, such as 8.",
    "Alibi.scale": "Number that the slopes are multiplied by, such as head_dim^-0.5 where they are taken from scores "
    "that are scaled only then. Absent or none: 1.",
    "Linear.type": "linear: all frequencies divided by factor.",
    "Linear.factor": "How much all wavelengths are stretched. A number above 0, such as 8.",
    "Yarn.type": "yarn: pairs that turn beta_fast times or more within the original context kept, those that turn "
    "beta_slow times or less stretched by factor, a ramp between.",
    "Yarn.factor": "How much the longest wavelengths are stretched. A number above 0, such as 32.",
    "Yarn.original": "Tokens of the context that the frequencies were trained at.",
    "Yarn.beta_fast": "Turns within the original context from which a pair is kept. A number above beta_slow, such "
    "as 32.",
    "Yarn.beta_slow": "Turns within the original context up to which a pair is stretched whole. A number above 0, such "
    "as 1.",
    "Yarn.truncate": "Whether the ramp starts and ends at whole pairs. true or false; there is no default.",
    "Yarn.attention_factor": "Number that cosines and sines are multiplied by. Absent or none: 0.1 ln(factor) + 1, "
    "and 1 for a factor of at most 1.",
    "Longrope.type": "longrope: each pair's frequency divided by a factor of its own.",
    "Longrope.short": "Factors for contexts up to the original one, a number above 0 for each pair that turns. "
    "Absent or none: there is no such list.",
    "Longrope.long": "Factors for longer contexts, a number above 0 for each pair that turns. Absent or none: there is "
    "no such list.",
    "Longrope.choose": "The list that is used: short or long, and the other has no effect; or by_length, short in a "
    "call of at most original tokens, long in a longer one.",
    "Longrope.original": "The most tokens, past and new, of a call that takes the short list; for choose: by_length, "
    "which needs it. Absent or none: one list for all lengths.",
    "Longrope.attention_factor": "Number that cosines and sines are multiplied by. A number above 0.",
    "Dynamic.type": "dynamic: theta grows with the tokens of a call beyond the original context.",
    "Dynamic.factor": "How fast it grows: theta times (1 + factor * beyond / original) ^ (R / (R - 2)), R being the "
    "coordinates. A number above 0.",
    "Dynamic.original": "Tokens of the context within which nothing is scaled. An integer below context.",
    "Llama3.type": "llama3: long wavelengths stretched by factor, short ones kept, a smooth passage between.",
    "Llama3.factor": "How much the longest wavelengths are stretched. A number above 0, such as 8.",
    "Llama3.low_freq_factor": "Wavelengths above original / this are stretched whole. A number above 0.",
    "Llama3.high_freq_factor": "Wavelengths below original / this are kept. A number above low_freq_factor.",
    "Llama3.original": "Tokens of the context that the frequencies were trained at.",
    "Mlp.type": "The activation, and whether there is a gate. With one: swiglu (SiLU), geglu (exact GELU), "
    "geglu_tanh, reglu, reglu2 (ReLU squared), swiglu_clamped. Without: gelu, gelu_tanh, quick_gelu (x * "
    "sigmoid(1.702 x)), relu, relu2 (squared), silu, xielu (of four numbers in each MLP).",
    "Mlp.width": "Numbers between up and down (d_ff). An integer above 0.",
    "Mlp.limit": "Of swiglu_clamped, which needs it: gate is kept below it, up between it and its negative. A number "
    "above 0.",
    "Mlp.alpha": "Of swiglu_clamped, which needs it: gate * sigmoid(alpha * gate) * (up + 1). A number above 0.",
    "Mlp.bias": "The matrices that have a bias, of gate, up, down. Absent, none or []: none of them.",
    "Mlp.sub_norm": "A norm of what down reads. Absent or none: none.",
    "Layers.first": "Kinds of the first layers, laid once.",
    "Layers.pattern": "Kinds tiled over what lies between first and last; the last tile may be cut.",
    "Layers.last": "Kinds of the last layers, laid once.",
    "Layers.kinds": "Each kind's name, and what it has otherwise than the top-level keys say.",
    "Init.std": "Standard deviation of new matrices in model.py. A number above 0. Without init: 0.02.",
    "Expect.parameters": "Parameters, each tensor once, tied ones too: the number itself, or {min, max}.",
    "Expect.context": "Tokens that the model is published for, be they more than its rope scaling covers.",
    "Expect.active_parameters": "Parameters that one token uses: the number itself, or {min, max}.",
    "Expect.kv_values_per_token": "Numbers, not bytes, that one more token adds to the cache: the number itself, or "
    "{min, max}.",
    "Expect.layers": "How many layers there are of each kind, as in {local: 21, global: 21}.",
    "Bounds.min": "The figure is at least this. A number of 0 or more.",
    "Bounds.max": "The figure is at most this. A number of 0 or more.",
}

# What an absent key is, where that is a value that could be written.
DEFAULTS: dict[str, Any] = {"Attention.causal": True, "NormKeys.weight": True, "Head.bias": False}

TERM = {
    "term": "A label, a chain of terms, a residual, a sum or a scale. A label is attention, mlp, a norm where it ends "
    "in _norm, or one of parts; it stands once in a block.",
    "residual": "x + chain(x): what the chain makes of its input is added to it.",
    "sum": "The sum of two or more chains that all read the same x.",
    "scale": "x times this number, which is above 0.",
}
