"""Results as text, as the tables and pictures of docs/performance.md: python -m benchmarks.peers.render [FILE.json]

Without a file the newest of benchmarks/results/ is taken.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.candidates import CANDIDATES, COPY, OURS
from benchmarks.peers.picture import bars

FORMAT = 1
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
Case = Mapping[str, Any]
FLOOR = "machine's floor, fp32"


@dataclass(frozen=True)
class Column:
    """Figures by candidate; `floor` is what none in float32 can be under. Smaller is better in all."""

    head: str
    unit: str
    of: Callable[[str], float | None]
    floor: float | None = None

    def cell(self, name: str) -> str:
        value = self.of(name)
        if value is None:
            return ""
        return digits(value) if self.floor is None else f"{digits(value)} ({value / self.floor:.2f})"


def digits(value: float) -> str:
    """A count whole; of else three at least, none behind the point from a hundred on."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def columns(case: Case) -> list[Column]:
    """A candidate without an export has no figures of one; one that fell out has those alone."""
    run, made = case["candidates"], case["exports"]

    def at(*keys: str, scale: float = 1.0) -> Callable[[str], float | None]:
        def found(name: str) -> float | None:
            value: Any = run.get(name)
            for key in keys:
                value = None if value is None else value.get(key)
            return None if value is None else scale * value

        return found

    def export(key: str, scale: float = 1) -> Callable[[str], float | None]:
        return lambda name: scale * made[name][key] if key in made.get(name, {}) else None

    timed = [
        Column(f"{do}{' at' if do == 'decode' else ''} {n}", "ms", at(do, n, "median"), floor)
        for do in ("prefill", "decode")
        for n, floor in case["floor"][do].items()
    ]
    return [
        Column("export", "s", export("seconds")),
        Column("export, peak", "MB", export("peak", 1e-6)),
        *timed,
        Column("load", "s", at("load")),
        Column("resident", "MB", at("memory", "rss", scale=1e-6)),
        Column("of it private", "MB", at("memory", "private", scale=1e-6)),
        Column("on disk", "MB", export("disk", 1e-6)),
        Column("nodes", "a layer", export("nodes")),
    ]


def names(case: Case) -> list[str]:
    """In the order of candidates.py; an export that none runs stands at the end."""
    known = [name for name in CANDIDATES if name in case["candidates"] or name in case["exports"]]
    return known + [name for name in case["exports"] if name not in known]


def rows(case: Case) -> Iterator[list[str]]:
    """The head, the floor, and a row for each candidate."""
    shown = columns(case)
    yield ["", *(f"{column.head}, {column.unit}" for column in shown)]
    yield [FLOOR, *("" if column.floor is None else digits(column.floor) for column in shown)]
    for name in names(case):
        yield [name, *(column.cell(name) for column in shown)]


def best(case: Case) -> Iterator[list[str]]:
    """Of each column: blockc's, the smallest of a peer that computes the same in float32, and the ratio."""
    yield ["", *OURS, "best peer", "whose", "ratio"]
    for column in columns(case):
        peers = [(value, name) for name in names(case) if _is_peer(name) and (value := column.of(name)) is not None]
        ours = [value for name in OURS if (value := column.of(name)) is not None]
        if peers and ours:
            value, name = min(peers)
            ratio = f"{min(ours) / value:.3f}" if value else ""
            yield [f"{column.head}, {column.unit}", *(column.cell(n) for n in OURS), column.cell(name), name, ratio]


def _is_peer(name: str) -> bool:
    return not name.startswith("blockc") and name != COPY and (name not in CANDIDATES or CANDIDATES[name].exact)


def facts(found: Mapping[str, Any]) -> str:
    first = next(iter(found["cases"].values()))
    machine = first["machine"]
    products = " and ".join(f"{rate / 1e9:.0f} at {n} rows" for n, rate in machine["flops_s"].items())
    return (
        f"{found['date']}, {found['cpu']} ({', '.join(found['units'])}), {found['threads']} threads on as many cores, "
        f"Python {found['python']}. The machine reads {machine['bytes_s'] / 1e9:.1f} GB/s by {machine['read by']}, and "
        f"multiplies {products} GFLOP/s in float32."
    )


