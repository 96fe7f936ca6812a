"""What the command line does, as Python. Nothing is printed, nothing exits: a function returns, or raises BlockcError.

from blockc import api
model = api.compile("llama3-8b")                       # a spec's file or name, to a verified graph
print(api.show(model))                                 # the block drawn, its matrices, its budget
built = api.build(model, "out/llama3-8b")              # model.py, model.onnx, ...: all or nothing
print(built.line)                                      # proved: oracle = torch = onnxruntime ...

A spec that is wrong raises SpecError, what cannot be asked for UsageError, and no file is touched then. docs/api.md has
an example of each function. A name is imported from its module when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockc.api.building import Built, NotProvedError, build, verify
    from blockc.api.checks import check, check_files, policy, written
    from blockc.api.comparing import diff
    from blockc.api.designs import NewSpec, new
    from blockc.api.form import Formatted, fmt, format_text
    from blockc.api.listing import Catalogue, Listed, bundled, list, spec_files  # noqa: A004
    from blockc.api.models import (
        ImportedSpec,
        compile,  # noqa: A004
        expanded,
        figures,
        import_spec,
        imported_spec,
        show,
        table,
        twin,
    )
    from blockc.api.running import bench, doctor, run
    from blockc.api.tracing import Step, trace
    from blockc.api.words import explain, schema
    from blockc.bench.measure import Bench
    from blockc.bench.turns import WorkerError
    from blockc.checking import check_text
    from blockc.checkpoint import has_weights
    from blockc.compile import Compiled
    from blockc.diff import Diff
    from blockc.diff.revision import RevisionError
    from blockc.distribution import MissingPackageError
    from blockc.doctor import Health
    from blockc.errors import BlockcError, UsageError
    from blockc.folder import FolderError
    from blockc.formats import Checked
    from blockc.newspec import NoDesignError
    from blockc.policy import Policy
    from blockc.proof import Proof
    from blockc.report import Report
    from blockc.runtime.opening import SessionError
    from blockc.source import Finding, SpecError
    from blockc.spec import Spec
    from blockc.specfiles import NoSpecError
    from blockc.target import Target
    from blockc.weights import CheckpointError

_MODULES = {
    "blockc.api.building": ("Built", "NotProvedError", "build", "verify"),
    "blockc.api.checks": ("check", "check_files", "policy", "written"),
    "blockc.api.comparing": ("diff",),
    "blockc.api.designs": ("NewSpec", "new"),
    "blockc.api.form": ("Formatted", "fmt", "format_text"),
    "blockc.api.listing": ("Catalogue", "Listed", "bundled", "list", "spec_files"),
    "blockc.api.models": (
        "ImportedSpec",
        "compile",
        "expanded",
        "figures",
        "import_spec",
        "imported_spec",
        "show",
        "table",
        "twin",
    ),
    "blockc.api.running": ("bench", "doctor", "run"),
    "blockc.api.tracing": ("Step", "trace"),
    "blockc.api.words": ("explain", "schema"),
    "blockc.bench.measure": ("Bench",),
    "blockc.bench.turns": ("WorkerError",),
    "blockc.checking": ("check_text",),
    "blockc.checkpoint": ("has_weights",),
    "blockc.compile": ("Compiled",),
    "blockc.diff": ("Diff",),
    "blockc.diff.revision": ("RevisionError",),
    "blockc.distribution": ("MissingPackageError",),
    "blockc.doctor": ("Health",),
    "blockc.errors": ("BlockcError", "UsageError"),
    "blockc.folder": ("FolderError",),
    "blockc.formats": ("Checked",),
    "blockc.newspec": ("NoDesignError",),
    "blockc.policy": ("Policy",),
    "blockc.proof": ("Proof",),
    "blockc.report": ("Report",),
    "blockc.runtime.opening": ("SessionError",),
    "blockc.source": ("Finding", "SpecError"),
    "blockc.spec": ("Spec",),
    "blockc.specfiles": ("NoSpecError",),
    "blockc.target": ("Target",),
    "blockc.weights": ("CheckpointError",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Bench", "BlockcError", "Built", "Catalogue", "Checked", "CheckpointError", "Compiled", "Diff", "Finding",
    "FolderError", "Formatted", "Health", "ImportedSpec", "Listed", "MissingPackageError", "NewSpec",
    "NoDesignError", "NoSpecError", "NotProvedError", "Policy", "Proof", "Report", "RevisionError", "SessionError",
    "Spec", "SpecError", "Step", "Target", "UsageError", "WorkerError", "bench", "build", "bundled", "check",
    "check_files", "check_text", "compile", "diff", "doctor", "expanded", "explain", "figures", "fmt",
    "format_text", "has_weights", "import_spec", "imported_spec", "list", "new", "policy", "run", "schema", "show",
    "spec_files", "table", "trace", "twin", "verify", "written",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> tuple[str, ...]:
    return (*globals(), *_HOME)
