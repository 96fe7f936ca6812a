"""The proof of builds with codes, and what is refused of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc import api, cli
from blockc.basics.errors import CheckpointError, UsageError
from blockc.basics.floats import FloatType
from blockc.graph.quant import Quant, parse_quant
from blockc.graph.target import Target
from blockc.ir import Array, Blocks, inline
from blockc.ops import Embed, Linear
from blockc.ort.ops import BlockLinear
from blockc.products.manifest import MANIFEST, FolderError, read_manifest
from blockc.proof import prove
from blockc.proof.probes import KERNEL, TOLERANCE
from blockc.runtime import Session, SessionError
from blockc.weights import data as files
from blockc.weights import quantise
from blockc.weights.plan import DATA
from tests.checkpoints import kept, save, save_sharded, tensors, twin
from tests.paths import ROOT

INT4, INT8 = (Target("cpu", quant=parse_quant(word)) for word in ("int4", "int8"))
NAME = "llama3-8b"


def run(*arguments: str) -> int:
    return cli.run_guarded(lambda: cli.app(list(arguments), standalone_mode=False))


def checkpoint(folder: Path, name: str = NAME, held: dict[str, Array] | None = None) -> Path:
    return save(folder / "weights" / "model.safetensors", held or tensors(twin(name)))


def built(folder: Path, target: Target = INT4, name: str = NAME, **said: Any) -> Path:
    weights = said.pop("weights", None) or checkpoint(folder, name)
    api.build(twin(name), folder / "out", target=target, weights=weights, proof=False, **said)
    return folder / "out"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that its tests do not change."""
    return built(tmp_path_factory.mktemp("quant"))


# Probes


@pytest.mark.parametrize(("word", "kinds"), [
    ("int8", {"int8:32, 576 columns"}),
    ("int4:quality", {"int4:32, 576 columns", "int8:32, 576 columns"}),
    ("int4:128", {"int4:128, 576 columns", "int4:128, 1536 columns", "int8:128, 576 columns"}),
])  # fmt: skip
def test_each_kind_of_product_of_the_whole_model_is_run(word: str, kinds: set[str]) -> None:
    """The twin is 64 wide: what is left of 576 columns in blocks of 128 is of the model itself."""
    whole = api.compile(ROOT / "specs" / "smollm2-135m.yaml")
    target = Target("cpu", quant=parse_quant(word))
    proof = prove(api.twin(whole), targets=(target,), only=["one token"], whole=whole)
    rows = [row for row in proof.rows if row.backend == KERNEL]
    assert {row.variant for row in rows} == {f"{kind}, {count}" for kind in kinds for count in ("1 row", "5 rows")}
    assert all(0 < row.error <= row.tolerance == TOLERANCE for row in rows)
    assert proof.line.endswith("(1e-05)") and "kernels of int8" in proof.line


def test_a_kernel_that_differs_is_no_proof_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted = BlockLinear.onnx

    def exact(op: BlockLinear, *given: Any) -> Any:
        return emitted(replace(op, level=0), *given)

    monkeypatch.setattr(BlockLinear, "onnx", exact)
    small, weights = twin(NAME), checkpoint(tmp_path)
    with pytest.raises(api.NotProvedError, match=f"wrong: {KERNEL} differs .*product.*int8:32, .* columns"):
        api.build(small, tmp_path / "out", target=INT8, weights=weights)
    assert not (tmp_path / "out").exists()


def test_kernels_that_do_not_run_here_are_listed() -> None:
    cuda = Target("cuda", "fp16", quant=parse_quant("int8"))
    proof = prove(twin(NAME), targets=(cuda,), only=["one token"])
    assert KERNEL in proof.inapplicable and not any(row.backend == KERNEL for row in proof.rows)


# Codes against weights


@pytest.mark.parametrize("target", [
    INT4, INT8, Target("cpu", quant=parse_quant("int4:128")), Target("cpu", "fp16", quant=parse_quant("int8")),
    Target("cuda", "bf16", quant=parse_quant("int8:16")),
], ids=lambda t: f"{t.quant.name} {t.dtype}")  # fmt: skip
@pytest.mark.parametrize("name", [NAME, "gpt2", "gemma3-1b"])
def test_deep_compares_every_matrix_with_its_weights(name: str, target: Target, tmp_path: Path) -> None:
    """Also those that are joined, tied, transposed or no multiple of a block, and scales in half precision."""
    made = api.build(
        twin(name), tmp_path / "out", target=target, weights=checkpoint(tmp_path, name), proof=False, deep=True
    )
    (note,) = (note for note in made.notes if "half a step" in note)
    matrices = {n.params[0].name for n in inline(twin(name).function).nodes if isinstance(n.op, Linear | Embed)}
    learned = {path for path in matrices if not path.startswith("positions")}
    assert note.startswith(f"{len(learned)} matrices in codes are within half a step of the weights")
    assert ("beyond the codes" in note) == (target is INT4 or "int4" in str(target.quant and target.quant.name))


