"""One run of a backend beside the oracle: its error in spreads of the logits, and the first node that differs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from blockc.graph.contract import LOGITS
from blockc.ir import Array, inline
from blockc.ir.derive import Derivation, round_params
from blockc.pipeline.compiled import Compiled
from blockc.proof.cases import Case
from blockc.proof.routes import differing_route, find_value, routes_of
from blockc.proof.runners import Answer, Oracle, Params, Runner

# In standard deviations of the logits. Rounding in fp32 stays ten times below; a wrong GELU is ten times above. fp16
# has eleven bits, so its graphs are compared with the oracle on weights that fit in eleven bits.
TOLERANCE = {"float64": 1e-9, "float32": 3e-5, "float16": 2e-2}


@dataclass(frozen=True)
class Row:
    """One run. `error` is the largest difference of an output, divided by the output's standard deviation."""

    backend: str
    variant: str
    dtype: str
    error: float
    agreement: float  # of argmax
    tolerance: float
    differs: str = ""  # the first node whose value differs, if any

    def __repr__(self) -> str:
        return f"<Row {', '.join(cell for cell in self.cells if cell)}>"

    @property
    def holds(self) -> bool:
        return bool(self.error <= self.tolerance)

    @property
    def cells(self) -> tuple[str, ...]:
        end = "ok" if self.holds else f"WRONG, first at {self.differs}" if self.differs else "WRONG"
        return (
            self.backend,
            self.variant,
            self.dtype,
            f"{self.error:.1e}",
            f"{self.agreement:.0%}",
            f"{self.tolerance:.0e}",
            end,
        )


Rounding = tuple[Derivation, ...]  # derivations that round the parameters they are made from


class Truth:
    """The oracle's outputs of each sequence alone and whole, without cache or padding; each is computed once."""

    def __init__(self, twin: Compiled, params: Params) -> None:
        floats = {name: array for name, array in params.items() if array.dtype.kind == "f"}
        half = {**params, **{name: a.astype(np.float16).astype(np.float64) for name, a in floats.items()}}
        self.params: dict[str, Params] = {"float64": params, "float32": params, "float16": half}
        self.whole = Oracle(twin.function)
        self.known: dict[tuple[str, Rounding, bytes, int], dict[str, Array]] = {}
        self.held: dict[tuple[str, Rounding], Params] = {}

    def logits_of(self, row: Array, dtype: str, first: int = 0, rounding: Rounding = ()) -> Array:
        return self.outputs_of(row, dtype, first, rounding)[LOGITS]

    def outputs_of(self, row: Array, dtype: str, first: int = 0, rounding: Rounding = ()) -> dict[str, Array]:
        """The outputs of one sequence by name: (tokens, N), or (1, N) of the whole text."""
        key = ("float16" if dtype == "float16" else "float64", rounding, row.tobytes(), first)
        if key not in self.known:
            case = Case("alone", (row,), (0,), (len(row),), first=first)
            made = self.whole.run(case, self.round_params(dtype, rounding)).outputs
            self.known[key] = {name: array[0] if array.ndim == 3 else array for name, array in made.items()}
        return self.known[key]

    def round_params(self, dtype: str, rounding: Rounding) -> Params:
        """The parameters as rounded by a graph's derivations."""
        if (dtype, rounding) not in self.held:
            self.held[dtype, rounding] = round_params(self.params[dtype], rounding)
        return self.held[dtype, rounding]


