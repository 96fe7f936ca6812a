"""LoRA adapters as PEFT saves them, merged into the weights that a model is built from.

    W' = W + (alpha / r) B A        A (r, inputs), B (outputs, r); with rsLoRA alpha / sqrt(r)      (Hu et al. 2021)

An adapter names modules as transformers' classes do, and so does the layout of the spec. The layout's rules therefore
map the product B A to parameters, whatever format the weights have. PEFT also saves the W of an embedding or a head
that it adapts, and reads it from there; so does this module. Anything else, such as DoRA's magnitudes, is refused by
name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from blockc.basics.errors import CheckpointError, escape, shorten
from blockc.basics.jsonfile import read_json_object
from blockc.ir import Array
from blockc.weights.matching import split_tensor
from blockc.weights.rules import Rule, Rules
from blockc.weights.safetensors import StoredTensor, locate_in_files

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PAIR = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\."
    r"(?:lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?|(?P<base>base_layer)\.weight)"
)
# Initialisations that leave the model's own weights as they are; the others change them.
_INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
_READ = frozenset((
    "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules",
    "init_lora_weights",
))  # fmt: skip
_WITHOUT_EFFECT = frozenset((
    "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version",
    "lora_dropout", "fan_in_fan_out", "layers_to_transform", "layers_pattern", "exclude_modules", "loftq_config",
    "eva_config", "corda_config", "lora_ga_config", "megatron_core", "runtime_config", "qalora_group_size",
    "ensure_weight_tying",
))  # fmt: skip
# What an adapter may have besides products B A, and why it is not merged.
_REFUSED = {
    "use_dora": "DoRA scales each row of the merged matrix by a magnitude of its own",
    "modules_to_save": "it replaces whole modules",
    "lora_bias": "its B has a bias",
    "trainable_token_indices": "it replaces rows of the embedding",
    "target_parameters": "it names parameters that are not modules",
    "alora_invocation_tokens": "it is active only after certain tokens",
    "layer_replication": "it adds layers",
    "use_qalora": "it pools the inputs of quantised weights",
}


@dataclass(frozen=True)
class LowRank:
    """scale B A, in the shape of the module's weight: (outputs, inputs), or (tokens, width) of an embedding."""

    module: str
    a: StoredTensor
    b: StoredTensor
    scale: float
    embedding: bool
    base: StoredTensor | None = None  # W, where the adapter has it

    @property
    def shape(self) -> tuple[int, ...]:
        outputs, inputs = self.b.shape[0], self.a.shape[1]
        return (inputs, outputs) if self.embedding else (outputs, inputs)

    def read(self) -> Array:
        product = self.b.read().astype(np.float32) @ self.a.read().astype(np.float32) * np.float32(self.scale)
        return product.T if self.embedding else product


@dataclass(frozen=True)
class Delta:
    """The part of a module's product that is added to one parameter."""

    product: LowRank
    rule: Rule
    part: int

    def read(self) -> Array:
        # A product has its outputs first, as parameters do, even where the checkpoint's file is transposed.
        return split_tensor(replace(self.rule, transpose=False), self.product.read())[self.part]


@dataclass(frozen=True)
class Adapter:
    folder: Path
    products: tuple[LowRank, ...]


def open_adapter(folder: Path) -> Adapter:
    """Reads a PEFT folder: its configuration and the shapes of its tensors. Raises CheckpointError, FileError."""
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            other = " (pickled weights, .bin, are never opened)" if (folder / "adapter_model.bin").exists() else ""
            raise CheckpointError(f"{folder}: not a LoRA adapter as PEFT saves it, for it has no {name}{other}")
    config = read_json_object(folder / CONFIG)
    tensors, _ = locate_in_files([folder / TENSORS])
    faults = [*_check_config(config), *_check_pairs(tensors)]
    if faults:
        raise _adapter_error(folder, faults)
    products, faults = _read_products(config, tensors)
    if faults := [*faults, *_check_targets(config, products)]:
        raise _adapter_error(folder, faults)
    return Adapter(folder, tuple(products))


def deltas_of(rules: Rules, adapters: Sequence[Adapter]) -> dict[str, tuple[Delta, ...]]:
    """What is added to each parameter, by its path. `rules` are those of the layout that names the modules.

    Raises CheckpointError naming every module that the model lacks or has in another shape.
    """
    found: dict[str, tuple[Delta, ...]] = {}
    for adapter in adapters:
        named = _rules_by_name(rules, adapter)
        faults: list[str] = []
        for product in adapter.products:
            rule = named.get(f"{product.module}.weight")
            if (why := _describe_misfit(rules, product, rule)) or rule is None:
                faults.append(why)
                continue
            for part, target in enumerate(rule.targets):
                found[target] = (*found.get(target, ()), Delta(product, rule, part))
        if faults:
            raise _adapter_error(adapter.folder, faults)
    return found


def _rules_by_name(rules: Rules, adapter: Adapter) -> Mapping[str, Rule]:
    """The rules by the names that the adapter uses, with the prefix that most of its modules have."""
    held = rules.patterns
    choices = [{spelled(rule.name): rule for rule in rules} for spelled in held.spellings]
    return max(choices, key=lambda names: sum(f"{product.module}.weight" in names for product in adapter.products))


