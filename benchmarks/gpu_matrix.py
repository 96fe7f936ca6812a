"""The golden matrix: every spec's twin in half precision against the float64 oracle, on a provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu_session import Bound, opened, real, settled, split
from blockc.graph.contract import TOP_TOKENS

K = 8  # of the highest logits
TOLERANCE = {"fp16": 2e-2, "bf16": 8e-2}  # of the logits' spread: bf16 has three bits less


@dataclass
class Strict:
    """A twin's graph on the provider, its arithmetic on shapes by itself on the CPU."""

    model: bytes
    function: Any
    params: Mapping[str, Any]  # torch tensors of the graph's type, where it runs
    provider: str

    def __post_init__(self) -> None:
        host, device = split(self.model)
        self.host = opened(host, "cpu")
        self.bound = Bound(opened(device, self.provider, strict=True))
        self.bound.bind(self.params)
        self.like = next(iter(self.params.values()))

    def run(self, case: Any) -> Any:
        from blockc.graph.contract import contract_of
        from blockc.proof.feeding import run_in_chunks

        return run_in_chunks(contract_of(self.function), case, self.call, np.float16)["logits"]

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Caches stay tensors from one call to the next; logits come back as float32 arrays."""
        import torch

        asked = {value.name for value in self.host.get_inputs()}
        names = [value.name for value in self.host.get_outputs()]
        shapes = self.host.run(names, {name: inputs[name] for name in asked})
        self.bound.bind({name: torch.from_numpy(np.asarray(a)) for name, a in zip(names, shapes, strict=True)})
        where = self.like.device
        given = {n: torch.as_tensor(a, device=where) for n, a in inputs.items() if n in self.bound.inputs}
        self.bound.bind({n: t.to(self.like.dtype) if t.is_floating_point() else t for n, t in given.items()})
        sizes = {"B": inputs["input_ids"].shape[0], "S": inputs["input_ids"].shape[1]}
        sizes["T"] = inputs["attention_mask"].shape[1]
        sizes["P"] = sizes["T"] - sizes["S"]
        kinds = {"float": self.like.dtype, "float32": torch.float32, "int": torch.int64}
        made = {
            name: torch.empty([d.at(sizes) for d in value.type.shape], dtype=kinds[value.type.dtype], device=where)
            for name, value in self.function.outputs
        }
        self.bound.bind(made, out=True)
        settled(self.provider)
        self.bound.run()
        arrays = {n: t.cpu() for n, t in made.items() if not n.startswith("present.")}
        return made | {n: (t if n == TOP_TOKENS else t.float()).numpy() for n, t in arrays.items()}


def matrix(names: list[str], dtypes: list[str], provider: str, packed: bool = False) -> Iterator[tuple[bool, str]]:
    """(right, a line) for each twin, type and form of the logits. `packed`: also with matrices laid for kernels."""
    from blockc import api
    from blockc.graph.target import Target

    for name in names:
        twin = api.twin(api.compile(api.bundled()[name]))
        for dtype in dtypes:
            for logits in ("all", "last", K):
                for laid in (False, True) if packed and logits == "all" else (False,):
                    yield _judge(twin, Target("cuda", dtype, logits, packed=laid), provider)


def _judge(twin: Any, target: Any, provider: str) -> tuple[bool, str]:
    """(Whether a target's graph is right, a line.)"""
    logits = target.top or target.logits
    line = f"{twin.spec.top.name.removesuffix('-twin'):20} {target.dtype}  logits {logits!s:4}"
    line += "  packed" if target.packed else ""
    try:
        runs, error, agree = _compared(twin, target, provider)
    except Exception as failed:  # a session that does not open, or a kernel that refuses, is a finding
        return False, f"{line}  WRONG: {str(failed).splitlines()[0][:160]}"
    tolerance = TOLERANCE[target.dtype]
    line += f"  {runs} runs  largest error {error:.1e} of the spread (tolerance {tolerance:.0e})"
    return error <= tolerance, f"{line}  argmax {100 * agree:.1f} %{'' if error <= tolerance else '  WRONG'}"


def _compared(twin: Any, target: Any, provider: str) -> tuple[int, float, float]:
    """(runs, largest error in spreads of the logits, how often the most probable token is the oracle's)"""
    import torch

    from blockc.ir import parameters_of
    from blockc.ir.derive import add_derived
    from blockc.proof.cases import Case, cases
    from blockc.proof.comparison import fill
    from blockc.proof.routes import widen_margins
    from blockc.proof.runners import Oracle
    from blockc.weights.rules import random_parameters

    whole = cases(twin.spec.top.vocab, cached=True)
    sequences = {row.tobytes(): (row, 0) for case in whole for row in case.rows}
    drawn, _ = widen_margins(twin.function, random_parameters(twin.function, 1), list(sequences.values()), 1)
    function = twin.flatten(target)
    kept = {n for n, param in parameters_of(function).items() if param.dtype == "float32"}
    types = {n: torch.float32 if n in kept else real(target.dtype) for n in drawn}
    exact = {n: torch.from_numpy(a).to(types[n]).double().numpy() for n, a in drawn.items()}
    oracle = Oracle(twin.function)
    derived = add_derived(exact, twin.derivations(target))
    there = {
        n: torch.from_numpy(np.ascontiguousarray(derived[n])).to(types.get(n, real(target.dtype))).to(provider)
        for n in parameters_of(function)
    }
    runner = Strict(twin.onnx(target), function, there, provider)
    runs, errors, agree = 0, [0.0], list[bool]()
    for case in whole:
        at_once = len(case.chunks) == 1
        if (
            case.labels
            or (twin.contract(target).one_row and case.several_on_a_past)
            or (target.logits != "all" and not at_once)
        ):
            continue
        truth = [oracle.run(Case("alone", (row,), (0,), (len(row),)), exact).logits[0] for row in case.rows]
        spread = float(np.std(np.concatenate(truth)))
        got = runner.run(case)
        pairs = zip(truth, case.real_rows(got) if target.logits == "all" else got, strict=True)
        for wanted, found in ((w if target.logits == "all" else w[-1:], f) for w, f in pairs):
            found = fill(wanted, found) if target.top else found
            errors.append(float(np.abs(wanted - found).max()) / spread if np.isfinite(found).all() else np.inf)
            agree += (wanted.argmax(-1) == found.argmax(-1)).tolist()
        runs += 1
    return runs, max(errors), float(np.mean(agree))
