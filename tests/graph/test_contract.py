"""The contract of a graph: what it says is what onnxruntime finds there. States of one size, and those that grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from blockc import api
from blockc.basics.floats import FLOATS
from blockc.graph import interp
from blockc.graph.contract import Port, StatePort, contract_of
from blockc.graph.target import Target
from blockc.ir import (
    Arrays,
    B,
    Call,
    Carried,
    Function,
    Grows,
    Input,
    Node,
    OnnxBuilder,
    OnnxValue,
    Op,
    S,
    State,
    Type,
    Value,
    apply,
    callee_of,
    inline,
    is_call,
    tensor,
)
from blockc.ir.reach import Constant, Leaks, Reach, Tokens, as_tokens
from blockc.ops import Add
from blockc.passes import with_buffer, with_cache
from blockc.pipeline.compiled import PORTABLE, Compiled
from blockc.proof import prove
from blockc.runtime import Session
from blockc.runtime.opening import ONNX_TYPES, OpenModel
from blockc.weights.rules import random_parameters
from tests.checkpoints import twin

TARGETS = {
    "portable": PORTABLE,
    "last": Target(logits="last"),
    "buffer": Target(cache="buffer"),
    "top": Target(logits=3),
    "last 4": Target(logits="last", last=4),
    "fused": Target("cpu"),
    "by rows": Target("cpu", padding="right"),
    "for cuda": Target("cuda", "fp16"),
    "one token": Target("cpu", step=True),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["llama3-8b", "gemma3-4b", "block-4x4", "bloom-560m", "both ways"])
def test_a_contract_is_what_onnxruntime_finds(name: str, target: str) -> None:
    """Names, types and shapes of everything that goes in and comes out, parameters apart."""
    made = api.twin(api.compile("gpt2", ["attention.causal=false"])) if name == "both ways" else twin(name)
    for_ = TARGETS[target]
    if made.refuses(for_):
        assert not made.function.causal or (name == "block-4x4" and for_.step)
        return
    says = made.contract(for_)
    model = made.onnx(for_, random_parameters(made.function, 1))
    session: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    types = {"float": FLOATS[for_.dtype].onnx, "float32": 1, "int": 7}

    def port(of: Port) -> tuple[str, int, tuple[int | None, ...]]:
        return of.name, types[of.dtype], tuple(size if isinstance(size, int) else None for size in of.shape)

    def found(value: Any) -> tuple[str, int, tuple[int | None, ...]]:
        return value.name, ONNX_TYPES[value.type], tuple(s if isinstance(s, int) else None for s in value.shape)

    pasts = [Port(held.past, held.dtype, held.shape) for held in says.held]
    assert sorted(map(port, (*says.inputs, *pasts))) == sorted(map(found, session.get_inputs()))
    presents = [Port(held.present, held.dtype, held.shape) for held in says.held]
    assert sorted(map(port, (*says.outputs, *presents))) == sorted(map(found, session.get_outputs()))
    assert bool(says.held) == made.function.causal and says.vocab == made.spec.top.vocab


def test_a_contract_says_how_a_graph_is_fed() -> None:
    says = {name: twin("llama3-8b").contract(target) for name, target in TARGETS.items()}
    assert {name: each.feeding for name, each in says.items()} == {
        "portable": "joined", "last": "joined", "last 4": "joined", "top": "joined", "fused": "joined",
        "buffer": "buffer", "by rows": "rows", "for cuda": "rows", "one token": "buffer",
    }  # fmt: skip
    assert {name for name, each in says.items() if each.one_row} == {"fused", "by rows", "for cuda"}
    assert {name for name, each in says.items() if each.fixed} == {"buffer", "by rows", "for cuda", "one token"}
    in_place = {name for name, each in says.items() if all(held.in_place for held in each.held)}
    assert in_place == {"fused", "buffer", "by rows", "for cuda", "one token"}
    assert {name for name, each in says.items() if each.one_token} == {"one token"}
    one = {port.name: port.shape for port in says["one token"].inputs}
    assert one == {
        "input_ids": ("B", 1), "attention_mask": ("B", "M"), "position_ids": ("B", 1), "write_indices": ("B",)
    }  # fmt: skip
    keys = says["one token"].held[0]
    assert (keys.shape, keys.grows, keys.in_place) == (("B", 2, 1, "M", 16), 3, True), "the same memory as in a buffer"
    assert {name for name, each in says.items() if not each.logits_of_every_token} == {
        "last", "last 4", "top", "one token"
    }  # fmt: skip
    assert {name: each.last for name, each in says.items() if each.last} == {
        "last": 1, "last 4": 4, "top": 1, "one token": 1
    }  # fmt: skip
    assert [says[name].rows_of(6) for name in ("portable", "last", "last 4")] == [6, 1, 4]
    assert {name: each.top for name, each in says.items() if each.top} == {"top": 3}
    first = says["buffer"].held[0]
    assert first == StatePort("past_key_values.0.key", "present.0.key", 0, "key", "float", ("B", 2, "M", 16), 2, True)
    assert first.shape_for(3, 40) == (3, 2, 40, 16)
    assert {name for name, each in says.items() if each.fixed} == {"buffer", "by rows", "for cuda", "one token"}
    carried = replace(says["by rows"].held[0], grows=None)
    assert not replace(says["by rows"], held=(carried,)).fixed, "run twice it would have gone on twice"


# A state of one size


@dataclass(frozen=True)
class Real(Op):
    """real = attention_mask != 0 at the new tokens: (B, T), (B, S) -> (B, S)"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("bool", args[1].shape),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0][:, args[0].shape[1] - args[1].shape[1] :] != 0,)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]}[:, -{args[1]}.shape[1] :] != 0"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        first = g.op("Neg", g.op("Shape", args[1], start=1, end=2))
        return [g.op("Cast", g.op("Slice", args[0], first, g.constant([2**30]), g.constant([1])), to=9)]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return (as_tokens(reaches[0]),)


