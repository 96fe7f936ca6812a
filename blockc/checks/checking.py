"""All findings of a spec file: errors and warnings, without those that comments silence."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_all_start_methods, get_context

from blockc.basics.distribution import layout_names
from blockc.checks.advice import advice
from blockc.checks.policy import Policy
from blockc.diagnostics import CODES
from blockc.diagnostics.advice import IDLE_IGNORE
from blockc.diagnostics.figures import CHECKPOINT
from blockc.language.spec.faults import value_place
from blockc.layouts import LayoutError, load_layout
from blockc.pipeline.compiled import Compiled, compile_tree
from blockc.report import check_expect
from blockc.source import (
    Finding,
    Ignore,
    SpecError,
    find_ignores,
    finding,
    key_place,
    override,
    parse,
    read_bytes,
    suggest,
)
from blockc.weights.rules import group_sizes, patterns

PAYS = 24  # the number of files from which several processes are faster than one
_WITHOUT = "choose another layout, or write the spec without checkpoint"

_Findings = tuple[Finding, ...]


def check_files(
    files: Sequence[str], assignments: Sequence[str] = (), policy: Policy | None = None
) -> Iterator[_Findings]:
    """The findings of each file, in the order of the files. Many files are checked on all cores at once."""
    check = partial(check_file, assignments=tuple(assignments), policy=policy)
    workers = min(_cores(), len(files) // (PAYS // 2))
    if workers < 2 or "fork" not in get_all_start_methods():  # without fork, each process would load everything again
        yield from map(check, files)
        return
    with ProcessPoolExecutor(workers, get_context("fork"), initializer=_ignore_interrupts) as pool:
        yield from pool.map(check, files, chunksize=4)


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ignore_interrupts() -> None:
    """Leaves Ctrl-C to the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def check_file(file: str, assignments: Sequence[str] = (), policy: Policy | None = None) -> _Findings:
    try:
        return check_text(read_bytes(file), file, assignments, policy)
    except SpecError as error:
        return error.findings


def check_text(data: bytes, file: str, assignments: Sequence[str] = (), policy: Policy | None = None) -> _Findings:
    """The findings, ordered by place. Warnings need a graph, so a wrong spec has none."""
    try:
        tree = parse(data, file)
        comments = find_ignores(data, file)
    except SpecError as error:
        return error.findings
    found: list[Finding]
    model = None
    try:
        for assignment in assignments:
            tree = override(tree, assignment)
        model = compile_tree(tree)
        found = [*find_misses(model, not assignments), *advice(model, not assignments)]
        found += policy.breaches(model) if policy else ()
    except SpecError as error:
        found = list(error.findings)
    kept = _apply_ignores(found, comments, whole=model is not None)
    return tuple(sorted(kept, key=lambda each: (each.place.file != file, each.place.line, each.place.column)))


def find_misses(model: Compiled, expectations: bool = True) -> list[Finding]:
    """Errors of a valid graph: figures that differ from `expect`, and a checkpoint layout that does not fit."""
    found = check_expect(model.spec, model.decoder, model.function) if expectations else []
    if name := model.spec.top.checkpoint:
        if name not in (known := layout_names()):
            return [*found, _no_layout_finding(model, name, known)]
        try:
            patterns(load_layout(name), model.function, group_sizes(model.function))
        except LayoutError as error:
            place = key_place(model.spec.tree, ("checkpoint",))
            found.append(finding(CHECKPOINT, place, " ".join(str(error).split()), hint=_WITHOUT))
    return found


def _no_layout_finding(model: Compiled, name: str, known: Sequence[str]) -> Finding:
    near = suggest(name, known)
    hint = f"did you mean {near}?" if near else _WITHOUT
    place = value_place(model.spec.tree, ("checkpoint",))
    expected = "one of " + ", ".join(known)
    return finding(CHECKPOINT, place, "checkpoint: no such layout", expected=expected, got=name, hint=hint)


def _apply_ignores(found: Iterable[Finding], comments: list[Ignore], whole: bool) -> list[Finding]:
    """The findings that no comment silences, and findings about comments that silence nothing.

    Unused codes are reported only if the search was `whole`.
    """
    silent = {(each.place.file, each.place.line, each.name) for each in comments}
    used: set[tuple[str, int, str]] = set()
    kept: list[Finding] = []
    for each in found:
        at = (each.place.file, each.place.line, each.code.name)
        if each.severity != "error" and at in silent:
            used.add(at)
        else:
            kept.append(each)
    for each in comments:
        if (each.place.file, each.place.line, each.name) not in used and (said := _why_idle(each, whole)):
            message, hint = said
            kept.append(finding(IDLE_IGNORE, each.place, message, got=each.name, hint=hint))
    return kept


def _why_idle(comment: Ignore, whole: bool) -> tuple[str, str] | None:
    """(Why a comment silences nothing; what to do), or None."""
    name = comment.name
    if not name:
        return "an ignore that names no code", "write # blockc: ignore BLC402, with the codes of warnings"
    if name not in CODES:
        return f"{name} is not a code", "blockc explain lists the codes"
    if CODES[name].severity == "error":
        return f"{name} is an error, and no comment silences an error", "mend the spec"
    return (f"no {name} on this line", "remove the comment") if whole else None
