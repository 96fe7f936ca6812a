"""What transformers calls the scalings of rope: rope_parameters of the language's `rope`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Keys = Mapping[str, Any]
_YARN = ("factor", "beta_fast", "beta_slow", "truncate", "attention_factor")


def rope(keys: Keys, head_dim: int | None = None) -> dict[str, Any]:
    """Of halves as pairs. `dims` of a head the caller says; `pairs` want the width of a head here.

    Of longrope's two lists the library takes one by the length of a run: here both are the one that is chosen.
    """
    assert keys["pairing"] == "half"
    scaling: Keys = keys.get("scaling", {"type": "proportional" if "pairs" in keys else "default"})
    said: dict[str, Any] = {"rope_type": scaling["type"], "rope_theta": keys["theta"]}
    if "original" in scaling:
        said["original_max_position_embeddings"] = scaling["original"]
    match scaling["type"]:
        case "default":
            return said
        case "proportional":
            assert head_dim is not None
            return said | {"partial_rotary_factor": 2 * keys["pairs"] / head_dim}
        case "linear":
            return said | {"factor": scaling["factor"]}
        case "llama3":
            return said | {key: scaling[key] for key in ("factor", "low_freq_factor", "high_freq_factor")}
        case "yarn":
            return said | {key: scaling[key] for key in _YARN}
        case "dynamic":  # whose original is max_position_embeddings
            return {key: said[key] for key in ("rope_type", "rope_theta")} | {"factor": scaling["factor"]}
        case "longrope" if scaling["choose"] == "by_length":
            return said | {
                "attention_factor": scaling["attention_factor"], "short_factor": scaling["short"],
                "long_factor": scaling["long"],
            }  # fmt: skip
        case "longrope":
            factors = scaling[scaling["choose"]]
            return {"original_max_position_embeddings": 1, **said} | {
                "attention_factor": scaling["attention_factor"], "short_factor": factors, "long_factor": factors,
            }  # fmt: skip
        case other:
            raise AssertionError(f"a scaling that nobody has compared: {other}")
