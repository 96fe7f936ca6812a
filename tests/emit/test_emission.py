"""The emitted model.py in use: trained, decoded, moved, sharded, exported and formatted by others' tools."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from blockc.graph.shrink import shrink
from blockc.language.spec import load
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof.runners import load_module
from blockc.weights.rules import random_parameters
from tests import spec_text
from tests.paths import ROOT
from tests.spec_variants import VARIANTS, two

MIXED = ("smollm3-3b", "command-r7b", "gemma3-4b", "olmo3-7b", "gpt-neo-125m", "gemma2-9b")
TIED = ("smollm3-3b", "gemma3-4b", "gpt2", "bloom-560m")
RUFF = str(Path(sys.executable).with_name("ruff"))  # a tool of these tests, and not of the product
FOUR = ("llama3-8b", "smollm3-3b", "gpt2", "bloom-560m")


@cache
def twin(name: str) -> Compiled:
    return compile_spec(shrink(load(ROOT / "specs" / f"{name}.yaml")))


@cache
def text(name: str) -> str:
    return (ROOT / "generated" / name / "model.py").read_text(encoding="utf-8")


@cache
def module(name: str, folder: Path) -> Any:
    path = folder / f"{name}.py"
    path.write_text(twin(name).model_py(), encoding="utf-8")
    return load_module(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emitted")


def model(name: str, folder: Path) -> Any:
    made = module(name, folder).Model()
    params = random_parameters(twin(name).function, seed=5)
    with torch.no_grad():
        for path, parameter in made.named_parameters():
            parameter.copy_(torch.from_numpy(params[path]))
    return made.eval()


def ids(rows: int = 2, count: int = 11) -> Tensor:
    return torch.from_numpy(np.random.RandomState(3).randint(0, 16, (rows, count)))


def by_turns(a: str, b: str) -> Compiled:
    """Layers of two kinds by turns."""
    return spec_text.made(two(a, b, "depth: 4"))


# The text


@pytest.mark.parametrize(("name", "lines"), [("llama3-8b", 250), ("smollm3-3b", 330), ("command-r7b", 330)])
def test_a_model_is_as_short_as_one_written_by_hand(name: str, lines: int) -> None:
    assert len(text(name).splitlines()) < lines


@pytest.mark.parametrize("name", MIXED)
def test_layers_of_several_kinds_are_one_list_and_one_loop(name: str) -> None:
    emitted = text(name)
    assert emitted.count("nn.ModuleList([") == 1 and " for " in emitted
    assert len(re.findall(r"^        for .*layers.*:$", emitted, re.MULTILINE)) == 1
    assert not re.search(r"layers\[\d", emitted)
    signatures = re.findall(r"class \w*Layer\(.*?def forward\((.*?)\) ->", emitted, re.DOTALL)
    assert len({" ".join(each.split()) for each in signatures}) == 1


def test_a_kind_is_an_argument_where_rope_is_the_difference() -> None:
    for name, layers in (("smollm3-3b", 36), ("command-r7b", 32)):
        assert f"nn.ModuleList([Layer(rope=i % 4 != 3) for i in range({layers})])" in text(name)
        assert "NopeLayer" not in text(name) and "GlobalLayer" not in text(name)
    assert "= (mask, cos_2, sin_2) if i % 6 == 5 else (mask_1024, cos, sin)\n" in text("gemma3-4b")


def test_a_kind_is_a_class_where_more_differs(folder: Path) -> None:
    emitted = by_turns("mlp: {width: 24}", "mlp: {width: 40}").model_py()
    assert re.search(r"ModuleList\(\[\w*Layer\(\) if i % 2 == 0 else \w*Layer\(\) for i in range\(4\)\]\)", emitted)
    assert emitted.count("        for layer, past in zip(layers, pasts, strict=True):\n") == 1


def test_a_formatter_changes_nothing(folder: Path) -> None:
    for name in MIXED:
        (folder / f"{name}-twin.py").write_text(twin(name).model_py(), encoding="utf-8")
    for i, change in enumerate(change for name, change in VARIANTS.items() if name != "text"):  # that has no layout
        emitted = spec_text.made(change).model_py()
        (folder / f"variant{i}.py").write_text(emitted, encoding="utf-8")
    settings = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    where = [str(folder), *map(str, sorted((ROOT / "generated").glob("*/model.py")))]
    for command in (["format", "--check"], ["check", "--select", "F,I,UP"]):
        done = subprocess.run([RUFF, *command, *settings, *where], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


# Without a mask


def _masks(emitted: Any) -> list[bool]:
    """Whether each attention of the calls that follow is given a mask."""
    given: list[bool] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spying(*args: Any, **kwargs: Any) -> Tensor:
        given.append(kwargs.get("attn_mask") is not None)
        assert kwargs.get("is_causal", False) == (not given[-1])
        return real(*args, **kwargs)

    emitted.F = type("F", (), {**vars(torch.nn.functional), "scaled_dot_product_attention": staticmethod(spying)})
    return given


@pytest.mark.parametrize("name", FOUR)
def test_without_padding_and_past_no_mask_is_made_and_the_logits_are_the_same(name: str, folder: Path) -> None:
    """Bit by bit, for the mask is that of the kernel itself. A bias that counts distances is always made."""
    built, tokens = model(name, folder), ids()
    ones = torch.ones_like(tokens)
    with torch.no_grad():
        assert torch.equal(built(tokens).logits, built(tokens, ones).logits)
    given = _masks(module(name, folder))
    try:
        with torch.no_grad():
            built(tokens)
            without = [*given]
            built(tokens, ones)
            prefill = built(tokens[:, :5], use_cache=True)
            count = len(given)
            built(tokens[:, 5:], past_key_values=prefill.past_key_values)
    finally:
        module(name, folder).F = torch.nn.functional
    layers = len(built.layers)
    assert without == [name == "bloom-560m"] * layers
    assert given[layers : 2 * layers] == [True] * layers and given[count:] == [True] * layers


# The cache


def test_a_cache_is_returned_to_whom_asks_or_gives_one(folder: Path) -> None:
    built, tokens = model("llama3-8b", folder), ids()
    with torch.no_grad():
        assert built(tokens).past_key_values is None
        assert built(tokens, labels=tokens).past_key_values is None
        first = built(tokens[:, :6], use_cache=True)
        second = built(tokens[:, 6:], past_key_values=first.past_key_values)
        assert [state.shape[2] for layer in second.past_key_values for state in layer] == [11] * 4
        whole = built(tokens).logits
    assert (second.logits - whole[:, 6:]).abs().max() < 1e-5 * whole.std()
    with pytest.raises(ValueError, match="zip"):
        built(tokens, past_key_values=first.past_key_values[:1])


@pytest.mark.parametrize("name", FOUR)
def test_the_last_logits_alone(name: str, folder: Path) -> None:
    built, tokens = model(name, folder), ids()
    with torch.no_grad():
        whole = built(tokens).logits
        for count in (1, 4, 11):
            some = built(tokens, logits_to_keep=count).logits
            assert some.shape[1] == count
            assert (some - whole[:, -count:]).abs().max() < 1e-5 * whole.std()


@pytest.mark.parametrize("name", FOUR)
def test_the_loss_of_the_last_logits_is_that_of_the_tokens_behind_them(name: str, folder: Path) -> None:
    built, tokens = model(name, folder), ids()
    with torch.no_grad():
        for count in (2, 4, 11, 20):
            hidden = tokens.clone()
            hidden[:, : -min(count, 11) + 1] = -100
            some = built(tokens, labels=tokens, logits_to_keep=count).loss
            assert abs(some - built(tokens, labels=hidden).loss) < 1e-5


# Weights


MOVES: dict[str, Callable[[Any], Any]] = {
    "to_empty": lambda m: m.to("meta").to_empty(device="cpu"),
    "to": lambda m: m.to(torch.float64),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("move", MOVES)
def test_tied_weights_are_one_tensor_after_every_move(name: str, move: str, folder: Path) -> None:
    """Also where the weights come from elsewhere, so that init_weights does not tie them."""
    given = model(name, folder).state_dict()
    built = MOVES[move](module(name, folder).Model())
    assert built.head.weight is built.embedding.weight
    built.load_state_dict(given)
    optimiser = torch.optim.SGD(built.parameters(), lr=0.1)
    built(ids(), labels=ids()).loss.backward()
    optimiser.step()
    assert built.head.weight is built.embedding.weight
    assert not torch.equal(built.head.weight, given["head.weight"])


def test_a_head_that_was_given_its_own_weights_keeps_them(folder: Path) -> None:
    """As tools do that put another kind of tensor there, or another kind of head."""
    built = model("smollm3-3b", folder)
    built.head.weight = nn.Parameter(2 * built.head.weight)
    moved = built.to(torch.float64)
    assert torch.equal(moved.head.weight, 2 * moved.embedding.weight)


def test_a_tied_table_is_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {name: t for name, t in model("smollm3-3b", folder).state_dict().items() if name != "head.weight"}
    emitted, copied = module("smollm3-3b", folder), list[tuple[int, ...]]()
    monkeypatch.setattr(emitted, "open_tensors", lambda path: {"given": path})
    monkeypatch.setattr(emitted, "without_tied", lambda given, tied: given)
    monkeypatch.setattr(emitted, "renamed", lambda *given, **more: dict(tensors))
    real = Tensor.to

    def counting(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copied.append(tuple(self.shape))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", counting)
    built = emitted.Model.load(tmp_path)
    assert built.head.weight is built.embedding.weight
    assert copied.count(tuple(built.embedding.weight.shape)) == 1


@pytest.mark.parametrize("name", ["llama3-8b", "gemma3-4b", "bloom-560m", "phi-4-mini"])
def test_what_is_computed_once_outlives_every_move(name: str, folder: Path) -> None:
    """In fp32, whatever the parameters' type, and not in a checkpoint."""
    wanted = dict(module(name, folder).Model().named_buffers())
    with torch.device("meta"):
        built = module(name, folder).Model()
    assert wanted and all(buffer.is_meta for buffer in built.buffers())
    moves = (lambda m: m.to_empty(device="cpu"), lambda m: m.bfloat16(), lambda m: m.double(), copy.deepcopy)
    for move in moves:
        built = move(built)
        assert built.state_dict().keys().isdisjoint(wanted)
        for path, buffer in built.named_buffers():
            assert buffer.dtype == torch.float32 and torch.equal(buffer, wanted[path]), path


