"""Builds with weights: right numbers in onnxruntime, whole folders, little memory, and nothing foreign touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.graph.target import FloatType, Target
from blockc.importing.figures import figures_of
from blockc.pipeline.compiled import Compiled
from blockc.products import folder
from blockc.products.staging import MANIFEST, FolderError
from blockc.proof import Proof
from blockc.weights.plan import DATA, Mode
from tests.checkpoints import ROOT, kept, off_by, parameters_in, save, save_empty, save_sharded, tensors, twin

NAMES = ("llama3-8b", "gemma2-9b", "gpt2", "pythia-410m")
COMMITTED = {"model.py", "graph.txt", "report.json", "spec.resolved.yaml"}


def built(name: str, out: Path, weights: Path, mode: Mode | None = "link", dtype: FloatType = "fp32") -> api.Built:
    return api.build(twin(name), out, proof=False, weights=weights, mode=mode, target=Target(dtype=dtype))


def checkpoint(name: str, path: Path, word: str = "F32") -> Path:
    return save(path / "model.safetensors", tensors(twin(name)), word)


def manifest(out: Path) -> dict[str, Any]:
    return json.loads((out / MANIFEST).read_text())


def _unproved(model: Compiled, **asked: object) -> Proof:
    return Proof(model.spec.name, ())


@pytest.fixture
def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin's proof is no part of what a test asks: it takes seconds."""
    monkeypatch.setattr(folder, "prove", _unproved)


# Numbers


