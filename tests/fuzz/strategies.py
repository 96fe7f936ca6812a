"""Specs by chance: valid ones over the whole language, and valid ones with one thing changed.

A spec is drawn as plain data and written by `text`, a top-level key a line. All are tiny. BLOCKC_FUZZ=n draws n times
as many, other ones each time; without it the same few are drawn in every run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from blockc.language.spec import PLACEMENTS

Keys = dict[str, Any]
TIMES = int(os.environ.get("BLOCKC_FUZZ", "0"))

EPS = st.sampled_from([1e-6, 1e-5, 1e-3, 0.1])
CAPS = st.sampled_from([0.5, 3, 30.0])
FACTORS = st.sampled_from([0.1, 0.25, 1, 2.0])


def counted(few: int, shrink: bool = True) -> settings:
    """So many cases in every run, the same ones; TIMES as many where a long run is asked for, by chance.

    Where a case takes long, the first that fails is shown as it was drawn.
    """
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])]
    return settings(
        max_examples=few * max(TIMES, 1),
        derandomize=not TIMES,
        deadline=None,
        phases=phases,
        database=None,
        print_blob=bool(TIMES),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
    )


def some(draw: st.DrawFn, items: Sequence[str]) -> list[str]:
    """Some of them, in any order."""
    return draw(st.lists(st.sampled_from(list(items)), unique=True, max_size=len(items)))


def maybe(draw: st.DrawFn, likely: float = 0.5) -> bool:
    return draw(st.integers(0, 99)) < likely * 100


# Parts


BY_LENGTH: Keys = {"choose": "by_length", "original": 8}


@st.composite
def ropes(draw: st.DrawFn, head_dim: int) -> Keys:
    rope: Keys = {"theta": draw(st.sampled_from([100, 10000.0, 5e5])),
                  "pairing": draw(st.sampled_from(["half", "interleaved"]))}  # fmt: skip
    part = draw(st.sampled_from(["whole", "dims", "pairs"]))
    if part == "dims":
        rope["dims"] = 2 * draw(st.integers(1, head_dim // 2))
    if part == "pairs":
        rope["pairs"] = draw(st.integers(1, head_dim // 2))
    if maybe(draw, 0.25):
        wide = rope.get("dims", head_dim)
        rope["scaling"] = draw(scalings(rope.get("pairs", wide // 2), wide))
    return rope


@st.composite
def scalings(draw: st.DrawFn, pairs: int, wide: int) -> Keys:
    kinds = ["linear", "llama3", "yarn", "longrope", *(["dynamic"] if wide > 2 else [])]
    kind, low = draw(st.sampled_from(kinds)), draw(st.sampled_from([0.5, 1]))
    if kind == "longrope":
        lists = {key: [draw(st.sampled_from([1, 1.5, 8])) for _ in range(pairs)] for key in ("short", "long")}
        chosen: Keys = draw(st.sampled_from([{"choose": "short"}, {"choose": "long"}, BY_LENGTH]))
        return {"type": kind, **chosen, "attention_factor": draw(st.sampled_from([0.5, 1.25])), **lists}
    keys: Keys = {"type": kind, "factor": draw(st.sampled_from([2, 8.0]))}
    if kind == "llama3":
        keys |= {"low_freq_factor": low, "high_freq_factor": low + draw(st.sampled_from([0.5, 3]))}
    if kind == "yarn":
        keys |= {"beta_slow": low, "beta_fast": low + draw(st.sampled_from([0.5, 31])), "truncate": draw(st.booleans()),
                 "attention_factor": draw(st.sampled_from(["none", 0.5, 1.25]))}  # fmt: skip
    return (
        keys
        if kind == "linear"
        else keys | {"original": draw(st.sampled_from([8, *([64] if kind != "dynamic" else [])]))}
    )


@st.composite
def latent_attentions(draw: st.DrawFn, heads: int, context: int, causal: bool) -> Keys:
    turned = draw(st.sampled_from([2, 4, 8]))
    sizes = {key: draw(st.integers(1, 20)) for key in ("kv_rank", "nope_dim", "v_dim")}
    latent: Keys = {**sizes, "rope_dim": turned, "norm": {"eps": draw(EPS)}}
    if maybe(draw):
        latent["q_rank"] = draw(st.integers(1, 20))
    rope = {key: value for key, value in draw(ropes(turned)).items() if key not in ("dims", "pairs")}
    if "scaling" in rope and rope["scaling"]["type"] == "longrope":  # whose lists are for the part that was drawn
        del rope["scaling"]
    keys: Keys = {"heads": heads, "latent": latent, "rope": rope}
    if not causal:
        keys["causal"] = False
    elif maybe(draw, 0.4):
        keys["window"] = draw(st.integers(1, min(context - 1, 16)))
    if maybe(draw, 0.3):
        keys["scale"] = draw(FACTORS)
    return keys


@st.composite
def attentions(draw: st.DrawFn, width: int, context: int, norm: Keys | None, causal: bool = True) -> Keys:
    heads = draw(st.sampled_from([1, 2, 4]))
    if maybe(draw, 0.15):
        return draw(latent_attentions(heads, context, causal))
    head_dim = draw(st.sampled_from([2, 4, 16, 16, 32]))
    keys: Keys = {"heads": heads}
    if maybe(draw):
        keys["kv_heads"] = draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]))
    if width % heads or (width // heads) % 2 or maybe(draw):
        keys["head_dim"] = head_dim
    head_dim = keys.get("head_dim", width // heads)
    if not causal:
        keys["causal"] = False
    elif maybe(draw, 0.4):
        keys["window"] = draw(st.integers(1, min(context - 1, 16)))
    for key, values in (("scale", FACTORS), ("softcap", CAPS), ("clip", CAPS)):
        if maybe(draw, 0.3):
            keys[key] = draw(values)
    if bias := some(draw, "qkvo"):
        keys["bias"] = bias
    if maybe(draw, 0.6):
        keys["rope"] = draw(ropes(head_dim))
    if causal and maybe(draw, 0.2):
        keys["alibi"] = {"max_bias": draw(st.sampled_from([0.5, 8]))}
    if maybe(draw, 0.3):
        over = draw(st.sampled_from(["head", "projection"]))
        keys["qk_norm"] = {"over": over}
        bare = maybe(draw, 0.2)
        if bare:
            keys["qk_norm"]["weight"] = False
        elif over == "head":
            keys["qk_norm"]["weights"] = draw(st.sampled_from(["shared", "own"]))
        if over == "head" and maybe(draw, 0.3):
            keys["qk_norm"]["order"] = "after_rope"
        if norm is None or maybe(draw, 0.2):
            keys["qk_norm"] |= {"type": draw(st.sampled_from(["rms", "layer"])), "eps": draw(EPS)}
        shared = not bare and keys["qk_norm"].get("weights") != "own"
        if not shared:
            keys["qk_norm"]["offset"] = "none"
        if shared and keys["qk_norm"].get("type") == "layer" and maybe(draw):
            keys["qk_norm"]["bias"] = True
    if maybe(draw, 0.2):
        keys["v_norm"] = {"over": "head", "weight": False}
        if norm is None or maybe(draw, 0.2):
            keys["v_norm"] |= {"type": draw(st.sampled_from(["rms", "layer"])), "eps": draw(EPS)}
    if "v" not in bias and maybe(draw, 0.2):
        keys["v_from"] = "k"
    if maybe(draw, 0.2):
        keys["sub_norm"] = draw(sub_norms(norm))
    return keys


@st.composite
def sub_norms(draw: st.DrawFn, norm: Keys | None) -> Keys:
    """Of type and eps of its own where there is no norm to take them from, or the norm's."""
    if norm is not None and maybe(draw):
        kind, own = norm["type"], {}
    else:
        kind = draw(st.sampled_from(["rms", "layer"]))
        own = {"type": kind, "eps": draw(EPS)}
    keys: Keys = {"weight": draw(st.booleans()), **own}
    if not keys["weight"]:
        keys["offset"] = "none"
    return keys | ({"bias": True} if keys["weight"] and kind == "layer" and maybe(draw) else {})


