"""The JSON schema of the language, for editors: every key explained, with its unit, its words and its bounds.

What a kind of layer says is merged over the keys of the top, so no key below `kinds` or `parts` is required by itself.
At the top the required ones are, where `layers` is absent. What depends on two values is left to `blockc check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from blockc.basics.distribution import layout_names
from blockc.language.parts import PARTS, Norm
from blockc.language.parts.base import KIND, NOTHING, ORNONE
from blockc.language.parts.mlp import TYPES
from blockc.language.parts.numbers import LARGEST, LARGEST_INT, SMALLEST
from blockc.language.spec import labels
from blockc.language.spec.classes import models_of
from blockc.language.spec.keys import LAYER_KEYS, Document
from blockc.language.spec.reading import MAX_DEPTH, SAYS_POSITION

DIALECT = "http://json-schema.org/draft-07/schema#"  # the one that editors of YAML read best
Json = dict[str, Any]

_NONE: Json = {"const": "none"}
_COUNT: Json = {"type": "integer", "minimum": 1, "maximum": LARGEST_INT}
_LABEL: Json = {"type": "string", "pattern": labels.PATTERN, "not": _NONE}
_TERM = {
    "term": "A label, a chain of terms, a residual, a sum or a scale. A label is attention, mlp, a norm where it ends "
    "in _norm, or one of parts; it stands once in a block.",
    "residual": "x + chain(x): what the chain makes of its input is added to it.",
    "sum": "The sum of two or more chains that all read the same x.",
    "scale": "x times this number, which is above 0.",
}
_CHAIN: Json = {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/Term"}}


def language_schema() -> Json:
    made = Document.model_json_schema(schema_generator=_Generator, ref_template="#/definitions/{model}")
    definitions: Json = made.pop("$defs")
    definitions.pop("Norm")  # it is made of NormKeys below
    for name, model in (("Document", made), *definitions.items()):
        _tidy(model)
        if name != "Document":
            model.pop("required", None)
    definitions["Norm"] = _own_norm(definitions["NormKeys"])
    definitions["Term"] = _term()
    definitions["Kind"] = _kind(made)
    definitions["OwnPart"] = _own_part()
    definitions["Run"] = _run()
    made["properties"] = {key: made["properties"][key] for key in Document.key_order()}
    made["definitions"] = definitions
    _fill(made)
    return {
        "$schema": DIALECT,
        "title": "A transformer, for blockc",
        "description": "One decoder, one block or a pattern of blocks: see docs/language.md.",
        **{key: value for key, value in made.items() if key not in ("title", "description")},
        "if": {"not": {"required": ["layers"]}},
        "then": _whole_layers(),
    }


class _Generator(GenerateJsonSchema):
    """null is refused in a spec, and none is a word."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        said = schema["function"]["function"]
        return {"anyOf": [inner, dict(_NONE)]} if said in (ORNONE.func, NOTHING.func) else inner

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """A default is said where it could be written; one that means something else than itself, its field says."""
        inner, default = self.generate_inner(schema["schema"]), schema.get("default")
        return {**inner, "default": default} if isinstance(default, bool) else inner


def _tidy(model: Json) -> None:
    """A class's keys without Pydantic's titles. Each is described; what it is stands before that."""
    model.pop("title", None)
    for key, said in model["properties"].items():
        said.pop("title", None)
        for word in ("description", "default"):
            if word == "description" or word in said:
                said[word] = said.pop(word)
        if "$ref" in said:  # beside a reference, draft 7 reads nothing else
            model["properties"][key] = {"allOf": [{"$ref": said.pop("$ref")}], **said}
    model["additionalProperties"] = False


# What Pydantic sees as any list or mapping


def _fill(made: Json) -> None:
    """The terms, the lists of layers and the kinds in the place of `list of anything`."""
    top, layers = made["properties"], made["definitions"]["Layers"]["properties"]
    kind = made["definitions"]["Kind"]["properties"]
    for keys in (top, kind):
        keys["block"] = {"anyOf": [_CHAIN, _NONE], "description": keys["block"]["description"]}
        own = {"anyOf": [{"$ref": "#/definitions/OwnPart"}, _NONE]}
        keys["parts"] = {
            "anyOf": [{"type": "object", "propertyNames": _LABEL, "additionalProperties": own}, _NONE],
            "description": keys["parts"]["description"],
        }
    for key in ("first", "pattern", "last"):
        layers[key]["items"] = {"$ref": "#/definitions/Run"}
    layers["kinds"].update(
        propertyNames={"pattern": KIND}, additionalProperties={"$ref": "#/definitions/Kind"}, minProperties=1
    )
    layers["kinds"].pop("patternProperties", None)
    made["definitions"]["Layers"]["required"] = ["kinds"]
    alone = {"Head": "tied", "Init": "std", "Learned": "type", "Sine": "type", "Alibi": "max_bias", "Rsqrt": "rsqrt",
             "Classifier": "classes", "EachSide": "each_side", "Pool": "type"}  # fmt: skip
    for name, key in alone.items():
        made["definitions"][name]["required"] = [key]
    made["definitions"]["Bounds"]["minProperties"] = 1
    for chosen in (top["positions"], made["definitions"]["Rope"]["properties"]["scaling"]):
        chosen["anyOf"][0].pop("discriminator")  # a word of OpenAPI
    top["depth"]["maximum"] = MAX_DEPTH
    top["checkpoint"]["anyOf"] = [{"enum": [*layout_names()]}, _NONE]
    whole: Json = {"allOf": [{"$ref": "#/definitions/Norm"}], "required": ["type", "eps"]}
    made["definitions"]["Embedding"]["properties"]["norm"]["anyOf"][0] = whole
    final: Json = {"type": "object", "required": ["final"]}  # which `none`, a word, is not
    kind["norm"] = {"allOf": [kind["norm"]], "not": final, "description": top["norm"]["description"]}
    _add_clashes(made["definitions"])