@pytest.mark.parametrize("fault", ["codes", "scales", "file"])
def test_deep_finds_codes_that_are_not_of_the_weights(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One code of a matrix, a scale a little too large, and rows that were written in another order."""
    right, convert = quantise.quantise_rows, files._convert  # pyright: ignore[reportPrivateUsage]

    def wrong(rows: Array, *given: Any, **said: Any) -> Any:
        codes, scales, lows = right(rows, *given, **said)
        if fault == "codes":
            codes[0, 0, 0] ^= 2
        return codes, scales * np.float32(1.01) if fault == "scales" else scales, lows

    monkeypatch.setattr(quantise, "quantise_rows", wrong)
    if fault == "file":

        def turned(piece: Array, dtype: str, own: FloatType) -> Array:
            return convert(piece[::-1] if dtype == "uint8" else piece, dtype, own)

        monkeypatch.setattr(files, "_convert", turned)
    with pytest.raises(CheckpointError, match="further than half a step from the weights"):
        built(tmp_path, INT8, deep=True)
    assert not (tmp_path / "out").exists()


def test_verify_deep_takes_a_build_without_linked_tensors(out: Path) -> None:
    """All bytes are in the data file, whose digest is compared."""
    checked = api.verify(out, deep=True)
    assert not checked.changed and not checked.outdated and checked.proof is not None and checked.proof.holds
    assert any(row.backend == KERNEL for row in checked.proof.rows)


def test_a_changed_scale_is_found_without_the_checkpoint(tmp_path: Path) -> None:
    made = built(tmp_path)
    data = bytearray((made / DATA).read_bytes())
    data[-4097] ^= 1
    (made / DATA).write_bytes(data)
    assert api.verify(made).changed == (DATA,)


@pytest.mark.parametrize("word", ["int4", "int8"])
def test_shards_in_bf16_give_the_codes_of_the_same_numbers_in_fp32(word: str, tmp_path: Path) -> None:
    held = {name: kept(array, "BF16") for name, array in tensors(twin(NAME)).items()}
    target, data = Target("cpu", quant=parse_quant(word)), list[bytes]()
    for folder in (save_sharded(tmp_path / "bf16", held, 3, "BF16"), checkpoint(tmp_path, held=held).parent):
        api.build(twin(NAME), tmp_path / "out", target=target, weights=folder, proof=False, force=True)
        data.append((tmp_path / "out" / DATA).read_bytes())
    assert data[0] == data[1] and len(set(data[0])) > 100


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_named(number: float, tmp_path: Path) -> None:
    held = tensors(twin(NAME))
    name = next(name for name in held if "down_proj" in name)
    held[name][0, 3] = number
    with pytest.raises(CheckpointError, match=f"not finite: {name} holds NaN or Inf"):
        built(tmp_path, weights=checkpoint(tmp_path, held=held))
    assert not (tmp_path / "out").exists()


# What is slow is refused


def test_codes_are_always_prepacked(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without, a step takes some forty times as long."""
    with pytest.raises(SessionError, match="matrices are in codes .int4., .*: open it with prepack"):
        Session(out, prepack=False)
    assert run("run", str(out), "--prompt", "a", "--no-prepack") == 1
    assert "open it with prepack" in capsys.readouterr().err
    asked, default = (np.asarray(Session(out, prepack=each).prefill([[1, 2, 3]])) for each in (True, None))
    np.testing.assert_array_equal(asked, default)


def test_a_build_of_floats_runs_as_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from blockc.runtime import opening

    made, opened, known = built(tmp_path, Target("cpu")), list[bool](), opening.session_at

    def at(path: Path, provider: Any, threads: Any, prepack: bool, capture: bool = False) -> Any:
        opened.append(prepack)
        return known(path, provider, threads, prepack, capture)

    monkeypatch.setattr(opening, "session_at", at)
    for prepack in (None, False, True):
        Session(made, prepack=prepack)
    assert opened == [False, False, True]


def test_a_level_for_proofs_is_not_built(tmp_path: Path) -> None:
    slow = replace(INT8, quant=replace(parse_quant("int8"), level=0))
    with pytest.raises(UsageError, match="^quant level 0 is for proofs"):
        built(tmp_path, slow)
    assert not (tmp_path / "out").exists()


# Words and manifests


@pytest.mark.parametrize("word", [
    "", "int", "int5", "int4:", "int4:0", "int4:33", "int4:512", "int4:0032", "int8:quality", "int4:fast", "INT4",
    " int4", "int4 ", "int4\n", "int4:٣٢", "q4_0", "int4:32:64", "\x1b[31mint4",
])  # fmt: skip
def test_a_wrong_word_is_named(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as raised:
        parse_quant(word)
    shown = ascii(word)[1:-1]
    assert raised.value.option == "quant" and shown in str(raised.value) and "expected" in str(raised.value)
    spec, weights = str(ROOT / "specs" / f"{NAME}.yaml"), str(checkpoint(tmp_path))
    assert run("build", spec, "--weights", weights, "--ep", "cpu", "--quant", word, "--out", str(tmp_path / "o")) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"blockc: --quant {shown}"[:20]) and "\x1b" not in said and not (tmp_path / "o").exists()


@pytest.mark.parametrize(("said", "code", "wanted"), [
    (["--ep", "cpu"], 2, "--quant is for weights: give them with --weights PATH"),
    (["--ep", "cpu", "--weights", "W", "--weights-mode", "link"], 2, "--quant and --weights-mode link say opposite"),
    (["--ep", "cpu", "--weights", "W", "--cache", "buffer"], 2, "--cache is for portable ONNX"),
])  # fmt: skip
def test_what_does_not_go_with_codes_is_said(
    said: list[str], code: int, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(checkpoint(tmp_path)) if word == "W" else word for word in said]
    spec = str(ROOT / "specs" / f"{NAME}.yaml")
    assert run("build", spec, "--quant", "int4", *arguments, "--out", str(tmp_path / "out")) == code
    assert wanted in capsys.readouterr().err and not (tmp_path / "out").exists()


BLOCKS = {"bits": 4, "size": 32, "lows": False}
QUANTS: dict[str, Any] = {
    "bits": {"rules": [["*", {**BLOCKS, "bits": 5}]]},
    "no size": {"rules": [["*", {**BLOCKS, "size": 0}]]},
    "large size": {"rules": [["*", {**BLOCKS, "size": 10**9}]]},
    "negative size": {"rules": [["*", {**BLOCKS, "size": -32}]]},
    "size of a word": {"rules": [["*", {**BLOCKS, "size": "32"}]]},
    "another key": {"rules": [["*", {**BLOCKS, "zero": 3}]]},
    "no blocks": {"rules": [["*", {}]]},
    "no pair": {"rules": [["*"]]},
    "a long pattern": {"rules": [["*a" * 10_000, BLOCKS]]},
    "stars": {"rules": [["*a" * 90, BLOCKS]] * 200},
    "many patterns": {"rules": [[f"*{i}", BLOCKS] for i in range(1000)]},
    "many rules": {"rules": [[f"x{i}", None] for i in range(10_000)]},
    "control": {"name": "\x1b[31mint4"},
    "no name": {"name": ""},
    "level": {"level": 0},
    "another level": {"level": 2},
    "scales": {"scales": "wrong"},
    "nothing stays": {"rules": []},
    "other blocks": {"rules": [["*", {**BLOCKS, "size": 16}]]},
    "a list": [],
}

LIKE_OURS = ("stars", "level", "nothing stays", "other blocks")  # recipes of another graph than the build's


@pytest.mark.parametrize("kind", QUANTS)
def test_an_odd_recipe_in_a_manifest_is_one_error(
    kind: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either the manifest is not of blockc, or it is of another graph."""
    folder = tmp_path / "out"
    folder.mkdir()
    for each in out.iterdir():
        (folder / each.name).hardlink_to(each)
    said = json.loads((out / MANIFEST).read_text())
    asked = QUANTS[kind]
    said["target"]["quant"] = {**said["target"]["quant"], **asked} if isinstance(asked, dict) else asked
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).write_text(json.dumps(said))
    assert run("verify", str(folder)) == 1
    told = capsys.readouterr().err
    assert str(folder) in told and "Traceback" not in told and "\x1b" not in told and len(told) < 4000
    if "not a manifest" in told:
        with pytest.raises(FolderError):
            read_manifest(folder)
        with pytest.raises(SessionError):
            Session(folder)
    else:
        assert kind in LIKE_OURS
    assert "another value" not in told


def test_the_first_rule_that_matches_says() -> None:
    narrow, wide = Blocks(4, 32), Blocks(8, 16)
    quant = Quant("mine", (("head", None), ("layers.*.v", wide), ("layers.3.*", narrow), ("*.v*", None), ("*", narrow)))
    found = {
        name: quant.blocks_for([name]) for name in ("head", "layers.1.attention.v", "layers.3.mlp.up", "x", "a.vb")
    }
    assert list(found.values()) == [None, wide, narrow, narrow, None]
    assert quant.blocks_for(["embedding", "head"]) is None, "a matrix that is tied"
    assert quant.blocks_for([]) is None and Quant("none", ()).blocks_for(["head"]) is None
    stars = Quant("stars", (("*a" * 90 + "b", narrow),))
    assert stars.blocks_for(["a" * 5000]) is None and stars.blocks_for(["a" * 5000 + "b"]) == narrow
