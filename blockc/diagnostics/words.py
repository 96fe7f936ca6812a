"""BLC1xx: keys, words and numbers, each by itself."""

from __future__ import annotations

from blockc.diagnostics.code import error

KEY_NOT_A_WORD = error(
    "BLC101",
    "a key must be a word",
    "A number, a truth value, nothing, a list or a mapping cannot be a key.",
    bad="layers: {pattern: [a], kinds: {1: {}}}\n",
    good="layers: {pattern: [a], kinds: {a: {}}}\nexpect: {layers: {a: 2}}\n",
)
NO_VALUE = error(
    "BLC102",
    "no value",
    "null, ~ and an empty value mean absent to one reader and none to another. Leave the key out for what is not "
    "there, write none to turn off what is inherited.",
    bad="attention: {heads: 4, kv_heads: null, rope: {theta: 10000, pairing: half}}\n",
    good="attention: {heads: 4, kv_heads: none, rope: {theta: 10000, pairing: half}}\n",
)
ODD_NUMBER = error(
    "BLC103",
    "a number that is read in two ways",
    "010 is 8 to YAML 1.1 and 10 to YAML 1.2; hexadecimal, octal and binary numbers and underscores are numbers to "
    "one and text to the other. Numbers are decimal digits.",
    bad="depth: 010\n",
    good="depth: 2\n",
)
OUT_OF_RANGE = error(
    "BLC104",
    "a number that is out of range",
    "Infinity and NaN are no sizes. An integer is one that int64 holds, and any other number one that fp32 holds in "
    "full, for the models are computed in these: beyond, another number would be computed with.",
    bad="norm: {type: rms, eps: .nan, placement: pre}\n",
    good="norm: {type: rms, eps: 1e-5, placement: pre}\n",
)
WRONG_KIND = error(
    "BLC105",
    "the wrong kind of value",
    "Values are never converted: true is no integer, 32.0 is not 32, and a number in quotes is text.",
    bad='vocab: "1024"\n',
    good="vocab: 1024\n",
)
TOO_SMALL = error(
    "BLC106",
    "a number that is too small",
    "Sizes, counts and scales are above 0.",
    bad="depth: 0\n",
    good="depth: 2\n",
)
UNKNOWN_WORD = error(
    "BLC107",
    "a word that is not known here",
    "A choice is one of a few words, each with one meaning. There are no aliases: swish is SiLU to some and a gated "
    "MLP to others.",
    bad="mlp: {type: swish, width: 192}\n",
    good="mlp: {type: swiglu, width: 192}\n",
)
BAD_NAME = error(
    "BLC108",
    "not a name",
    "Names become parts of file names, class names and parameter paths, so they match a pattern of ASCII letters, "
    "digits and a few marks, and are no device of Windows.",
    bad="name: ../other\n",
    good="name: other-1.5b\n",
)
UNKNOWN_KEY = error(
    "BLC109",
    "an unknown key",
    "Every key is read or refused: a key that nothing reads would say something that is not so. Names that other "
    "tools use are refused with the word that the language has for them.",
    bad="mlp: {type: swiglu, widht: 192, width: 192}\n",
    good="mlp: {type: swiglu, width: 192}\n",
)
MISSING_KEY = error(
    "BLC110",
    "a missing key",
    "No default changes the function: what the model computes is written in its spec.",
    bad="norm: {type: rms, placement: pre}\n",
    good="norm: {type: rms, eps: 1e-5, placement: pre}\n",
)
VERSION = error(
    "BLC111",
    "no version of the language, or an unknown one",
    "The first line says blockc: 1, so that a later language does not change what an old spec means.",
    bad="blockc: 2\n",
    good="blockc: 1\n",
)
VERSION_FIRST = error(
    "BLC112",
    "the version is not the first key",
    "What stands before the version would be read before it is known how.",
    bad="name: example\nblockc: 1\n",
    good="blockc: 1\nname: example\n",
    alone=True,
)
