"""The golden matrix: every spec's twin in half precision against the float64 oracle, on a provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu_session import Bound, opened, real, settled, split
from blockc.graph.contract import TOP_TOKENS

K = 8  # of the highest logits
TOLERANCE = {"fp16": 1e-2, "bf16": 8e-2}  # of the logits' spread: bf16 has three bits less


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

        return run_in_chunks(contract_of(self.function), case, self.call, np.float16)

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


def matrix(names: list[str], dtypes: list[str], provider: str) -> Iterator[tuple[bool, str]]:
    """(right, a line) for each twin, type and form of the logits."""
    from blockc import api
    from blockc.graph.target import Target

    for name in names:
        twin = api.twin(api.compile(api.bundled()[name]))
        for dtype in dtypes:
            for logits in ("all", "last", K):
                line = f"{name:16} {dtype}  logits {logits!s:4}"
                try:
                    runs, error, agree = _compared(twin, Target("cuda", dtype, logits), provider)
                except Exception as failed:  # a session that does not open, or a kernel that refuses, is a finding
                    yield False, f"{line}  WRONG: {str(failed).splitlines()[0][:160]}"
                    continue
                holds = error <= TOLERANCE[dtype]
                line += f"  {runs} runs  largest error {error:.1e} of the spread (tolerance {TOLERANCE[dtype]:.0e})"
                yield holds, f"{line}  argmax {100 * agree:.1f} %{'' if holds else '  WRONG'}"


def _compared(twin: Any, target: Any, provider: str) -> tuple[int, float, float]:
    """(runs, largest error in spreads of the logits, how often the most probable token is the oracle's)"""
    import torch

    from blockc.proof.cases import Case, cases
    from blockc.proof.matrix import fill
    from blockc.proof.runners import Oracle
    from blockc.weights.rules import random_parameters

    params = {n: torch.from_numpy(a).to(real(target.dtype)) for n, a in random_parameters(twin.function, 1).items()}
    exact = {n: t.double().numpy() for n, t in params.items()}
    oracle = Oracle(twin.function)
    function = twin.flatten(target)
    there = {n: t.to(provider) for n, t in params.items()}
    runner = Strict(twin.onnx(target), function, there, provider)
    runs, errors, agree = 0, [0.0], list[bool]()
    for case in cases(twin.spec.top.vocab, cached=True):
        whole = len(case.chunks) == 1
        if (
            case.labels
            or (twin.contract(target).one_row and case.several_on_a_past)
            or (target.logits != "all" and not whole)
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