# Others' tools


@pytest.fixture
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("name", ["smollm3-3b"])
def test_twenty_steps_of_decode_are_at_most_three_graphs(name: str, folder: Path) -> None:
    """The prompt, the first step, and one for all steps after it: fullgraph, so nothing breaks."""
    built, graphs = model(name, folder), list[Any]()

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    fast = torch.compile(built, backend=counting, fullgraph=True)
    tokens = ids(1, 28)
    with torch.no_grad():
        output, parts = fast(tokens[:, :8], use_cache=True), []
        for i in range(20):
            output = fast(tokens[:, 8 + i : 9 + i], past_key_values=output.past_key_values)
            parts.append(output.logits)
        whole = built(tokens).logits
    assert len(graphs) <= 3
    assert (torch.cat(parts, dim=1) - whole[:, 8:]).abs().max() < 3e-5 * whole.std()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("again", [False, True], ids=["kept", "checkpointed"])
def test_a_compiled_training_step_is_one_graph(again: bool, folder: Path) -> None:
    built, tokens = model("smollm3-3b", folder).train(), ids()
    wanted = _gradients(built, tokens)
    fast = torch.compile(built, backend="aot_eager", fullgraph=True)
    assert _far(_gradients(fast, tokens, "_orig_mod.", checkpoint_layers=again), wanted) < 1e-5