@st.composite
def mlps(draw: st.DrawFn) -> Keys:
    gated = ["swiglu", "geglu", "geglu_tanh", "reglu", "reglu2"]
    plain = ["gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu", "xielu"]
    kind = draw(st.sampled_from(gated + plain))
    keys: Keys = {"type": kind, "width": draw(st.integers(1, 64))}
    if bias := some(draw, ["gate", "up", "down"] if "glu" in kind else ["up", "down"]):
        keys["bias"] = bias
    return keys


@st.composite
def norms(draw: st.DrawFn) -> Keys:
    if maybe(draw, 0.6):
        return {"type": "rms", "eps": draw(EPS)} | (offset(draw) or bare(draw))
    return {"type": "layer", "eps": draw(EPS)} | (bare(draw) or {"bias": draw(st.booleans()), **offset(draw)})


def bare(draw: st.DrawFn) -> Keys:
    return {"weight": False} if maybe(draw, 0.15) else {}


def offset(draw: st.DrawFn) -> Keys:
    return {"offset": draw(st.sampled_from([1, 0.5]))} if maybe(draw, 0.3) else {}


# Blocks


@st.composite
def terms(draw: st.DrawFn, units: list[list[str]], depth: int = 2) -> list[Any]:
    """A chain in which each label stands once; the labels of a unit stay together."""
    chain: list[Any] = []
    while units:
        take = draw(st.integers(1, len(units)))
        now, units = units[:take], units[take:]
        form = draw(st.sampled_from(["residual", "residual", "sum", "plain"])) if depth else "plain"
        scale = [{"scale": draw(FACTORS)}] if maybe(draw, 0.15) else []
        if form == "sum" and len(now) > 1:
            cut = draw(st.integers(1, len(now) - 1))
            branches = [draw(terms(now[:cut], depth - 1)), draw(terms(now[cut:], depth - 1))]
            inner: Any = {"sum": branches}
            chain.append({"residual": [inner, *scale]} if maybe(draw) else inner)
        elif form == "residual":
            chain.append({"residual": [*draw(terms(now, depth - 1)), *scale]})
        else:
            chain += [*(label for unit in now for label in unit), *scale]
    return chain


