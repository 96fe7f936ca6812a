"""The decode loop, as a text is written: a token goes in from the host, and the one that is picked comes back to it.

Programs read the same tokens, those that eager PyTorch picks, and pick on their own; onnxruntime-genai reads its own. A
pick is right where PyTorch finds it as likely as its own, to the rounding of fp16. Times are medians of single steps.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.gpu_matrix import TOLERANCE
from benchmarks.gpu_session import real

DTYPE = "fp16"
K = 50


@dataclass(frozen=True)
class Text:
    """B prompts of P tokens, and how many are written behind each."""

    rows: int
    prompt: int
    new: int

    def __str__(self) -> str:
        return f"{self.new} tokens behind {self.prompt}, batch {self.rows}"


FULL, QUICK = [Text(1, 128, 64), Text(8, 128, 64)], [Text(2, 6, 5)]


class Program(Protocol):
    """What is picked behind the prompts, and behind the tokens that are given next. `free`: it reads its own picks."""

    free: bool

    def start(self, ids: np.ndarray, room: int) -> np.ndarray: ...

    def step(self, tokens: np.ndarray) -> np.ndarray: ...


class Torch:
    """model.py. `keep` gets the logits of each step."""

    free = False

    def __init__(self, model: Any, device: str, keep: Callable[[Any], None] = lambda logits: None) -> None:
        self.model, self.device, self.keep = model, device, keep

    def start(self, ids: np.ndarray, room: int) -> np.ndarray:
        self.past, self.seen = None, 0
        return self._picked(ids)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        return self._picked(tokens[:, None])

    def _picked(self, ids: np.ndarray) -> np.ndarray:
        import torch

        rows, new = ids.shape
        given = torch.from_numpy(ids).to(self.device)
        mask = torch.ones(rows, self.seen + new, dtype=torch.int64, device=self.device)
        positions = torch.arange(self.seen, self.seen + new, device=self.device).repeat(rows, 1)
        with torch.inference_mode():
            made = self.model(given, mask, positions, self.past, use_cache=True)
            logits = made.logits[:, -1]
            picked = logits.argmax(-1).cpu().numpy()
        self.past, self.seen = made.past_key_values, self.seen + new
        self.keep(logits)
        return picked


class Built:
    """A build by blockc's own session."""

    free = False

    def __init__(self, folder: Path, provider: str, capture: bool = False) -> None:
        from blockc.runtime import Session

        threads = 1 if provider == "cpu" else None
        self.session = Session(folder, "cuda" if provider == "cuda" else "cpu", threads, capture=capture)

    def start(self, ids: np.ndarray, room: int) -> np.ndarray:
        self.session.reset()
        return self.session.prefill(ids.tolist(), room).argmax(-1)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        return self.session.decode(tokens).argmax(-1)


class Genai:
    """A graph of onnxruntime-genai's builder by its own loop, which picks on the device."""

    free = True

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai

        self.genai = onnxruntime_genai
        self.model = onnxruntime_genai.Model(str(folder))

    def start(self, ids: np.ndarray, room: int) -> np.ndarray:
        length = ids.shape[1] + room + 1
        params = self.genai.GeneratorParams(self.model)
        params.set_search_options(max_length=length, min_length=length, batch_size=len(ids), do_sample=False)
        self.generator = self.genai.Generator(self.model, params)
        self.generator.append_tokens(ids.astype(np.int32))
        return self.step(ids[:, 0])

    def step(self, tokens: np.ndarray) -> np.ndarray:
        self.generator.generate_next_token()
        return np.array(self.generator.get_next_tokens(), np.int64)


# One model's checkpoint, and what is built of it


def checkpoint(compiled: Any, model: Any, folder: Path) -> Path:
    """model.py's weights as a file of their family; for the models that are known whole, a folder of Hugging Face."""
    from benchmarks.peers.checkpoint import LARGE, LLAMA, SMALL
    from blockc.layouts import load_layout
    from blockc.weights.matching import pack
    from blockc.weights.rules import group_sizes, rules

    own = {name: parameter.detach().cpu().numpy() for name, parameter in model.named_parameters()}
    held = pack(
        rules(load_layout(compiled.spec.top.checkpoint), compiled.function, group_sizes(compiled.function)), own
    )
    folder.mkdir()
    _safetensors(folder / "model.safetensors", held)
    if facts := {"smollm2-135m": SMALL, "llama3.2-1b": LARGE}.get(compiled.spec.name):
        (folder / "config.json").write_text(json.dumps(LLAMA | facts | {"torch_dtype": "float16"}))
    return folder


