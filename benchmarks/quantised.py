"""What each recipe of --quant costs: bytes, predictions, times; as the table and the picture of docs/quantisation.md.

python -m benchmarks.quantised SPEC WEIGHTS FOLDER [RECIPE ...]

FOLDER gets a build of each recipe and results.json; what is there already is not made again. Quality is that of
`blockc verify --quality` against the build in fp32. Times are CPU times of one thread, the least of many: the builds
take turns in one process, in another order each time, since a build is slower after some than after others. What else
runs on the machine counts little.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.peers.__main__ import machine_facts
from benchmarks.peers.picture import points
from benchmarks.peers.render import DOCS, digits, laid, markdown
from blockc import api
from blockc.bench.opening import disk_of
from blockc.graph.quant import parse_quant
from blockc.runtime import Session

RECIPES = ("int8", "int4:quality", "int4", "int4:128")
BASE = "fp32"
TURNS, STEPS = 20, 4
LENGTHS = {"decode": (128, 1024), "prefill": (128, 512)}
Results = dict[str, dict[str, Any]]


def folder_of(root: Path, recipe: str) -> Path:
    return root / recipe.replace(":", "-")


def build_all(spec: str, weights: Path, root: Path, recipes: tuple[str, ...]) -> None:
    model = api.compile(spec)
    for recipe in recipes:
        if (folder_of(root, recipe) / "manifest.json").exists():
            continue
        quant = None if recipe == BASE else parse_quant(recipe)
        target = api.Target("cpu", logits="last", quant=quant)
        api.build(model, folder_of(root, recipe), target=target, proof=False, weights=weights)


def times_of(folders: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """Milliseconds of each build, for a decode step after so many tokens and for a prompt of so many."""
    sessions = {name: Session(folder, threads=1) for name, folder in folders.items()}
    order = random.Random(0)
    found: dict[str, dict[str, float]] = {name: {} for name in sessions}

    def by_turns(what: str, turns: int, call: Callable[[Session], float]) -> None:
        for _ in range(turns):
            for name, session in order.sample(list(sessions.items()), len(sessions)):
                found[name][what] = min(call(session), found[name].get(what, 1e9))

    for length in LENGTHS["decode"]:
        for session in sessions.values():
            session.reset()
            session.prefill([prompt(length, session)], room=TURNS * (STEPS + 1))
        by_turns(f"decode at {length}", TURNS, decode)
    for length in LENGTHS["prefill"]:
        by_turns(f"prefill {length}", TURNS // 2, lambda session, n=length: prefill(session, n))
    return found


def prompt(length: int, session: Session) -> list[int]:
    return [i * 7919 % session.model.vocab for i in range(length)]


def decode(session: Session) -> float:
    """The least of several steps, without the first: it finds another's weights in the processor's caches."""
    session.decode([1])
    return min(timed(lambda: session.decode([1])) for _ in range(STEPS))


def prefill(session: Session, length: int) -> float:
    session.reset()
    return timed(lambda: session.prefill([prompt(length, session)]))


def timed(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return 1000 * (time.process_time() - start)


def measured(root: Path, recipes: tuple[str, ...]) -> Results:
    """All results, kept in results.json as they come."""
    path = root / "results.json"
    held: Results = json.loads(path.read_text()) if path.exists() else {}
    for recipe in recipes:
        kept = held.setdefault(recipe, {})
        kept["bytes"] = disk_of(folder_of(root, recipe))
        if recipe != BASE and "quality" not in kept:
            kept["quality"] = api.quality(folder_of(root, recipe), folder_of(root, BASE), threads=1).data()
            del kept["quality"]["folder"], kept["quality"]["against"]
        path.write_text(json.dumps(held, indent=1))
    if any("ms" not in held[recipe] for recipe in recipes):
        for recipe, ms in times_of({recipe: folder_of(root, recipe) for recipe in recipes}).items():
            held[recipe]["ms"] = ms
        path.write_text(json.dumps(held, indent=1))
    return {recipe: held[recipe] for recipe in recipes}


def rows(found: Results) -> list[list[str]]:
    what = list(found[BASE]["ms"])
    table = [["", "MB", "KL, nats", "median", "same next token", "perplexity", *what]]
    for recipe, held in found.items():
        said = [str(round(held["bytes"] / 1e6)), *quality_of(held.get("quality"))]
        times = [f"{digits(ms)} ({ms / found[BASE]['ms'][name]:.2f})" for name, ms in held["ms"].items()]
        table.append([recipe, *said, *times])
    return table


def quality_of(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return ["0", "0", "1", "x 1"]
    kl, median, same, ratio = (found[name] for name in ("kl", "kl_median", "same", "ratio"))
    return [
        f"{kl['value']:.2g} ({kl['low']:.2g} to {kl['high']:.2g})",
        f"{median['value']:.2g}",
        f"{same['value']:.3f} (± {(same['high'] - same['low']) / 2:.3f})",
        f"x {ratio['value']:.3f} (± {(ratio['high'] - ratio['low']) / 2:.3f})",
    ]


def page(found: Results, docs: Path = DOCS) -> None:
    """docs/quantisation.md between its marks, and its picture."""
    machine = machine_facts([0])
    facts = (
        f"{time.strftime('%Y-%m-%d')}, {machine['cpu']} ({', '.join(machine['units'])}), onnxruntime "
        f"{onnxruntime.__version__}; CPU time of one thread, milliseconds."
    )
    laid(docs / "quantisation.md", {"facts": facts, "recipes": markdown(rows(found))})
    placed = {
        recipe: (held["ms"]["decode at 128"], held["quality"]["kl"]["value"])
        for recipe, held in found.items()
        if "quality" in held
    }
    drawn = points("KL and the time of a decode step", "ms, decode at 128", "KL, nats", placed)
    (docs / "quantisation.svg").write_text(drawn, encoding="utf-8")


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit((__doc__ or "").split("\n\n")[1])
    spec, weights, root, *named = sys.argv[1:]
    recipes = (BASE, *(named or RECIPES))
    Path(root).mkdir(parents=True, exist_ok=True)
    build_all(spec, Path(weights), Path(root), recipes)
    found = measured(Path(root), recipes)
    print("\n".join("  ".join(row) for row in rows(found)))
    page(found)


if __name__ == "__main__":
    main()
