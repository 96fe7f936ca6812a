"""BLC7xx: importing a config.json."""

from __future__ import annotations

from blockc.diagnostics.code import error, note, warning

_GPT2 = '{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12}\n'

CONFIG_JSON = error(
    "BLC701",
    "not an object of JSON",
    "A config.json is one object of JSON: keys in double quotes, no key twice, no comments, no NaN, at most 10,000 "
    "values nested at most 64 deep.",
    bad='{"model_type": "gpt2",}\n',
    good=_GPT2,
)
MODEL_TYPE = error(
    "BLC702",
    "a model type that is not known",
    "What the keys of a config.json mean is said by the code of its model type. The types that are known each have a "
    "file under layouts/config; code that a config.json names by auto_map is never imported.",
    bad='{"model_type": "gpt22"}\n',
    good=_GPT2,
)
CONFIG_KEY = error(
    "BLC703",
    "a key of config.json that is not known",
    "Every key is read, or known to be without effect on what the model computes. What another key might do would be a "
    "guess.",
    bad='{"model_type": "gpt2", "n_sinks": 4}\n',
    good=_GPT2,
)
CONFIG_VALUE = error(
    "BLC704",
    "a value that cannot be said in a spec",
    "Under this value the model would compute what no word of the language says, or two keys of the config.json say "
    "different things of the same.",
    bad='{"model_type": "gpt2", "activation_function": "mish"}\n',
    good=_GPT2,
)
CONFIG_MISSING = error(
    "BLC705",
    "a key that config.json must have",
    "The code of its model type has no value of its own for this key.",
    bad='{"vocab_size": 50257}\n',
    good=_GPT2,
)
IMPORT_MAP = error(
    "BLC706",
    "a map of a model type that says something else than it may",
    "A map holds the spec of the model type with the keys of config.json in it, and the few words that say how they "
    "are read; whatever else stands there is refused.",
    bad="import: 1\nspec: {width: {times: [4, <n_embd>]}}\nabsent: {n_embd: 768, n_head: 12}\n",
    good="import: 1\nspec: {width: {times: [4, <n_embd>]}}\nabsent: {n_embd: 768}\n",
    alone=True,
)
QUANTISED_WEIGHTS = error(
    "BLC707",
    "weights that are quantised",
    "The checkpoint holds its weights in blocks of few bits, or in eight, with factors beside them. Which numbers they "
    "stand for is a matter of each method (gptq, awq, bitsandbytes, ...). Only fp8 and mxfp4 are read.",
    bad='{"model_type": "gpt2", "quantization_config": {"quant_method": "gptq", "bits": 4}}\n',
    good=_GPT2,
)
READ_OTHERWISE = warning(
    "BLC708",
    "a key that is taken for something else than it says",
    "The file says one thing, and the code of its model type, in transformers, computes another: the spec is what that "
    "code computes. docs/import.md lists every such key, and those where the published weights show the file right.",
    bad='{"model_type": "gpt_neox", "rope_theta": 500}\n',
    good='{"model_type": "gpt_neox", "rotary_emb_base": 500}\n',
)
CONFIG_NOTED = note(
    "BLC709",
    "two figures of one thing",
    "Two keys of config.json together say more than one of them alone, such as a context that rope's scaling makes "
    "longer than max_position_embeddings. Both figures are named, so that the other can be had with --set.",
    bad='{"model_type": "llama", "max_position_embeddings": 64, "num_key_value_heads": 32, "rope_scaling": '
    '{"rope_type": "yarn", "factor": 4}}\n',
    good='{"model_type": "llama", "max_position_embeddings": 256, "num_key_value_heads": 32, "rope_scaling": '
    '{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}}\n',
)