@st.composite
def blocks(draw: st.DrawFn, parts: Keys) -> list[Any]:
    """A term over attention, the MLP, their norms and the labels of `parts`.

    A mixer reads a norm: a gated MLP of what another gave would soon leave the range of fp32, and say nothing.
    """
    units: list[list[str]] = []
    for label in draw(st.permutations(["attention", "mlp", *parts])):
        if label.endswith("_norm"):
            units.append([label])
            continue
        after = [f"{label}_post_norm"] if maybe(draw, 0.3) else []
        units.append([f"{label}_first_norm", label, *after])
    return draw(terms(units))


@st.composite
def own_parts(draw: st.DrawFn, width: int, context: int, norm: Keys, causal: bool) -> Keys:
    made: Keys = {}
    for label in some(draw, ["wide", "second", "half_norm"]):
        if label == "wide":
            made[label] = {"mlp": draw(mlps())}
        elif label == "second":
            made[label] = {"attention": whole(draw(attentions(width, context, norm, causal)), width)}
        else:
            made[label] = {"norm": whole_norm(draw(norms()))}
    return made


def whole_norm(norm: Keys) -> Keys:
    """With what takes back what the layer's own norm says."""
    bare = {"offset": "none", **({"bias": False} if norm["type"] == "layer" else {})}
    return norm | (bare if "weight" in norm else {"weight": True})


