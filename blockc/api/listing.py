"""Lists what comes with blockc, and the spec files at paths."""

from __future__ import annotations

import builtins
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockc.authoring.specfiles import files_at
from blockc.basics.distribution import layout_names, model_types, specs
from blockc.source import read_tree, to_plain

FORMAT = 1  # of the JSON


def bundled() -> dict[str, Path]:
    """The specs that come with blockc, by name."""
    return specs()


def spec_files(*paths: Path | str) -> builtins.list[Path]:
    """The spec files at these paths, each once; a path is a file, a folder, a glob, or a bundled spec's name."""
    return [*dict.fromkeys(Path(file) for path in paths for file in files_at(str(path)))]


@dataclass(frozen=True)
class Listed:
    """A spec and its figures."""

    name: str
    parameters: int
    width: int
    depth: int
    context: int

    def __repr__(self) -> str:
        return f"<Listed {self.name}: {self.depth} layers, {self.width} wide, {self.parameters:,} parameters>"


@dataclass(frozen=True)
class Catalogue:
    """The specs, the layouts that `checkpoint` can name, and the model types whose config.json is imported."""

    specs: tuple[Listed, ...]
    layouts: tuple[str, ...]
    model_types: tuple[str, ...]

    def __repr__(self) -> str:
        count = f"{len(self.specs)} specs, {len(self.layouts)} layouts, {len(self.model_types)} model types"
        return f"<Catalogue: {count}>"

    def data(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


def list() -> Catalogue:  # noqa: A001
    """The specs that come with blockc, with their figures, and the layouts and model types that it knows."""
    return Catalogue(tuple(_row(name, path) for name, path in specs().items()), layout_names(), model_types())


def _row(name: str, path: Path) -> Listed:
    """A spec's figures. Parameters are read from `expect`, which the tests compare for every bundled spec."""
    keys: Any = to_plain(read_tree(path))
    return Listed(name, keys["expect"]["parameters"], keys["width"], keys["depth"], keys["context"])