@dataclass(frozen=True)
class Previous(Op):
    """y[t] = x[t - 1] of real tokens, 0 before the first: (B, S, width), (B, S). Carried: the last, (B, 1, width)."""

    width: int
    carried: bool = False

    @property
    def output_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("out", "last") if self.carried else ("out",)

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (args[0], args[2]) if self.carried else (args[0],)

    def state(self, *args: Type) -> tuple[State, ...]:
        return (Carried("last", tensor("float", B, 1, self.width)),)

    def continue_states(self) -> Op:
        return replace(self, carried=True)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        x = np.where(args[1][..., None], args[0], 0)
        whole = np.concatenate([args[2] if self.carried else np.zeros_like(x[:, :1]), x], axis=1)
        end = np.max(np.where(args[1], np.arange(1, x.shape[1] + 1), 0), axis=1)
        last = whole[np.arange(len(x)), end][:, None]
        return (whole[:, :-1], last) if self.carried else (whole[:, :-1],)

    def torch(self, me: str, *args: str) -> str:
        x, real, *last = args
        before = last[0] if last else f"{x}[:, :1] * 0"
        out = f"(whole := torch.cat(({before}, {x}.where({real}[..., None], 0)), dim=1))[:, :-1]"
        end = f"({real} * torch.arange(1, {x}.shape[1] + 1)).amax(dim=1, keepdim=True)[..., None]"
        return f"{out}, whole.gather(1, {end}.expand(-1, -1, {self.width}))" if self.carried else out

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        x = g.op("Where", g.op("Unsqueeze", args[1], g.constant([2])), args[0], g.real(0.0))
        first = g.op("Slice", x, g.constant([0]), g.constant([1]), g.constant([1]))
        whole = g.op("Concat", args[2] if self.carried else g.op("Mul", first, g.real(0.0)), x, axis=1)
        out = g.op("Slice", whole, g.constant([0]), g.constant([-1]), g.constant([1]))
        zero, one = g.constant(np.array(0)), g.constant(np.array(1))
        tokens = g.op("Squeeze", g.op("Shape", x, start=1, end=2), g.constant([0]))
        ends = g.op("Where", args[1], g.op("Range", one, g.op("Add", tokens, one), one), zero)
        end = g.op("Unsqueeze", g.op("ReduceMax", ends, g.constant([1]), keepdims=1), g.constant([2]))
        return [out, g.op("GatherND", whole, end, batch_dims=1)] if self.carried else [out]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        fine = all(as_tokens(reach) in (Tokens(1), Constant()) for reach in reaches)
        out: Reach = Tokens(1) if fine else Leaks("the token before of something that leaks")
        return (out, Constant()) if self.carried else (out,)