def compare_run(oracle: Truth, runner: Runner, case: Case, choices: bool = False) -> Row:
    """One run. With `choices` also of the experts that tokens choose: others are wrong, whatever the logits."""
    dtype, params = runner.dtype, oracle.params[runner.dtype]
    rounding = tuple(each for each in runner.derived.values() if each.is_lossy)
    truth = [oracle.outputs_of(row, dtype, case.first, rounding) for row in case.rows]
    try:
        answer = runner.run(case, params, trace=choices)
    except Exception as error:  # emitted files may have been edited: a failure is a result, not a crash
        first = (str(error).splitlines() or [""])[0]
        return Row(
            runner.name, case.name, dtype, float("inf"), 0.0, TOLERANCE[dtype], f"{type(error).__name__}: {first[:200]}"
        )
    other = _other_choice(runner, case, params, answer) if choices else ""
    error, agreement = 0.0, 1.0
    for name in truth[0]:
        wanted, got = _compared_rows(case, [each[name] for each in truth], answer.outputs[name])
        if runner.contract.top or runner.contract.last not in (None, 1):
            got = [fill(w, g) for w, g in zip(wanted, got, strict=True)]
        spread = float(np.std(np.concatenate([each[name] for each in truth])))
        error = max(error, _largest_difference(wanted, got) / spread)
        if name == LOGITS and answer.loss is not None:
            loss = oracle.whole.run(case, oracle.round_params(dtype, rounding)).loss or 0.0
            error = max(error, abs(answer.loss - loss) / spread)
        alike = [w.argmax(-1) == g.argmax(-1) for w, g in zip(wanted, got, strict=True)]
        agreement = min(agreement, float(np.mean(np.concatenate(alike))))
    row = Row(runner.name, case.name, dtype, error, agreement, TOLERANCE[dtype])
    if row.holds and not other:
        return row
    first = first_difference(runner, case, params)
    if not other or not (row.holds or first.startswith(other)):
        return replace(row, differs=first)
    return replace(row, error=float("inf"), differs=f"{other}: other experts")


def _other_choice(runner: Runner, case: Case, params: Params, answer: Answer) -> str:
    """The first node at which a backend chooses other experts than the oracle; empty if none does."""
    truth = Oracle(runner.function, derived=runner.derived).run(case, params, trace=True)
    return differing_route(list(routes_of(inline(runner.function))), case, truth.values, answer.values)


def _largest_difference(wanted: list[Array], got: list[Array]) -> float:
    return max(
        float(np.max(np.abs(w - g))) if np.isfinite(g).all() else np.inf for w, g in zip(wanted, got, strict=True)
    )


def _compared_rows(case: Case, truth: list[Array], logits: Array) -> tuple[list[Array], list[Array]]:
    """(The oracle's rows; the runner's) to compare: those of all real tokens, or of the last one in each chunk.

    An output of whole texts has one row for each.
    """
    if logits.ndim == 2:
        return truth, [logits[i : i + 1] for i in range(len(truth))]
    if logits.shape[1] == case.length:
        return truth, case.real_rows(logits)
    # Each chunk gave one row: the last real token so far. A row whose sequence has not begun is not compared.
    ends = np.cumsum(case.chunks)
    wanted, got = list[Array](), list[Array]()
    for i, (row, start) in enumerate(zip(case.rows, case.starts, strict=True)):
        for chunk, end in enumerate(ends):
            last = min(int(end) - start, len(row)) - 1
            first = int(end) - case.chunks[chunk] - start
            if last >= max(first, 0):
                wanted.append(truth[i][last : last + 1])
                got.append(logits[i, chunk : chunk + 1])
    return wanted, got


def fill(wanted: Array, got: Array) -> Array:
    """Fills logits that a graph did not return: each is the oracle's, but not above the least returned one."""
    least = np.where(np.isneginf(got), np.inf, got).min(axis=-1, keepdims=True)
    return np.where(np.isneginf(got), np.minimum(wanted, least), got)


def first_difference(runner: Runner, case: Case, params: Params) -> str:
    """The first node, in the order of computation, whose value is not the oracle's on the same call."""
    truth = Oracle(runner.function, derived=runner.derived).run(case, params, trace=True)
    answer = runner.run(case, params, trace=True)
    for wanted, got in zip(truth.values, answer.values, strict=False):
        for name, value in wanted.items():
            found = find_value(got, name)
            if found is not None and not _is_close(value, found, TOLERANCE[runner.dtype]):
                return name
    return ""


def _is_close(wanted: Array, got: Array, tolerance: float) -> bool:
    """Whether values are equal within the tolerance times their spread; infinities and NaN must be the same."""
    if wanted.shape != got.shape:
        return False
    numbers = np.isfinite(wanted.astype(np.float64))
    if not np.array_equal(wanted[~numbers], got[~numbers]):
        return False
    truth, found = wanted[numbers].astype(np.float64), got[numbers].astype(np.float64)
    spread = float(np.std(truth)) if truth.size else 1.0
    return bool(np.isfinite(found).all() and np.abs(truth - found).max(initial=0.0) <= tolerance * (spread or 1.0))
