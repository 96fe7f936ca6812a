"""What is measured: how each model is exported, and which worker runs it.

In a command {checkpoint}, {bf16}, {gguf}, {out}, {cache}, {recipes} and {spec} stand for paths; a .py file is one of
exports/ or workers/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environments import HERE, OWN

SMALL, LARGE = "135M", "1B"
BOTH = (SMALL, LARGE)
OURS = ("blockc link", "blockc link as is", "blockc pack")


@dataclass(frozen=True)
class Export:
    environment: str
    command: str
    cases: tuple[str, ...] = BOTH
    kept: bool = True  # not made again where it is there


@dataclass(frozen=True)
class Candidate:
    """`made`: the export that it runs, or nothing where it runs the checkpoint itself."""

    environment: str
    worker: str
    made: str | None = None
    cases: tuple[str, ...] = (SMALL,)
    exact: bool = True  # it computes in float32 with the checkpoint's own weights
    longest: int = 1024  # tokens before a step: what computes all of them again is not asked for more


@dataclass(frozen=True)
class Case:
    """A checkpoint. `together`: all candidates fit in memory at once; else each is opened anew for its turn."""

    spec: str
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    together: bool


_BUILD = "-m blockc build {spec} --no-verify --ep cpu --logits last --out {out} --weights "
_BUILDER = "-m onnxruntime_genai.models.builder -i {checkpoint} -o {out} -c {cache} -e cpu -p "

COPY = "a plain copy"  # of the checkpoint: no model, and what pack is compared with
EXPORTS = {
    COPY: Export(OWN, "export_copy.py {checkpoint} {out}", kept=False),
    "blockc link": Export(OWN, f"{_BUILD}{{checkpoint}} --padding right", kept=False),
    "blockc pack": Export(OWN, f"{_BUILD}{{checkpoint}} --padding right --pack", kept=False),
    "blockc any padding": Export(OWN, f"{_BUILD}{{checkpoint}}", kept=False),
    "blockc int8": Export(OWN, f"{_BUILD}{{checkpoint}} --padding right --quant int8", kept=False),
    "blockc int4": Export(OWN, f"{_BUILD}{{checkpoint}} --padding right --quant int4", kept=False),
    "blockc int4:quality": Export(OWN, f"{_BUILD}{{checkpoint}} --padding right --quant int4:quality", kept=False),
    "blockc int4:128": Export(OWN, f"{_BUILD}{{checkpoint}} --padding right --quant int4:128", kept=False),
    "blockc genai's int4": Export(
        OWN, f"{_BUILD}{{checkpoint}} --padding right --quant-policy {{recipes}}/genai.yaml", kept=False
    ),
    "blockc carried Q4_1": Export(OWN, f"{_BUILD}{{gguf}} --padding right", (SMALL,), kept=False),
    "blockc of bf16": Export(OWN, f"{_BUILD}{{bf16}} --padding right", (LARGE,), kept=False),
    "genai fp32": Export("genai", f"{_BUILDER}fp32"),
    "genai int4": Export("genai", f"{_BUILDER}int4"),
    "mobius": Export("mobius", "-m mobius build --model {checkpoint} {out} --ep cpu --dtype f32"),
    "optimum": Export("optimum", "export_optimum.py {checkpoint} {out}"),
    "torch.onnx": Export("transformers", "export_torch.py {checkpoint} {out}"),
    "llama.cpp f32": Export("llamacpp", "export_llamacpp.py {checkpoint} {out}"),
    "llama.cpp Q4_0": Export("llamacpp", "export_llamacpp.py {checkpoint} {out} Q4_0", (SMALL,)),
    "llama.cpp Q8_0": Export("llamacpp", "export_llamacpp.py {checkpoint} {out} Q8_0", (SMALL,)),
    "llama.cpp Q4_K_M": Export("llamacpp", "export_llamacpp.py {checkpoint} {out} Q4_K_M", (SMALL,)),
}

_ONNX = "worker_onnx.py {out}"
_TRANSFORMERS = "worker_transformers.py"
CANDIDATES = {
    "blockc link": Candidate(OWN, _ONNX, "blockc link", BOTH),
    "blockc link as is": Candidate(OWN, f"{_ONNX} --no-prepack", "blockc link", BOTH),
    "blockc pack": Candidate(OWN, _ONNX, "blockc pack", BOTH),
    "blockc any padding": Candidate(OWN, _ONNX, "blockc any padding"),
    "blockc int8": Candidate(OWN, _ONNX, "blockc int8", BOTH, exact=False),
    "blockc int4": Candidate(OWN, _ONNX, "blockc int4", BOTH, exact=False),
    "blockc int4:quality": Candidate(OWN, _ONNX, "blockc int4:quality", BOTH, exact=False),
    "blockc int4:128": Candidate(OWN, _ONNX, "blockc int4:128", BOTH, exact=False),
    "blockc genai's int4": Candidate(OWN, _ONNX, "blockc genai's int4", BOTH, exact=False),
    "blockc carried Q4_1": Candidate(OWN, _ONNX, "blockc carried Q4_1", exact=False),
    "blockc of bf16": Candidate(OWN, _ONNX, "blockc of bf16", (LARGE,), exact=False),
    "genai fp32": Candidate(OWN, _ONNX, "genai fp32", BOTH),
    "genai fp32 shared": Candidate(OWN, f"{_ONNX} --shared", "genai fp32"),
    "genai fp32 own API": Candidate("genai", "worker_genai.py {out}", "genai fp32"),
    "genai int4": Candidate(OWN, _ONNX, "genai int4", BOTH, exact=False),
    "genai int4 shared": Candidate(OWN, f"{_ONNX} --shared", "genai int4", exact=False),
    "mobius": Candidate(OWN, _ONNX, "mobius", BOTH),
    "optimum": Candidate(OWN, _ONNX, "optimum", BOTH),
    "torch.onnx no cache": Candidate(OWN, "worker_nocache.py {out}", "torch.onnx", longest=128),
    "transformers fp32": Candidate("transformers", f"{_TRANSFORMERS} {{checkpoint}} float32", None, BOTH),
    "transformers bf16": Candidate("transformers", f"{_TRANSFORMERS} {{bf16}} bfloat16", None, BOTH, exact=False),
    "llama.cpp f32": Candidate("llamacpp", "worker_llamacpp.py {out}/model.gguf", "llama.cpp f32", BOTH),
    "llama.cpp Q4_0": Candidate("llamacpp", "worker_llamacpp.py {out}/model.gguf", "llama.cpp Q4_0", exact=False),
    "llama.cpp Q8_0": Candidate("llamacpp", "worker_llamacpp.py {out}/model.gguf", "llama.cpp Q8_0", exact=False),
    "llama.cpp Q4_K_M": Candidate("llamacpp", "worker_llamacpp.py {out}/model.gguf", "llama.cpp Q4_K_M", exact=False),
    "llama.cpp Q4_1": Candidate("llamacpp", "worker_llamacpp.py {gguf}", None, exact=False),
}

CASES = {
    SMALL: Case("smollm2-135m", (128, 512), (128, 1024), together=True),
    LARGE: Case("llama3.2-1b", (128,), (128,), together=False),
}


def skipped(case: str, name: str, skip: Sequence[str]) -> bool:
    """`skip`: beginnings of CASE:name."""
    return f"{case}:{name}".startswith(tuple(skip))


def chosen(case: str, only: Sequence[str], skip: Sequence[str] = ()) -> dict[str, Candidate]:
    """Those of a case; `only`: beginnings of names, all where there are none."""
    return {
        name: candidate
        for name, candidate in CANDIDATES.items()
        if case in candidate.cases and (not only or name.startswith(tuple(only))) and not skipped(case, name, skip)
    }


def wanted(case: str, only: Sequence[str], skip: Sequence[str] = ()) -> dict[str, Export]:
    """What those run on, and what is exported for its own sake."""
    run = {candidate.made for candidate in chosen(case, only, skip).values()}
    return {
        name: export
        for name, export in EXPORTS.items()
        if case in export.cases and (name in run or not only or name.startswith(tuple(only)))
        if not skipped(case, name, skip)
    }


def filled(command: str, folder: str, paths: dict[str, Path | str]) -> list[str]:
    """The words of a command, a file of `folder` by its path."""
    words = [word.format(**paths) for word in command.split()]
    return [str(HERE / folder / word) if word.endswith(".py") else word for word in words]