def _describe_misfit(rules: Rules, product: LowRank, rule: Rule | None) -> str:
    if rule is None:
        if any(f"{product.module}.weight".endswith(name) for name in rules.patterns.tied):
            return f"{product.module} shares its matrix with the embedding, which would change too"
        return f"the model has no module {escape(product.module)}"
    if rule.expert is not None or len(rule.joined) > 2:
        return f"{product.module} is of a mixture's experts, to which no adapter is merged"
    if product.embedding and rules.patterns.tied:
        return f"{product.module} shares its matrix with the head, which would change too"
    if rule.joined != product.shape:
        return f"{product.module} is {product.shape}, and the model's {rule.joined}"
    if product.base is not None and product.base.shape != rule.shape:
        return f"{product.module}.base_layer is {product.base.shape}, and the model's {rule.shape}"
    return ""


def _check_config(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("peft_type") != "LORA":
        yield f"peft_type is {escape(config.get('peft_type'))}, and LORA alone is merged"
    for key, value in config.items():
        if key in _READ or key in _WITHOUT_EFFECT or not value or (key, value) == ("bias", "none"):
            continue
        of = f" of {', '.join(map(escape, cast(list[Any], value)))}" if isinstance(value, list) else ""
        yield f"{escape(key)}{of}: {_REFUSED.get(key, 'its effect is not known, so it is not ignored')}"
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(key) or {}
        for pattern in patterns if isinstance(patterns, dict) else [patterns]:
            if not re.fullmatch(r"\^?(?:[A-Za-z0-9_.]|\\\.)+\$?", str(pattern)):
                yield f"{key} {escape(pattern)}: expected a name of modules, not another pattern"
    if (initial := config.get("init_lora_weights", True)) not in _INITIAL:
        yield f"init_lora_weights {escape(initial)}: it needs weights other than the model's own"


def _check_pairs(tensors: Mapping[str, StoredTensor]) -> Iterator[str]:
    pairs: dict[str, set[str]] = {}
    for name in tensors:
        if (parts := _PAIR.fullmatch(name)) is None:
            yield f"tensor {escape(name)}: neither lora_A nor lora_B"
        else:
            pairs.setdefault(parts["module"], set()).add(parts["side"] or "base")
    for module, sides in pairs.items():
        yield from (f"{escape(module)} has no lora_{side}" for side in sorted({"A", "B"} - sides))


def _read_products(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> tuple[list[LowRank], list[str]]:
    """(The products; what is wrong with their shapes and scales.)"""
    sides: dict[str, dict[str, StoredTensor]] = {}
    embeddings: set[str] = set()
    for name, tensor in tensors.items():
        parts = cast(re.Match[str], _PAIR.fullmatch(name))
        sides.setdefault(parts["module"], {})[parts["side"] or "base"] = tensor
        embeddings |= {parts["module"]} if parts["embedding"] else set()
    products: list[LowRank] = []
    faults: list[str] = []
    for module, pair in sides.items():
        a, b = pair["A"], pair["B"]
        rank, alpha = _value_for_module(config, "r", module, 8), _value_for_module(config, "lora_alpha", module, 8)
        if len(a.shape) != 2 or len(b.shape) != 2 or not a.shape[0] == b.shape[1] == rank:
            faults.append(f"{escape(module)}: A {a.shape} and B {b.shape} are no product of rank {escape(rank)}")
        elif a.dtype.kind != "f" or b.dtype.kind != "f":
            faults.append(f"{escape(module)}: {a.word} and {b.word}, expected floating-point numbers")
        elif isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
            faults.append(f"{escape(module)}: lora_alpha {escape(alpha)} is no number")
        else:
            over = math.sqrt(rank) if config.get("use_rslora") else rank
            products.append(LowRank(module, a, b, alpha / over, module in embeddings, pair.get("base")))
    return products, faults


def _value_for_module(config: Mapping[str, Any], key: str, module: str, absent: int) -> Any:
    """The key's value for a module: rank_pattern and alpha_pattern may set it by the end of the module's name."""
    patterns = config.get({"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key]) or {}
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        bare = str(pattern).removeprefix("^").removesuffix("$").replace("\\.", ".")
        whole = str(pattern).startswith("^")
        if module == bare or (not whole and module.endswith(f".{bare}")):
            return value
    return config.get(key, absent)


def _check_targets(config: Mapping[str, Any], products: Sequence[LowRank]) -> Iterator[str]:
    """A line for each module that the configuration names and no tensor adapts. A pattern names no single module."""
    named = config.get("target_modules")
    for name in cast(list[Any], named) if isinstance(named, list) else ():
        if not any(product.module == name or product.module.endswith(f".{name}") for product in products):
            yield f"target module {escape(name)}: the adapter has no tensor for it"


def _adapter_error(folder: Path, faults: Sequence[str]) -> CheckpointError:
    return CheckpointError("\n  ".join([f"{folder}: this adapter cannot be merged:", *shorten(faults)]))
