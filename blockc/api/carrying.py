"""carry_codes: the target of a build whose checkpoint holds codes, and what the user is told of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from blockc.basics.errors import UsageError
from blockc.graph.carried import carried_quant
from blockc.graph.target import Target
from blockc.ir import Blocks
from blockc.ort.kernels import why_no_kernel
from blockc.ort.quantise import find_readers
from blockc.pipeline.compiled import Compiled
from blockc.weights.carry import why_not_carried
from blockc.weights.plan import ParameterSource, WeightPlan

UNLIKE = "gate and up of experts are in unlike blocks"


def carry_codes(model: Compiled, target: Target, plan: WeightPlan, dequantise: bool) -> tuple[Target, tuple[str, ...]]:
    """(The target, with the checkpoint's own codes for a provider's operators; notes.)

    Raises UsageError where these codes were to be quantised once more.
    """
    coded = {path: source for path, source in plan.sources.items() if source.coding}
    if not coded or dequantise:
        return target, ()
    if target.quant is not None:
        held = _count(coded.values())
        raise UsageError(
            f"{target.quant.name}: the weights are quantised already ({held}): leave it out to have their own codes,"
            " or quantise them anew with --dequantise",
            "quant",
        )
    if target.provider is None:
        return target, ()
    readers = find_readers(model.flatten(target))
    reasons = {path: _why_not_carried(target, source, path in readers) for path, source in coded.items()}
    carried = {path: source.blocks for path, source in coded.items() if source.blocks and not reasons[path]}
    reasons |= {path: UNLIKE for path in carried if not _are_alike(carried, readers, path)}
    carried = {path: blocks for path, blocks in carried.items() if not reasons[path]}
    floats = {
        why: _count(source for path, source in coded.items() if reasons[path] == why)
        for why in dict.fromkeys(reasons.values())
        if why
    }
    notes = tuple(f"made floats, because {why}: {held}" for why, held in floats.items())
    if not carried:
        return target, notes
    said = f"carried as the checkpoint encodes them: {_count(coded[path] for path in carried)}"
    return replace(target, quant=carried_quant(readers, carried)), (said, *notes)


def _are_alike(carried: Mapping[str, Blocks], readers: Mapping[str, Sequence[str]], path: str) -> bool:
    """Whether all matrices that a graph stores in the same blocks as this one are carried in its blocks."""
    return all(carried.get(other) == carried[path] for other, names in readers.items() if names == readers[path])


def _why_not_carried(target: Target, source: ParameterSource, is_read: bool) -> str:
    if not is_read:
        return "no matrix product or table reads them"
    if source.deltas:
        return "an adapter changes them"
    if source.blocks is None:
        return why_not_carried(source.tensor, source.rule)
    operators = ("MatMulNBits", "GatherBlockQuantized", *(("FusedMatMul",) if source.blocks.lows else ()))
    return next((why for operator in operators if (why := why_no_kernel(target, operator))), "")


def _count(sources: Iterable[ParameterSource]) -> str:
    """How many tensors of the file, by kind of codes."""
    names = {source.name: source.coding for source in sources}
    kinds = Counter(names.values()).most_common()
    return ", ".join(f"{count} {'tensors' if count > 1 else 'tensor'} in {kind}" for kind, count in kinds)