def versions(found: Mapping[str, Any]) -> str:
    """blockc's own, and what is pinned in each peer's environment."""
    said: dict[str, str] = {}
    for case in found["cases"].values():
        for name in (name for name in OURS if name in case["candidates"]):
            said |= case["candidates"][name]["versions"]
    listed = {f"blockc {found['blockc']}": said} | found["pins"]
    return "\n".join(f"- {name}: {', '.join(map(' '.join, held.items()))}" for name, held in listed.items())


def notes(case: Case) -> list[str]:
    """Who is missing and why, and whose text is not that of the others."""
    lines = [f"{name} is missing: {why}" for name, why in case["missing"].items()]
    said = {name: held["agrees"] for name, held in case["candidates"].items() if "agrees" in held}
    total = case["greedy"]
    if said:
        same = [name for name, count in said.items() if count == total]
        lines.append(f"The same {total} likeliest tokens after a prompt come from {', '.join(same) or 'none'}")
    lines += [
        f"{name} parts from them after {count}" + (", and it should not" if CANDIDATES[name].exact else "")
        for name, count in said.items()
        if count < total
    ]
    return lines


def text(found: Mapping[str, Any]) -> str:
    parts = [facts(found)]
    for name, case in found["cases"].items():
        parts += ["", name, *_aligned(list(rows(case))), "", *_aligned(list(best(case))), *notes(case)]
    return "\n".join([*parts, "", versions(found)])


def _aligned(table: list[list[str]]) -> list[str]:
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in table]


def markdown(table: list[list[str]]) -> str:
    head, *rest = table
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in line)}|" for line in lines)


def blocks(found: Mapping[str, Any]) -> dict[str, str]:
    """What stands between the marks of the page."""
    made = {"facts": facts(found), "versions": versions(found)}
    for name, case in found["cases"].items():
        shown = "\n".join(f"![{title}](performance/{file})" for file, title in _titles(name, case).items())
        listed = "\n".join(f"- {line}" for line in notes(case))
        made[name] = "\n\n".join([markdown(list(rows(case))), listed, markdown(list(best(case))), shown])
    return made


def _titles(name: str, case: Case) -> dict[str, str]:
    return {
        f"{name}-{column.head.replace(' at', '').replace(' ', '-')}.svg": f"{name}: {column.head}, {column.unit}"
        for column in columns(case)
        if column.floor is not None or column.head in ("export", "load")
    }


def pictures(found: Mapping[str, Any]) -> dict[str, str]:
    made: dict[str, str] = {}
    for name, case in found["cases"].items():
        by_title = {f"{name}: {column.head}, {column.unit}": column for column in columns(case)}
        for file, title in _titles(name, case).items():
            column = by_title[title]
            values = {n: value for n in names(case) if (value := column.of(n)) is not None}
            made[file] = bars(title, values, column.floor, OURS, digits)
    return made


def page(found: Mapping[str, Any], docs: Path = DOCS) -> None:
    """docs/performance.md between its marks, and the pictures beside it."""
    laid(docs / "performance.md", blocks(found))
    folder = docs / "performance"
    folder.mkdir(exist_ok=True)
    for file, drawn in pictures(found).items():
        (folder / file).write_text(drawn, encoding="utf-8")


def laid(path: Path, made: Mapping[str, str]) -> None:
    """Lays each block between its marks, or raises and leaves the page as it is."""
    written = path.read_text(encoding="utf-8")
    for name, block in made.items():
        mark = rf"(<!-- results: {re.escape(name)} -->\n).*?(<!-- end -->)"
        written, count = re.subn(mark, lambda m, b=block: f"{m[1]}{b}\n{m[2]}", written, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{path}: one block is wanted from <!-- results: {name} --> to <!-- end -->, not {count}")
    path.write_text(written, encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("format") != FORMAT:
        raise ValueError(f"{path}: format {found.get('format')}, and {FORMAT} is read: measure again")
    return found


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]] or sorted((ROOT / "benchmarks" / "results").glob("cpu-*.json"))
    if not files:
        sys.exit("benchmarks/results/ holds no cpu-DATE.json: make bench writes one")
    page(read(files[-1]))


if __name__ == "__main__":
    main()