def _add_clashes(definitions: Json) -> None:
    """Keys and words that never stand together, whichever storey says the rest."""
    for norm in ("Norm", "NormKeys"):
        definitions[norm]["allOf"] = [_if_then("type", ["rms"], {"not": {"required": ["bias"]}})]
    for norm in ("QkNorm", "SubNorm"):
        definitions[norm]["allOf"] = [
            _if_then("type", ["rms"], {"properties": {"bias": {"enum": ["none"]}}}),
            _if_then("weight", [False], {"properties": {"bias": {"enum": [False, "none"]}}}),
        ]
    plain = [word for word, (_, gated) in TYPES.items() if not gated]
    ungated = {"properties": {"bias": {"not": {"contains": {"const": "gate"}}}}}
    definitions["Mlp"]["allOf"] = [_if_then("type", plain, ungated)]
    for part in ("Attention", "Mlp"):
        definitions[part]["properties"]["bias"]["anyOf"][0]["uniqueItems"] = True


def _if_then(key: str, words: Sequence[str | bool], then: Json) -> Json:
    return {"if": {"required": [key], "properties": {key: {"enum": words}}}, "then": then}


def _kind(made: Json) -> Json:
    """The keys that a kind of layer may vary. A final norm is the model's, and stands at the top alone."""
    keys = {key: dict(made["properties"][key]) for key in made["properties"] if key in LAYER_KEYS}
    return {
        "type": "object",
        "description": "What a layer of this kind has otherwise than the top-level keys say; {} for nothing.",
        "additionalProperties": False,
        "properties": keys,
    }


def _own_norm(norm: Json) -> Json:
    """A norm of `parts`: where it stands is the block's to say."""
    return {**norm, "properties": {key: said for key, said in norm["properties"].items() if key in Norm.model_fields}}


def _own_part() -> Json:
    return {
        "type": "object",
        "description": "One of " + ", ".join(PARTS) + ", with what is changed of the layer's key of that name.",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {
            key: {
                "anyOf": [{"$ref": f"#/definitions/{model.__name__}"}, _NONE],
                "description": f"A further {key}: what it changes of the layer's own {key}.",
            }
            for key, model in PARTS.items()
        },
    }


def _run() -> Json:
    counted = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": _COUNT}
    joined = rf"{KIND[:-1]}(\+{KIND[1:-1]})*$"
    return {
        "description": "A kind, {kind: count}, or kinds joined by +, which are merged.",
        "anyOf": [{"type": "string", "pattern": joined}, counted],
    }


def _term() -> Json:
    def said_by(word: str, body: Json) -> Json:
        return {
            "type": "object",
            "required": [word],
            "additionalProperties": False,
            "properties": {word: {**body, "description": _TERM[word]}},
        }

    branches = {"type": "array", "minItems": 2, "items": _CHAIN}
    factor = {"type": "number", "exclusiveMinimum": 0, "minimum": SMALLEST, "maximum": LARGEST}
    return {
        "description": _TERM["term"],
        "anyOf": [_LABEL, _CHAIN, said_by("residual", _CHAIN), said_by("sum", branches), said_by("scale", factor)],
    }


# What is required


def _whole_layers() -> Json:
    """Without kinds of layers, what the top says of a layer must be all of it."""
    parts = {key: _required(field) for key, field in Document.model_fields.items() if key in PARTS}
    placed = {"required": ["norm"], "properties": {"norm": {"type": "object", "required": ["placement"]}}}
    ways = [{"required": [key]} for key in SAYS_POSITION]
    placing = {"properties": {"attention": {"anyOf": ways}}, "required": ["attention"]}
    return {
        "properties": {key: said for key, said in parts.items() if said},
        "allOf": [
            {"oneOf": [placed, {"required": ["block"]}]},
            {"anyOf": [{"required": ["positions"]}, placing, {"required": ["parts"]}]},
        ],
    }


def _required(field: FieldInfo) -> Json:
    """The keys that a class must have, its inner ones' too, or one of several; what is no mapping is not spoken of."""
    models = list(models_of(field.annotation))
    if len(models) == 1:
        return _required_of(models[0])
    return {"anyOf": [_required_of_type(model) for model in models]} if models else {}


def _required_of_type(model: type[BaseModel]) -> Json:
    said = _required_of(model)
    words = list(get_args(model.model_fields["type"].annotation))
    return {**said, "properties": {"type": {"enum": words}, **said.get("properties", {})}}


def _required_of(model: type[BaseModel]) -> Json:
    required = [name for name, inner in model.model_fields.items() if inner.is_required()]
    below = {name: said for name, inner in model.model_fields.items() if (said := _required(inner))}
    return ({"required": required} if required else {}) | ({"properties": below} if below else {})