@dataclass(frozen=True)
class Second(Previous):
    """y = x of every second real token, else 0: (B, S, width), (B, S). Carried: how many there were, int (B, 1)."""

    def state(self, *args: Type) -> tuple[State, ...]:
        return (Carried("last", tensor("int", B, 1)),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        seen = args[1].cumsum(axis=1) + (args[2] if self.carried else 0)
        out = np.where((seen % 2 == 0)[..., None], args[0], 0)
        return (out, seen[:, -1:]) if self.carried else (out,)

    def torch(self, me: str, *args: str) -> str:
        x, real, *before = args
        seen = f"(seen := {real}.cumsum(1){''.join(f' + {each}' for each in before)})"
        return f"{x}.where(({seen} % 2 == 0)[..., None], 0)" + (", seen[:, -1:]" if self.carried else "")

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        seen = g.op("CumSum", g.op("Cast", args[1], to=7), g.constant(np.array(1)))
        seen = g.op("Add", seen, args[2]) if self.carried else seen
        odd = g.op("Cast", g.op("Mod", seen, g.constant(np.array(2))), to=9)
        out = g.op("Where", g.op("Unsqueeze", odd, g.constant([2])), g.real(0.0), args[0])
        last = g.op("Slice", seen, g.constant([-1]), g.constant([2**30]), g.constant([1]))
        return [out, last] if self.carried else [out]


def shifted(model: Compiled, only: bool = False, op: type[Previous] = Previous) -> Compiled:
    """The model with the token before added where each layer begins; `only`: layers that do nothing else."""
    root = model.function
    inputs = {n.name: n[0] for n in root.inputs}
    real = apply(Real(), inputs["attention_mask"], inputs["input_ids"], name="real")
    known: dict[Function, Function] = {}
    new: dict[Value, Value] = {n[0]: n[0] for n in root.inputs}
    for n in root.nodes:
        operands, call = tuple(new[value] for value in n.inputs), None
        if is_call(n):
            layer = known.setdefault(callee_of(n), _shifted(callee_of(n), only, op))
            operands, call = (*operands, real), Call(layer)
        made = n.remake(inputs=operands, op=call)
        new.update({n[i]: made[i] for i in range(len(n.types))})
    outputs = tuple((name, new[value]) for name, value in root.outputs)
    return Compiled(model.spec, model.decoder, replace(root, outputs=outputs))


def _shifted(layer: Function, only: bool, op: type[Previous]) -> Function:
    x = next(n for n in layer.inputs if n.name == layer.stream)
    real = Node(Input(tensor("bool", B, S), token_axis=1), (), "real")
    width = x.types[0].shape[-1].value or 0
    before = apply(op(width), x[0], real[0], name="previous")
    sum_ = apply(Add(), x[0], before, name="shifted")
    new: dict[Value, Value] = {n[0]: n[0] for n in layer.inputs} | {x[0]: sum_}
    for n in layer.nodes:
        made = n.remake(inputs=tuple(new[value] for value in n.inputs))
        new.update({n[i]: made[i] for i in range(len(n.types))})
    ((name, value),) = layer.outputs
    return replace(layer, inputs=(*layer.inputs, real), outputs=((name, sum_ if only else new[value]),))


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2"])
def test_a_state_of_one_size_is_proved_like_one_that_grows(name: str) -> None:
    """Whole, in chunks, token by token, padded on either side; in PyTorch and in both graphs of onnxruntime."""
    made = shifted(twin(name))
    proof = prove(made)
    assert proof.complete, proof.table()
    assert len(proof.rows) == len(prove(twin(name)).rows)
    carried = [held for held in made.contract(PORTABLE).held if held.grows is None]
    assert [(held.state, held.shape, held.in_place) for held in carried] == [
        ("last", ("B", 1, made.spec.top.width), False)
    ] * made.spec.top.depth
    assert "last" in made.model_py() and "shape[2] + tokens" in made.model_py()


def test_a_state_that_is_given_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that forgets what padding is, is right whole and wrong where rows go on behind it."""

    def careless(self: Previous, args: Arrays, params: Arrays) -> Arrays:
        whole = np.concatenate([args[2] if self.carried else np.zeros_like(args[0][:, :1]), args[0]], axis=1)
        return (whole[:, :-1], whole[:, -1:]) if self.carried else (whole[:, :-1],)

    monkeypatch.setattr(Previous, "numpy", careless)
    wrong = {row.variant for row in prove(shifted(twin("llama3-8b")), targets=()).rows if not row.holds}
    assert "padded left" in wrong and "full" not in wrong


def test_a_model_whose_states_are_all_of_one_size() -> None:
    made = shifted(twin("llama3-8b"), only=True)
    assert {held.grows for held in made.contract(PORTABLE).held} == {None}
    proof = prove(made, targets=(PORTABLE,))
    assert proof.complete, proof.table()
    assert "attention_mask = input_ids.new_ones(batch, tokens)" in made.model_py()


def test_a_state_may_be_of_integers() -> None:
    proof = prove(shifted(twin("llama3-8b"), op=Second))
    assert proof.complete, proof.table()


@pytest.mark.parametrize("op", [Previous, Second], ids=["of floats", "of integers"])
@pytest.mark.parametrize("target", [PORTABLE, Target("cpu")], ids=["portable", "fused"])
def test_a_session_carries_a_state_along(target: Target, op: type[Previous]) -> None:
    """Rows of unlike lengths, and a second round on the memory of the first."""
    made = shifted(twin("llama3-8b"), op=op)
    params = random_parameters(made.function, 5)
    opened: Any = onnxruntime.InferenceSession(made.onnx(target, params), providers=["CPUExecutionProvider"])
    session = Session.of(
        OpenModel("", made.spec.top.context, made.spec.top.vocab, "cpu", made.contract(target), 1, opened)
    )
    prompts = [[3, 14, 15, 9, 26], [8, 9]]
    for _ in range(2):
        for row, got in zip(prompts, _columns(session, prompts), strict=True):
            assert got == _greedy(made, params, row)


def _columns(session: Session, prompts: list[list[int]]) -> list[list[int]]:
    return [[token for token in row if token is not None] for row in zip(*session.generate(prompts, 8), strict=True)]


def _greedy(model: Compiled, params: Any, row: list[int]) -> list[int]:
    tokens = list(row)
    for _ in range(8):
        ids = np.array([tokens])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(tokens))[None]}
        tokens.append(int(interp.interpret(model.function, feeds, params)["logits"][0, -1].argmax()))
    return tokens[len(row) :]


# A state that grows along another axis


@dataclass(frozen=True)
class Mean(Op):
    """y[t] = the mean of x[0..t] of all tokens so far: (B, S, width), all (B, T, width) -> (B, S, width)"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (args[0],)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        total = args[1].cumsum(axis=1) / np.arange(1, args[1].shape[1] + 1)[:, None]
        return (total[:, args[1].shape[1] - args[0].shape[1] :],)

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return (Tokens(1),)

    def state(self, *args: Type) -> tuple[State, ...]:
        return (Grows("latent", 1, 1),)


def test_a_state_grows_along_its_own_axis() -> None:
    """(B, P, width), as latent attention holds one; in a buffer too."""
    x = tensor("float", B, S, 5)
    given = Node(Input(x, token_axis=1), (), "x")
    made = apply(Mean(), given[0], given[0], name="mean")
    cached = inline(with_cache(Function("Model", (given,), (("hidden", made),))))
    (held,) = contract_of(cached).held
    assert (held.past, held.shape, held.grows) == ("past_key_values.0.latent", ("B", "P", 5), 1)
    array = np.random.RandomState(0).randn(2, 6, 5)
    whole = interp.interpret(cached, {"x": array, held.past: np.zeros((2, 0, 5))}, {})
    first = interp.interpret(cached, {"x": array[:, :4], held.past: np.zeros((2, 0, 5))}, {})
    later = interp.interpret(cached, {"x": array[:, 4:], held.past: first[held.present]}, {})
    assert np.allclose(np.concatenate([first["hidden"], later["hidden"]], axis=1), whole["hidden"], atol=1e-12)
    (written,) = contract_of(with_buffer(cached)).held
    assert (written.shape, written.grows, written.in_place) == (("B", "M", 5), 1, True)
