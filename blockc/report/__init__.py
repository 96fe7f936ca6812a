"""Every figure that `show` prints, computed from the ops and the graph, never from a formula beside them."""

from blockc.report.expect import expect_misses
from blockc.report.figures import Flops, LayerSizes, Parameters
from blockc.report.matrices import Block, Matrix
from blockc.report.memory import Activations, Cache, CacheBytes, Memory
from blockc.report.summary import CutTile, Report, report

__all__ = [
    "Activations", "Block", "Cache", "CacheBytes", "CutTile", "Flops", "LayerSizes", "Matrix", "Memory",
    "Parameters", "Report", "expect_misses", "report",
]  # fmt: skip
