"""Writes what is made from the catalogue of codes. Run it after a code or a message has changed, and read the diff.

    python -m tests.bad.renew

tests/bad/*.yaml and *.txt    the bad example of each code and the texts below, and what is said of them
tests/data/stability/codes.txt    the codes and their titles; a line that is there is never changed here
docs/diagnostics.md           from its heading The codes on
"""

from __future__ import annotations

from pathlib import Path

from blockc import api
from blockc.diagnostics import CODES, Code
from blockc.diagnostics.examples import BASE, OTHER_FILES, change_base, example_file
from blockc.diagnostics.pages import code_sections
from blockc.source import render_finding

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FROZEN = ROOT / "tests" / "data" / "stability" / "codes.txt"
PAGE = ROOT / "docs" / "diagnostics.md"
HEADING = "## The codes\n"

ROPE = "rope: {theta: 10000, pairing: half}"
# What no code's own example shows: keys of the base, or a whole file as bytes.
FURTHER: dict[str, str | bytes] = {
    "many-at-once": "vocab: true\nattention: {hedas: 4, heads: 4}\nmlp: {type: swish, width: 0}\nextra: 1\n",
    "many-while-parsing": "depth: 010\nvocab: ~\nvocab: 7\nhead: {tied: yes, tied: [\n",
    "many-in-terms": "norm: {type: rms, eps: 1e-5}\nblock: [attn, {residul: [mlp]}, mlp, {sum: [mlp]}]\n",
    "many-in-layers": "layers: {first: [{a: 0}, x], pattern: [7], kinds: {a: {}, b: {width: 3}}}\n",
    "nul-byte": b"blockc: 1\nname: a\0b\n",
    "utf-16": "blockc: 1\n".encode("utf-16"),
    "null-key": "mlp: {~: 1, type: swiglu, width: 192}\n",
    "tag-python": "mlp: !!python/name:os.system {}\n",
    "alias-bomb": "".join(
        (
            "init: {std: 1, a0: &a0 [" + ", ".join("x" * 9) + "]}\n",
            *(f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]\n" for n in range(1, 10)),
        )
    ),
    "alias-cycle": "block: &a [*a]\n",
    "brackets-2000": "block: " + "[" * 2000 + "]" * 2000 + "\n",
    "quoted-number": 'norm: {type: rms, eps: "1e-5", placement: pre}\n',
    "heads-true": f"attention: {{heads: true, {ROPE}}}\n",
    "heads-float": f"attention: {{heads: 32.0, {ROPE}}}\n",
    "heads-near-divisors": f"width: 1792\nattention: {{heads: 24, {ROPE}}}\n",
    "kv-groups": f"attention: {{heads: 4, kv_groups: 2, {ROPE}}}\n",
    "kv-heads-above-heads": f"attention: {{heads: 4, kv_heads: 8, {ROPE}}}\n",
    "kv-heads-negative": f"attention: {{heads: 4, kv_heads: -1, {ROPE}}}\n",
    "rope-dims-odd": "attention: {heads: 4, rope: {theta: 10000, pairing: half, dims: 7}}\n",
    "scaling-without-original": "attention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4}\n",
    "scaling-factor-zero": "attention:\n  heads: 4\n  rope:\n    theta: 10000\n    pairing: half\n"
    "    scaling: {type: llama3, factor: 0, low_freq_factor: 1, high_freq_factor: 4, original: 64}\n",
    "activation-near": "mlp: {type: gelu_tan, width: 192}\n",
    "huge": "width: 1000000000000\ndepth: 1000000000\n",
    "expect-parts": "layers: {pattern: [a, b], kinds: {a: {}, b: {mlp: {width: 128}}}}\n"
    "expect: {parameters: 1, layers: {a: 2}}\n",
    "name-is-code": 'name: "x\\"\\"\\"\\nimport os;os.system(\\"id\\")"\n',
    "name-is-a-path": "name: /etc/x\n",
    "name-of-a-device": "name: CON\n",
    "name-too-long": f"name: {'x' * 300}\n",
    "name-cyrillic": "name: nаme\n",
    "label-import": "norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp, __import__]\n",
    "label-of-a-module": "norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp, forward_norm, forward]\n",
    "line-separator": 'description: "a\\u2028b"\n',
    "lone-surrogate": 'description: "\\ud800"\n',
    "escape-in-a-name": 'name: "\\e[2J"\n',
    "error-is-not-ignored": f"attention: {{heads: 5, {ROPE}}}  # blockc: ignore BLC201\n",
    "ignore-of-no-code": "mlp: {type: swiglu, width: 170}  # blockc: ignore\n",
    "ignore-of-an-unknown-code": "mlp: {type: swiglu, width: 170}  # blockc: ignore BLC420, BLC402\n",
}


def texts() -> dict[str, bytes]:
    """The corpus: file names without suffix, and what is in the files."""
    own = {code.name: example_file(code, code.bad) for code in CODES.values() if of_a_file(code)}
    return own | {name: text if isinstance(text, bytes) else change_base(text) for name, text in FURTHER.items()}


def of_a_file(code: Code) -> bool:
    """Whether a spec file gives it: not a command line or another file, nor nothing that is known."""
    return bool(code.bad) and not (isinstance(code.bad, str) and code.bad.startswith(("$ ", *OTHER_FILES)))


def said(name: str, text: bytes) -> str:
    return "\n".join(map(render_finding, api.check_text(text, f"{name}.yaml"))) + "\n"


def frozen() -> dict[str, str]:
    return dict(line.split(" ", 1) for line in FROZEN.read_text().splitlines())


def page() -> str:
    head, _, _ = PAGE.read_text().partition(HEADING)
    return head + code_sections()


def main() -> None:
    for path in (*HERE.glob("*.yaml"), *HERE.glob("*.txt")):
        path.unlink()
    for name, text in texts().items():
        (HERE / f"{name}.yaml").write_bytes(text)
        (HERE / f"{name}.txt").write_text(said(name, text), encoding="utf-8")
    listed = {code.name: code.title for code in CODES.values()} | (frozen() if FROZEN.exists() else {})
    FROZEN.write_text("".join(f"{name} {title}\n" for name, title in sorted(listed.items())))
    PAGE.write_text(page())
    print(f"{len(texts())} specs, {len(CODES)} codes; the base is\n{BASE}")


if __name__ == "__main__":
    main()