def whole(attention: Keys, width: int) -> Keys:
    """With `none` for what it does not say, as a part takes the rest from the layer's key of its name."""
    said = ("window", "scale", "softcap", "clip", "bias", "rope", "alibi", "qk_norm", "v_norm", "sub_norm", "v_from")
    absent = dict.fromkeys((*said, "latent"), "none")
    sizes: Keys = {"kv_heads": attention["heads"], "head_dim": width // attention["heads"]}
    made: Keys = {**absent, **(dict.fromkeys(sizes, "none") if "latent" in attention else sizes), **attention}
    for key, words in (("rope", ("dims", "pairs", "scaling")), ("qk_norm", ("weights", "order", "bias"))):
        if made[key] != "none":
            made[key] = dict.fromkeys(words, "none") | made[key]
    return made


# Layers


@st.composite
def overlays(draw: st.DrawFn, spec: Keys) -> Keys:
    """What a kind changes: of attention alone, so that it may be joined to one of the rest, or of the rest."""
    attention, width = spec["attention"], spec["width"]
    causal = attention.get("causal", True)
    head_dim = attention.get("head_dim", width // attention["heads"])
    window = {"window": draw(st.integers(1, min(spec["context"] - 1, 16)))}
    of_any: list[Keys] = [{"scale": draw(FACTORS)}, *([window, {"window": "none"}] if causal else [])]
    of_attention: list[Keys] = of_any if "latent" in attention else [
        {"rope": "none"}, {"alibi": {"max_bias": 8.0} if causal else "none"},
        {"rope": draw(ropes(head_dim))} if "rope" not in attention else {}, {"softcap": draw(CAPS)},
        {"softcap": "none"}, {"bias": "none"}, {"qk_norm": "none"},
        {"heads": attention["heads"] * 2, "head_dim": head_dim}, *of_any,
    ]  # fmt: skip
    keys: Keys = {}
    if change := draw(st.sampled_from(of_attention)):
        keys["attention"] = change
    if maybe(draw, 0.3):
        keys["mlp"] = draw(mlps())
    if maybe(draw, 0.3):
        keys["norm"] = {"eps": draw(EPS)}
    if maybe(draw, 0.2) and "parts" not in spec:
        if "block" in spec:
            keys["norm"] = {**keys.get("norm", {}), "placement": draw(st.sampled_from([*PLACEMENTS]))}
        else:
            keys |= {"block": draw(blocks({})), "residual_scale": "none"}
    return keys


@st.composite
def layered(draw: st.DrawFn, spec: Keys) -> Keys:
    """first, pattern and last over kinds that are all laid."""
    depth = spec["depth"]
    names = ["near", "far", "wide_one"][: draw(st.integers(1, min(depth, 3)))]
    kinds = {name: draw(overlays(spec)) for name in names}
    order = [*names, *(draw(st.sampled_from(names)) for _ in range(depth - len(names)))]
    order = list(draw(st.permutations(order)))
    start, stop = sorted((draw(st.integers(0, depth)), draw(st.integers(0, depth))))
    laid = {"first": order[:start], "pattern": order[start:stop], "last": order[stop:]}
    return {**{key: runs(entries) for key, entries in laid.items() if entries}, "kinds": kinds}


def runs(entries: list[str]) -> list[Any]:
    """Three equal layers as one entry with a count."""
    return [{entries[0]: len(entries)}] if len(entries) > 1 and len(set(entries)) == 1 else list(entries)


# Whole specs


@st.composite
def embeddings(draw: st.DrawFn, width: int) -> Keys:
    wide = st.sampled_from([4, width // 2, width * 2]).filter(lambda wide: wide != width)
    keys = {"scale": st.sampled_from(["sqrt_width", 0.5, 3, {"rsqrt": 2}]), "width": wide, "norm": norms()}
    return {key: draw(values) for key, values in keys.items() if maybe(draw)}


@st.composite
def specs(draw: st.DrawFn) -> Keys:
    width, context = draw(st.sampled_from([8, 12, 16, 32, 64])), draw(st.integers(16, 64))
    norm = draw(norms())
    causal = maybe(draw, 0.85)
    spec: Keys = {
        "blockc": 1,
        "name": draw(st.sampled_from(["tiny", "t-1.x", "T_2", "1e5"])),
        "vocab": draw(st.integers(4, 64)),
        "width": width,
        "depth": draw(st.integers(1, 3)),
        "context": context,
        "attention": draw(attentions(width, context, norm, causal)),
        "mlp": draw(mlps()),
        "head": {"tied": draw(st.booleans())},
    }
    if maybe(draw, 0.3) and (parts := draw(own_parts(width, context, norm, causal))):
        spec["parts"] = parts
    if "parts" in spec or maybe(draw, 0.3):
        spec["block"] = draw(blocks(spec.get("parts", {})))
    else:
        norm = norm | {"placement": draw(st.sampled_from([*PLACEMENTS]))}
        if maybe(draw, 0.2):
            spec["residual_scale"] = draw(FACTORS)
    if maybe(draw, 0.3):
        norm = norm | {"final": draw(st.booleans())}
    spec["norm"] = norm
    of_head = {"bias": st.booleans(), "scale": FACTORS, "softcap": CAPS}
    spec["head"] |= {key: draw(values) for key, values in of_head.items() if maybe(draw, 0.3)}
    if maybe(draw, 0.3):
        spec["embedding"] = draw(embeddings(width))
    spec["positions"] = draw(
        st.sampled_from(["none", {"type": "learned"}, {"type": "learned", "offset": 2}, {"type": "sinusoidal"}])
    )
    if spec["positions"] == "none" and spec["attention"].keys() & {"rope", "alibi"} and maybe(draw):
        del spec["positions"]
    if maybe(draw, 0.4):
        spec["layers"] = draw(layered(spec))
        if all(kind.get("attention", {}).get("rope") == "none" for kind in spec["layers"]["kinds"].values()):
            spec.setdefault("positions", "none")
    return spec


# Text


def flow(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(flow, value)) + "]"
        case str() if value == "1e5":
            return '"1e5"'
        case _:
            return str(value)


def text(spec: Keys) -> str:
    return "".join(f"{key}: {flow(value)}\n" for key, value in spec.items())


# Almost valid

ODD = st.sampled_from([
    0, -1, 1, 2, 3, 7, 64, 10**9, 10**29, 0.0, -0.5, 1.5, 1e-300, 1e300, True, False, "none", "null", "word", '"3"', "",
    "half", "rms", "layer", "swiglu", "q", "attention", "mlp_norm", [], [1], ["q", "q"], ["attention"], {},
    {"type": "x"}, {"a": {"b": {"c": 1}}}, [[[]]], ".inf", "0x10", "1_000", "010", "!!int 3", "&a 3", "*a", "<<", "~",
    "2001-01-01", "é", "x" * 300, {"residual": []}, {"sum": [["mlp"]]}, [{"residual": ["mlp", "mlp"]}],
])  # fmt: skip


def paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a value, but the root's."""
    if isinstance(value, dict):
        return [p for key, each in value.items() for p in ((*path, key), *paths(each, (*path, key)))]
    if isinstance(value, list):
        return [p for i, each in enumerate(value) for p in ((*path, i), *paths(each, (*path, i)))]
    return []


@st.composite
def almost(draw: st.DrawFn) -> str:
    """A valid spec with one value, one key or one place of it changed."""
    spec = draw(specs())
    path = draw(st.sampled_from(paths(spec)))
    held: Any = spec
    for step in path[:-1]:
        held = held[step]
    last = path[-1]
    how = draw(st.sampled_from(["value", "value", "value", "remove", "rename", "add", "twice", "elsewhere"]))
    if how == "value":
        held[last] = draw(ODD)
    elif how == "remove":
        del held[last]
    elif how == "elsewhere":
        held[last] = flow_free(draw(st.sampled_from([spec[key] for key in spec])))
    elif isinstance(held, dict) and isinstance(last, str):
        value = held[last]
        if how == "rename":
            word = draw(
                st.sampled_from([last[:-1] or "x", last + "s", last.upper(), "n_" + last, "hidden_size", "<<", "1"])
            )
            items = [(word if key == last else key, each) for key, each in held.items()]
            held.clear()
            held.update(items)
        elif how == "add":
            held[draw(st.sampled_from(["unknown", "experts", "type", "bias", "block", "window", "scale"]))] = draw(ODD)
        else:
            held[Twice(last)] = value
    elif isinstance(held, list):
        held.append(draw(ODD))
    return text(spec)


class Twice(str):
    """A key that is written a second time."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def flow_free(value: Any) -> Any:
    """A copy, as no value may hold itself."""
    if isinstance(value, dict):
        return {key: flow_free(each) for key, each in value.items()}
    return [flow_free(each) for each in value] if isinstance(value, list) else value