@pytest.mark.parametrize("mode", ["link", "pack"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_oracles(name: str, mode: Mode, tmp_path: Path) -> None:
    """gpt2's matrices are turned and pythia's joined, so that they are packed in either mode."""
    held = tensors(twin(name))
    built(name, tmp_path / "out", save(tmp_path / "model.safetensors", held), mode)
    assert off_by(twin(name), tmp_path / "out" / "model.onnx", parameters_in(twin(name), held)) < 3e-5


@pytest.mark.parametrize("mode", ["link", "pack"])
@pytest.mark.parametrize("word", ["BF16", "F16", "F64"])
@pytest.mark.parametrize("name", ["llama3-8b", "gpt2"])
def test_a_file_of_another_float_type_is_cast(name: str, word: str, mode: Mode, tmp_path: Path) -> None:
    held = tensors(twin(name))
    built(name, tmp_path / "out", save(tmp_path / "model.safetensors", held, word), mode)
    params = parameters_in(twin(name), {key: kept(array, word) for key, array in held.items()})
    assert off_by(twin(name), tmp_path / "out" / "model.onnx", params) < 3e-5


@pytest.mark.parametrize("mode", ["link", "pack"])
@pytest.mark.parametrize("name", NAMES)
def test_fp16_is_close(name: str, mode: Mode, tmp_path: Path) -> None:
    held = tensors(twin(name))
    built(name, tmp_path / "out", save(tmp_path / "model.safetensors", held), mode, "fp16")
    assert off_by(twin(name), tmp_path / "out" / "model.onnx", parameters_in(twin(name), held)) < 1e-2


def test_bf16_is_packed_as_it_lies_in_a_bf16_file(tmp_path: Path) -> None:
    held = tensors(twin("llama3-8b"))
    file = save(tmp_path / "model.safetensors", held, "BF16")
    built("llama3-8b", tmp_path / "out", file, "pack", "bf16")
    embedding = next(i for i in onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph.initializer)
    said = {entry.key: entry.value for entry in embedding.external_data}
    assert embedding.data_type == onnx.TensorProto.BFLOAT16
    start, length = int(said["offset"]), int(said["length"])
    assert (tmp_path / "out" / DATA).read_bytes()[start : start + length] in file.read_bytes()


@pytest.mark.parametrize("mode", ["link", "pack"])
def test_shards_are_one_checkpoint(mode: Mode, tmp_path: Path) -> None:
    held = tensors(twin("pythia-410m"))
    built("pythia-410m", tmp_path / "out", save_sharded(tmp_path / "in", held, 3), mode)
    assert off_by(twin("pythia-410m"), tmp_path / "out" / "model.onnx", parameters_in(twin("pythia-410m"), held)) < 3e-5


# The folder


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("mode", ["link", "pack"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("unproved")
def test_a_build_with_weights_verifies(name: str, mode: Mode, dtype: FloatType, tmp_path: Path) -> None:
    made = built(name, tmp_path / "out", checkpoint(name, tmp_path), mode, dtype)
    assert {path.name for path in made.files} == {path.name for path in (tmp_path / "out").iterdir()}
    checked = api.verify(tmp_path / "out")
    assert not checked.changed and not checked.outdated
    assert checked.proof is not None
    assert str(tmp_path) not in (tmp_path / "out" / MANIFEST).read_text()


def test_a_link_takes_no_room_and_a_copy_is_whole(tmp_path: Path) -> None:
    file = checkpoint("llama3-8b", tmp_path)
    built("llama3-8b", tmp_path / "a", file, "link")
    assert (tmp_path / "a" / "model.safetensors").samefile(file)
    said = manifest(tmp_path / "a")["weights"]
    assert said["mode"] == "link" and said["data"] is None
    assert said["sources"][0]["size"] == file.stat().st_size and len(said["sources"][0]["header_sha256"]) == 64
    built("llama3-8b", tmp_path / "b", file, "pack")
    said = manifest(tmp_path / "b")["weights"]
    assert said["mode"] == "pack" and not said["sources"]
    assert said["data"]["sha256"] == folder.digest((tmp_path / "b" / DATA).read_bytes())


def test_shards_are_verified_and_the_twin_is_proved(tmp_path: Path) -> None:
    built("pythia-410m", tmp_path / "out", save_sharded(tmp_path / "in", tensors(twin("pythia-410m")), 3))
    checked = api.verify(tmp_path / "out")
    assert checked.proof is not None and checked.proof.complete


@pytest.mark.usefixtures("unproved")
def test_a_cache_of_symlinks_is_resolved(tmp_path: Path) -> None:
    blob = checkpoint("llama3-8b", tmp_path / "blobs").rename(tmp_path / "blobs" / "0a1b")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0a1b")
    built("llama3-8b", tmp_path / "out", tmp_path / "snapshot")
    made = tmp_path / "out" / "model.safetensors"
    assert made.samefile(blob) and not made.is_symlink()
    assert api.verify(tmp_path / "out").proof is not None


def test_across_devices_it_says_so_and_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tensors(twin("llama3-8b"))
    file = save(tmp_path / "model.safetensors", held)

    def elsewhere(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", elsewhere)
    made = built("llama3-8b", tmp_path / "out", file)
    assert made.notes == ("the weights cannot be linked from their folder (Invalid cross-device link): packed",)
    assert manifest(tmp_path / "out")["weights"]["mode"] == "pack"
    assert off_by(twin("llama3-8b"), tmp_path / "out" / "model.onnx", parameters_in(twin("llama3-8b"), held)) < 3e-5


def test_tokenizer_files_come_along_and_code_does_not(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(f'{{"of": "the model\'s {name}"}}')
    (tmp_path / "in" / "config.json").write_text('{"auto_map": {"AutoModel": "evil.Evil"}}')
    (tmp_path / "in" / "evil.py").write_text("raise SystemExit('imported')")
    checkpoint("llama3-8b", tmp_path / "in")
    built("llama3-8b", tmp_path / "out", tmp_path / "in")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"of": "the model\'s tokenizer.json"}'
    assert "chat_template.jinja" in manifest(tmp_path / "out")["files"]
    assert not {"config.json", "evil.py"} & {path.name for path in (tmp_path / "out").iterdir()}


def test_what_an_earlier_build_wrote_goes(tmp_path: Path) -> None:
    held = tensors(twin("llama3-8b"))
    source = save_sharded(tmp_path / "in", held, 2)
    (source / "tokenizer.json").write_text("{}")
    built("llama3-8b", tmp_path / "out", source)
    built("llama3-8b", tmp_path / "out", source, "pack")
    assert not list((tmp_path / "out").glob("*.safetensors")) and len(list(source.glob("*.safetensors"))) == 2
    api.build(twin("llama3-8b"), tmp_path / "out", proof=False)
    assert {path.name for path in (tmp_path / "out").iterdir()} == COMMITTED | {"model.onnx", MANIFEST}


def test_the_last_name_of_weights_is_never_removed(tmp_path: Path) -> None:
    file = checkpoint("llama3-8b", tmp_path / "in")
    built("llama3-8b", tmp_path / "out", file)
    other = checkpoint("llama3-8b", tmp_path / "other")
    file.unlink()
    built("llama3-8b", tmp_path / "out", other, "pack")
    assert (tmp_path / "out" / "model.safetensors").stat().st_size == other.stat().st_size


def test_the_checkpoints_own_folder_and_strange_weights_are_left_alone(tmp_path: Path) -> None:
    file = checkpoint("llama3-8b", tmp_path / "in")
    with pytest.raises(FolderError, match="the checkpoint's own folder"):
        built("llama3-8b", tmp_path / "in", file)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_bytes(b"another model")
    with pytest.raises(FolderError, match="weights that have no other name, and are not those of this build"):
        built("llama3-8b", tmp_path / "out", file)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.safetensors"}
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"model.safetensors"}


@pytest.mark.parametrize(("word", "dtype", "mode"), [
    ("F32", "fp32", "link"), ("BF16", "fp32", "pack"), ("F16", "fp32", "pack"), ("F32", "fp16", "pack"),
    ("F16", "fp16", "link"), ("BF16", "bf16", "link"),
])  # fmt: skip
def test_weights_of_another_float_type_are_packed_unless_a_mode_is_asked_for(
    word: str, dtype: FloatType, mode: Mode, tmp_path: Path
) -> None:
    """One norm of another type is cast, and does not count."""
    held = tensors(twin("llama3-8b"))
    file = save(tmp_path / "in" / "model.safetensors", held, word, {"model.norm.weight": "F64"})
    made = built("llama3-8b", tmp_path / "out", file, None, dtype)
    assert manifest(tmp_path / "out")["weights"]["mode"] == mode
    said = f"the checkpoint is in {word.lower()}, and the model computes in {dtype}: packed"
    assert (said in made.notes) == (mode == "pack")
    built("llama3-8b", tmp_path / "out", file, "link", dtype)
    assert manifest(tmp_path / "out")["weights"]["mode"] == "link"


def test_no_flag_of_weights_changes_a_committed_file(tmp_path: Path) -> None:
    file = checkpoint("gpt2", tmp_path)
    api.build(twin("gpt2"), tmp_path / "none", proof=False)
    built("gpt2", tmp_path / "link", file, "link", "fp16")
    built("gpt2", tmp_path / "pack", file, "pack")
    for name in COMMITTED:
        assert len({(tmp_path / way / name).read_bytes() for way in ("none", "link", "pack")}) == 1, name


def test_two_builds_of_one_checkpoint_are_byte_identical(tmp_path: Path) -> None:
    file = checkpoint("pythia-410m", tmp_path)
    for mode in ("link", "pack"):
        for out in ("a", "b"):
            built("pythia-410m", tmp_path / mode / out, file, mode)
        for path in (tmp_path / mode / "a").iterdir():
            assert path.read_bytes() == (tmp_path / mode / "b" / path.name).read_bytes(), path.name


# What `verify` sees


def test_a_changed_source_is_named(tmp_path: Path) -> None:
    file = checkpoint("llama3-8b", tmp_path)
    built("llama3-8b", tmp_path / "out", file)
    with file.open("r+b") as source:
        source.seek(-1, os.SEEK_END)
        source.write(b"\x01\x01")
    assert api.verify(tmp_path / "out").changed == ("model.safetensors",)
    checkpoint("gpt2", tmp_path)
    assert api.verify(tmp_path / "out").changed == ("model.safetensors",)
    file.write_bytes(b"")
    assert api.verify(tmp_path / "out").changed == ("model.safetensors",)


def test_a_changed_byte_of_the_data_is_named(tmp_path: Path) -> None:
    built("llama3-8b", tmp_path / "out", checkpoint("llama3-8b", tmp_path), "pack")
    with (tmp_path / "out" / DATA).open("r+b") as data:
        data.seek(100)
        data.write(b"\x77")
    assert api.verify(tmp_path / "out").changed == (DATA,)


def edited(out: Path, edit: Callable[[onnx.ModelProto], None]) -> None:
    """model.onnx changed and the manifest made to fit."""
    model = onnx.load(out / "model.onnx", load_external_data=False)
    edit(model)
    (out / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    said = manifest(out)
    said["files"]["model.onnx"] = folder.digest((out / "model.onnx").read_bytes())
    (out / MANIFEST).write_text(json.dumps(said))


@pytest.mark.parametrize("location", ["../model.safetensors", "/etc/hostname", "sub/../../x", "graph.txt", ""])
def test_external_data_of_elsewhere_is_refused(location: str, tmp_path: Path) -> None:
    def elsewhere(model: onnx.ModelProto) -> None:
        model.graph.initializer[3].external_data[0].value = location

    built("llama3-8b", tmp_path / "out", checkpoint("llama3-8b", tmp_path))
    edited(tmp_path / "out", elsewhere)
    with pytest.raises(FolderError, match="external data that is not part of the build"):
        api.verify(tmp_path / "out")


def test_external_data_in_a_corner_of_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    def hide(model: onnx.ModelProto) -> None:
        constant = onnx.helper.make_node("Constant", [], ["hidden"])
        tensor = onnx.TensorProto(data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="../secret")
        constant.attribute.append(onnx.helper.make_attribute("value", tensor))
        model.graph.node.insert(0, constant)

    api.build(twin("gpt2"), tmp_path / "out", proof=False)
    edited(tmp_path / "out", hide)
    with pytest.raises(FolderError, match=r"not part of the build: '../secret'"):
        api.verify(tmp_path / "out")


def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    built("llama3-8b", tmp_path / "out", checkpoint("llama3-8b", tmp_path), "pack")
    (tmp_path / "out" / DATA).rename(tmp_path / "elsewhere")
    (tmp_path / "out" / DATA).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="a link that leaves the folder"):
        api.verify(tmp_path / "out")


def test_exchanged_weights_are_seen(tmp_path: Path) -> None:
    def exchange(model: onnx.ModelProto) -> None:
        by_name = {i.name: i for i in model.graph.initializer}
        gate, up = by_name["layers.0.mlp.gate.weight"], by_name["layers.0.mlp.up.weight"]
        gate.name, up.name = up.name, gate.name

    for mode in ("link", "pack"):
        built("llama3-8b", tmp_path / mode, checkpoint("llama3-8b", tmp_path), mode)
        edited(tmp_path / mode, exchange)
        assert api.verify(tmp_path / mode).outdated == ("model.onnx",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickled_weights_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(CheckpointError, match="never opened"):
        built("llama3-8b", tmp_path / "out", tmp_path / "in" / name)
    with pytest.raises(CheckpointError, match="neither model.safetensors nor"):
        built("llama3-8b", tmp_path / "out", tmp_path / "in")
    assert not (tmp_path / "out").exists()


# Types, ranges and sizes


@pytest.mark.parametrize("target", [Target(dtype="fp16"), Target("cpu", "fp16"), Target("cuda", "fp16")], ids=str)
def test_every_parameter_has_the_float_type_that_was_asked_for(target: Target, tmp_path: Path) -> None:
    """With fewer kv_heads than heads, where a joined q, k and v has been left in float32 elsewhere."""
    model = twin("llama3-8b")
    (heads,), (kv_heads,) = (figures_of(model.function)[f"attention.{word}"] for word in ("heads", "kv_heads"))
    assert heads != kv_heads
    path = checkpoint("llama3-8b", tmp_path)
    api.build(model, tmp_path / "out", proof=False, weights=path, mode="pack", target=target)
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    stored = [tensor for tensor in held.values() if tensor.external_data]
    assert sum(int(np.prod(tensor.dims)) for tensor in stored) == model.parameters
    assert {tensor.data_type for tensor in stored} == {onnx.TensorProto.FLOAT16}
    wide = {t.name for t in held.values() if t.data_type == onnx.TensorProto.FLOAT}
    products = {name for n in graph.node if "MatMul" in n.op_type or "Norm" in n.op_type for name in n.input}
    assert not wide & products, "what stays in float32 are the angles of rope"


@pytest.mark.parametrize("target", [Target(dtype="fp16"), Target("cpu", "fp16")], ids=str)
@pytest.mark.parametrize("name", ["llama3-8b", "pythia-410m"])
def test_a_residual_stream_of_ten_thousand_is_normed_in_fp16(name: str, target: Target, tmp_path: Path) -> None:
    """Its squares do not fit into fp16: the mean of them is taken in float32, fused with the addition or not."""
    assert np.isinf(np.float16(1e4) ** 2)
    held = {key: kept(array, "F16") for key, array in tensors(twin(name)).items()}
    table = "model.embed_tokens.weight" if name == "llama3-8b" else "gpt_neox.embed_in.weight"
    held[table] = kept(held[table] / np.abs(held[table]).max() * 1e4, "F16")
    path = save(tmp_path / "model.safetensors", held, "F16")
    api.build(twin(name), tmp_path / "out", proof=False, weights=path, target=target)
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    assert any(n.op_type.startswith("Skip") for n in graph.node) is (target.provider == "cpu")
    assert off_by(twin(name), tmp_path / "out" / "model.onnx", parameters_in(twin(name), held)) < 1e-2


@pytest.mark.parametrize("target", [Target(dtype="bf16"), Target("cuda", "bf16")], ids=str)
def test_logits_of_a_bf16_model_say_that_they_are_bf16(target: Target, tmp_path: Path) -> None:
    path = checkpoint("llama3-8b", tmp_path)
    api.build(twin("llama3-8b"), tmp_path / "out", proof=False, weights=path, target=target)
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.output}
    assert types["logits"] == types["present.0.key"] == onnx.TensorProto.BFLOAT16


def test_weights_above_2_gib_are_checked_by_path(tmp_path: Path) -> None:
    (tmp_path / "huge.yaml").write_text(LARGE.replace("32000", "150000").replace("1024\ndepth: 10", "4096\ndepth: 1"))
    model = api.compile(tmp_path / "huge.yaml", ["head.tied=true"])
    assert save_empty(tmp_path / "in", model, 1, "F32", 4) > 2**31
    api.build(model, tmp_path / "out", proof=False, weights=tmp_path / "in")
    with pytest.raises(onnx.checker.ValidationError, match="hard links"):  # which the checker takes for an attack
        onnx.checker.check_model(str(tmp_path / "out" / "model.onnx"))
    shutil.rmtree(tmp_path / "in")  # the build's own name of the file is the last one now
    onnx.checker.check_model(str(tmp_path / "out" / "model.onnx"))
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    offsets = [int(e.value) for t in graph.initializer for e in t.external_data if e.key == "offset"]
    assert max(offsets) > 2**31 and (tmp_path / "out" / "model.onnx").stat().st_size < 100_000


# Memory and time

MEASURED = """
import sys, time
from blockc.cli import app, run_guarded
code = run_guarded(lambda: app(sys.argv[1:], standalone_mode=False))
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak and seconds", peak, time.process_time())
sys.exit(code)
"""
LARGE = """\
blockc: 1
name: large
vocab: 32000
width: 1024
depth: 10
context: 1024
attention: {heads: 16, kv_heads: 8, rope: {theta: 10000, pairing: half}}
mlp: {type: swiglu, width: 2816}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: false}
checkpoint: llama
"""


def measured(*arguments: str) -> tuple[int, float]:
    """(the most memory that a command held, in bytes; its seconds of computing, imports included)"""
    done = subprocess.run([sys.executable, "-c", MEASURED, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, seconds = done.stdout.split()[-2:]
    return int(peak) * 1024, float(seconds)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_packing_takes_the_memory_of_a_few_tensors(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text(LARGE)
    total = save_empty(tmp_path / "in", api.compile(tmp_path / "large.yaml"), 4, "F32", 4)
    assert total > 700e6
    where = ("--weights", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    peak, seconds = measured("build", str(tmp_path / "large.yaml"), *where, "--pack", "--dtype", "fp16", "--no-verify")
    print(f"{total / 1e9:.2f} GB packed with {peak / 1e6:.0f} MB in {seconds:.1f} s")
    assert (tmp_path / "out" / DATA).stat().st_size > 350e6
    (tmp_path / "out" / DATA).unlink()
    assert peak < 200e6, "of any number of layers: 2 GB have the same peak"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_linking_a_whole_model_takes_little_memory(tmp_path: Path) -> None:
    spec = ROOT / "specs" / "smollm2-135m.yaml"
    save_empty(tmp_path / "in", api.compile(spec), 1, "BF16", 2)
    where = ("--weights", str(tmp_path / "in"), "--weights-mode", "link", "--no-verify")
    peak, seconds = measured("build", str(spec), *where, "--out", str(tmp_path / "out"))
    print(f"linked with {peak / 1e6:.0f} MB in {seconds:.2f} s")
    assert peak < 300e6
