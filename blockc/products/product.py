"""product: files beside model.onnx with which a runtime loads the folder as it is.

Each product has a module; `registry` lists them. A product says which graphs it accepts, and makes its files from the
contract of the graph and the companions of the checkpoint. Several products in one build share its weights, so a file
that two of them make must have the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blockc.basics.errors import BlockcError, UsageError
from blockc.graph.contract import Contract
from blockc.graph.target import Target
from blockc.language.spec import Spec
from blockc.weights.companions import COMPANIONS


class ProductError(BlockcError):
    """A build that a runtime does not load, or a checkpoint that lacks what the runtime needs to know."""


@dataclass(frozen=True)
class ProductInputs:
    """What a product may read: the spec, the target and contract of model.onnx, and the checkpoint's companions.

    `config` is the checkpoint's config.json, which a build has where a product wants it.
    """

    spec: Spec
    target: Target
    contract: Contract
    companions: Mapping[str, bytes]
    config: bytes | None = None


def _no_notes(beside: ProductInputs) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Product:
    """`runtime` loads the folder. `names` are those of all files that the product may make, besides companions: each
    in the build's folder, or in one folder below it.

    `requires` says why a target's graph is not accepted, or returns an empty string; `files` makes the files, and
    raises ProductError; `notes` are notes for the user.
    """

    name: str
    runtime: str
    names: frozenset[str]
    requires: Callable[[Target], str]
    files: Callable[[ProductInputs], Mapping[str, bytes]]
    notes: Callable[[ProductInputs], Sequence[str]] = _no_notes


def make_all_files(products: Sequence[Product], beside: ProductInputs) -> dict[str, bytes]:
    """The files of all products.

    Raises ProductError if a product does not accept the graph, makes a file that is not among its `names`, or makes a
    file that differs from another product's or the checkpoint's.
    """
    made: dict[str, bytes] = {}
    of: dict[str, Product] = {}
    if reasons := [f"{each.runtime}: {why}" for each in products if (why := each.requires(beside.target))]:
        raise ProductError("; ".join(reasons))
    for product in products:
        for name, data in product.files(beside).items():
            if name not in product.names and name not in COMPANIONS:
                raise ProductError(f"{product.runtime}: makes a file {name}, which is not among its names")
            if beside.companions.get(name, data) != data:
                raise ProductError(f"{product.runtime} needs another {name} than the checkpoint's: replace that one")
            if made.setdefault(name, data) != data:
                first = of[name].runtime
                raise ProductError(f"{first} and {product.runtime} need different files {name}: build each by itself")
            of.setdefault(name, product)
    return made


def choose_products(names: Sequence[str], known: Mapping[str, Product]) -> tuple[Product, ...]:
    """The products with these names, each once. Raises UsageError."""
    if strange := [name for name in names if name not in known]:
        raise UsageError(f"no product is called {strange[0]}: expected {' or '.join(sorted(known))}")
    return tuple(known[name] for name in dict.fromkeys(names))
