"""What the command line does, as Python. Nothing is printed, nothing exits: a function returns, or raises BlockcError.

from blockc import api
model = api.compile("llama3-8b")                       # a spec's file or name, to a verified graph
print(api.show(model))                                 # the block drawn, its matrices, its budget
built = api.build(model, "out/llama3-8b")              # model.py, model.onnx, ...: all or nothing
print(built.line)                                      # proved: oracle = torch = onnxruntime ...

A wrong spec raises SpecError and a wrong argument UsageError; then no file is touched. docs/api.md has an example of
each function. A name is imported from its module when it is first used.
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
        quant_policy,
        show,
        table,
        twin,
    )
    from blockc.api.running import bench, doctor, embed, quality, rerank, run
    from blockc.api.tracing import Step, trace
    from blockc.api.words import explain, schema
    from blockc.authoring.newspec import NoDesignError
    from blockc.authoring.specfiles import NoSpecError
    from blockc.basics.distribution import MissingPackageError
    from blockc.basics.errors import BlockcError, CheckpointError, UsageError
    from blockc.bench.measure import Bench
    from blockc.bench.quality import Quality
    from blockc.bench.turns import WorkerError
    from blockc.checks.checking import check_text
    from blockc.checks.doctor import Health
    from blockc.checks.formats import Checked
    from blockc.checks.policy import Policy
    from blockc.diff import Diff
    from blockc.diff.revision import RevisionError
    from blockc.graph.target import Target
    from blockc.language.spec import Spec
    from blockc.pipeline.compiled import Compiled
    from blockc.products.folder import FolderError
    from blockc.products.product import ProductError
    from blockc.proof import Proof
    from blockc.report import Report
    from blockc.runtime.encoder import Ranked
    from blockc.runtime.opening import SessionError
    from blockc.source import Finding, SpecError
    from blockc.weights.checkpoint import has_weights

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
        "quant_policy",
        "show",
        "table",
        "twin",
    ),
    "blockc.api.running": ("bench", "doctor", "embed", "quality", "rerank", "run"),
    "blockc.api.tracing": ("Step", "trace"),
    "blockc.api.words": ("explain", "schema"),
    "blockc.bench.measure": ("Bench",),
    "blockc.bench.quality": ("Quality",),
    "blockc.bench.turns": ("WorkerError",),
    "blockc.checks.checking": ("check_text",),
    "blockc.weights.checkpoint": ("has_weights",),
    "blockc.pipeline.compiled": ("Compiled",),
    "blockc.diff": ("Diff",),
    "blockc.diff.revision": ("RevisionError",),
    "blockc.basics.distribution": ("MissingPackageError",),
    "blockc.checks.doctor": ("Health",),
    "blockc.basics.errors": ("BlockcError", "CheckpointError", "UsageError"),
    "blockc.products.folder": ("FolderError",),
    "blockc.products.product": ("ProductError",),
    "blockc.checks.formats": ("Checked",),
    "blockc.authoring.newspec": ("NoDesignError",),
    "blockc.checks.policy": ("Policy",),
    "blockc.proof": ("Proof",),
    "blockc.report": ("Report",),
    "blockc.runtime.encoder": ("Ranked",),
    "blockc.runtime.opening": ("SessionError",),
    "blockc.source": ("Finding", "SpecError"),
    "blockc.language.spec": ("Spec",),
    "blockc.authoring.specfiles": ("NoSpecError",),
    "blockc.graph.target": ("Target",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Bench",
    "BlockcError",
    "Built",
    "Catalogue",
    "Checked",
    "CheckpointError",
    "Compiled",
    "Diff",
    "Finding",
    "FolderError",
    "Formatted",
    "Health",
    "ImportedSpec",
    "Listed",
    "MissingPackageError",
    "NewSpec",
    "NoDesignError",
    "NoSpecError",
    "NotProvedError",
    "Policy",
    "ProductError",
    "Proof",
    "Quality",
    "Ranked",
    "Report",
    "RevisionError",
    "SessionError",
    "Spec",
    "SpecError",
    "Step",
    "Target",
    "UsageError",
    "WorkerError",
    "bench",
    "build",
    "bundled",
    "check",
    "check_files",
    "check_text",
    "compile",
    "diff",
    "doctor",
    "embed",
    "expanded",
    "explain",
    "figures",
    "fmt",
    "format_text",
    "has_weights",
    "import_spec",
    "imported_spec",
    "list",
    "new",
    "policy",
    "quality",
    "quant_policy",
    "rerank",
    "run",
    "schema",
    "show",
    "spec_files",
    "table",
    "trace",
    "twin",
    "verify",
    "written",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> tuple[str, ...]:
    return (*globals(), *_HOME)