def _gradients(built: Any, tokens: Tensor, prefix: str = "", **more: Any) -> dict[str, Tensor]:
    built.zero_grad(set_to_none=True)
    built(tokens, labels=tokens, **more).loss.backward()
    return {n.removeprefix(prefix): p.grad.clone() for n, p in built.named_parameters() if p.grad is not None}


def _far(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert got.keys() == wanted.keys() and got
    return max(float((got[n] - g).abs().max() / g.abs().max().clamp(min=1e-6)) for n, g in wanted.items())


@pytest.mark.parametrize("name", FOUR)
def test_checkpointed_layers_have_the_same_gradients_and_are_run_twice(name: str, folder: Path) -> None:
    built, tokens = model(name, folder).train(), ids()
    wanted = _gradients(built, tokens)
    runs = 0

    def count(*_: Any) -> None:
        nonlocal runs
        runs += 1

    built.layers[0].register_forward_pre_hook(count)
    assert _far(_gradients(built, tokens, checkpoint_layers=True), wanted) == 0
    assert runs == 2


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2"])
def test_an_exported_program_is_saved_and_loaded(name: str, folder: Path, tmp_path: Path) -> None:
    built, tokens = model(name, folder), ids()
    batch, new = torch.export.Dim("batch"), torch.export.Dim("new")
    with torch.no_grad():
        program = torch.export.export(built, (tokens,), dynamic_shapes={"input_ids": {0: batch, 1: new}})
        torch.export.save(program, tmp_path / "model.pt2")
        again = torch.export.load(tmp_path / "model.pt2").module()
        for rows, count in ((2, 11), (3, 7)):
            got, wanted = again(ids(rows, count)), built(ids(rows, count))
            assert type(got) is module(name, folder).Output
            assert torch.allclose(got.logits, wanted.logits, atol=1e-5 * float(wanted.logits.std()))


def test_fsdp_shards_it_without_a_warning(folder: Path, tmp_path: Path) -> None:
    """The usual recipe: meta device, sharded layer by layer, to_empty, init_weights, a step."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        with torch.device("meta"):
            built = module("smollm3-3b", folder).Model()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for layer in built.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(built, mesh=mesh)
            built.to_empty(device="cpu")
            torch.manual_seed(0)
            built.init_weights()
            assert built.head.weight is built.embedding.weight
            loss = built(ids(), labels=ids()).loss
            loss.backward()
            nn.utils.clip_grad_norm_(built.parameters(), 1.0)
            torch.optim.AdamW(built.parameters()).step()
        ours = {str(w.message) for w in found if "random operators" not in str(w.message)}  # said of any CPU
        assert float(loss) > 0 and ours == set()
    finally:
        dist.destroy_process_group()


def test_heads_are_counted_by_what_is_given(folder: Path) -> None:
    """Half of the rows of q, k and v are half of the heads: nothing in the text says how many there are."""
    attention = model("llama3-8b", folder).layers[0].attention
    q, k, v, o = (getattr(attention, each).weight.detach() for each in "qkvo")
    dim = k.shape[0] // 2
    heads = q.shape[0] // dim
    x, cos = torch.randn(1, 5, q.shape[1]), torch.rand(1, 5, dim // 2)
    with torch.no_grad():
        whole, _ = attention(x, None, cos, cos, None, use_cache=False)
        parts = []
        for half in range(2):
            rows = slice(half * heads // 2 * dim, (half + 1) * heads // 2 * dim)
            for each, weight in (("q", q[rows]), ("k", k[half * dim :][:dim]), ("v", v[half * dim :][:dim])):
                getattr(attention, each).weight = nn.Parameter(weight)
            attention.o.weight = nn.Parameter(o[:, rows])
            parts.append(attention(x, None, cos, cos, None, use_cache=False)[0])
    assert (sum(parts) - whole).abs().max() < 1e-5 * whole.abs().max()