def _safetensors(path: Path, held: Mapping[str, np.ndarray]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in held.items():
        header[name] = {"dtype": "F16", "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for array in held.values():
            np.ascontiguousarray(array, np.float16).tofile(out)


def lacks_genai(weights: Path) -> str:
    """Why onnxruntime-genai takes no part, or nothing."""
    try:
        import onnxruntime_genai
        import transformers  # noqa: F401  its builder reads a checkpoint with it
    except ImportError as error:
        return f"there is no {error.name}"
    if not onnxruntime_genai.is_cuda_available():
        return "the onnxruntime_genai that is installed has no CUDA"
    return "" if (weights / "config.json").is_file() else "its builder does not know a twin"


def genai_folder(weights: Path, out: Path) -> Path:
    """By genai's builder in fp16, for CUDA graphs. It asks for a tokenizer, which nothing here reads."""
    import tokenizers
    import transformers

    words: Any = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(weights)
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", weights, "-o", out, "-c", out / "cache"]
    command += ["-e", "cuda", "-p", "fp16", "--extra_options", "enable_cuda_graph=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"genai's builder: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return out


def built(compiled: Any, weights: Path, out: Path, logits: Any) -> Path:
    from blockc import api
    from blockc.graph.target import Target

    api.build(compiled, out, target=Target("cuda", DTYPE, logits), proof=False, weights=weights, mode="link")
    return out


# The race


@dataclass
class Truth:
    """Eager PyTorch's picks, and the logits that it found."""

    picks: list[np.ndarray]
    logits: list[Any]

    def worst(self, picks: list[np.ndarray], free: bool) -> float:
        """How much less likely a pick is than the likeliest, in spreads; of one that reads its own, while it agrees."""
        errors = [0.0]
        agreed = np.ones(len(picks[0]), bool)
        for wanted, found, logits in zip(self.picks, picks, self.logits, strict=True):
            rows = logits.float()
            of_pick = rows[np.arange(len(found)), found]
            gaps = ((rows.max(-1).values - of_pick) / rows.std(-1)).cpu().numpy()
            errors.append(float(gaps[agreed].max(initial=0.0)))
            agreed &= (wanted == found) | (not free)
        return max(errors)


def written(program: Program, ids: np.ndarray, truth: Truth | None, new: int) -> tuple[list[np.ndarray], list[float]]:
    """(the picks, milliseconds of each step), on the truth's tokens where there is one."""
    picks, times = [program.start(ids, new)], list[float]()
    for i in range(new):
        given = truth.picks[i] if truth is not None else picks[-1]
        start = time.perf_counter()
        picks.append(program.step(given))
        times.append(1000 * (time.perf_counter() - start))
    return picks, times


def loops(name: str, compiling: bool, provider: str, quick: bool, until: float) -> Iterator[tuple[bool, str]]:
    """(right, a line) for each program on each text."""
    import torch

    from blockc import api
    from blockc.graph.target import Target
    from blockc.proof.runners import load_module

    compiled = api.compile(api.bundled()[name])
    compiled = api.twin(compiled) if quick else compiled
    if compiled.contract(Target("cuda", DTYPE)).feeding != "rows":
        yield True, f"{compiled.spec.name:17} not measured: its attention is not fused"
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "model.py").write_text(compiled.model_py(), encoding="utf-8")
        torch.manual_seed(0)
        with torch.device(provider):
            model = load_module(root / "model.py").Model().to(real(DTYPE)).eval()
        model.init_weights()
        weights = root if compiling else checkpoint(compiled, model, root / "weights")
        programs, absent = _programs(compiled, model, root, weights, provider, compiling)
        for text in (FULL[:1] if compiling else FULL) if not quick else QUICK:
            for holds, line in _raced(programs, compiled.spec.top.vocab, model, provider, text, until):
                yield holds, f"{compiled.spec.name:17} {text!s:34} {line}"
        for what, why in absent.items():
            yield True, f"{compiled.spec.name:17} {what}: not run, {why}"


Made = dict[str, Callable[[], Program]]


def _programs(
    compiled: Any, model: Any, root: Path, weights: Path, provider: str, compiling: bool
) -> tuple[Made, dict[str, str]]:
    """(by name, each made when it is first called; what takes no part, and why)"""
    import torch

    if compiling:
        return {"torch.compile": lambda: Torch(torch.compile(model, dynamic=True), provider)}, {}
    made: Made = {
        "onnxruntime, all logits": lambda: Built(built(compiled, weights, root / "last", "last"), provider),
        f"onnxruntime, top {K}": lambda: Built(built(compiled, weights, root / "top", K), provider),
        "onnxruntime, top 1": lambda: Built(built(compiled, weights, root / "one", 1), provider),
    }
    absent: dict[str, str] = {}
    graph, genai = "onnxruntime, top 1, CUDA graph", "onnxruntime-genai, CUDA graph"
    if provider == "cuda":
        made[graph] = lambda: Built(built(compiled, weights, root / "captured", 1), provider, capture=True)
    else:
        absent[graph] = "a CUDA graph wants a GPU"
    if why := lacks_genai(weights):
        absent[genai] = why
    else:
        made[genai] = lambda: Genai(genai_folder(weights, root / "genai"))
    return {name: cache(make) for name, make in made.items()}, absent


def _raced(
    programs: Made, vocab: int, model: Any, provider: str, text: Text, until: float
) -> Iterator[tuple[bool, str]]:
    ids = np.random.default_rng(0).integers(0, vocab, (text.rows, text.prompt))
    kept: list[Any] = []
    picks, _ = written(Torch(model, provider, kept.append), ids, None, text.new)
    truth = Truth(picks, kept)
    _, times = written(Torch(model, provider), ids, truth, text.new)
    eager = statistics.median(times)
    yield True, f"{'torch, eager':30} {eager:9.3f} ms a step"
    for name, make in programs.items():
        if time.perf_counter() > until:
            yield True, f"{name:30} not measured: out of time"
            continue
        try:
            program = make()
            written(program, ids, truth, text.new)  # allocates, compiles, captures
            picks, times = written(program, ids, truth, text.new)
        except Exception as failed:  # a session that does not open, or a capture that fails, is a finding
            yield False, f"{name:30} WRONG: {str(failed).splitlines()[0][:160]}"
            continue
        worst, ms = truth.worst(picks, program.free), statistics.median(times)
        holds = worst <= 3 * TOLERANCE[DTYPE]
        said = f"{ms:9.3f} ms a step  {eager / ms:6.2f} x eager  picks off by {worst:.0e}"
        yield holds, f"{name:30} {said}{'' if holds else '  WRONG'}"
