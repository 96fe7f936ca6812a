"""Every figure that `show` prints, computed from the ops and the graph, not from separate formulas."""

from blockc.report.expect import check_expect
from blockc.report.figures import Flops, LayerSizes, Parameters
from blockc.report.matrices import Block, Matrix
from blockc.report.memory import Activations, CacheBytes, CacheReport, Memory
from blockc.report.storage import Storage, Stored
from blockc.report.summary import CutTile, Report, make_report

__all__ = [
    "Activations", "Block", "CacheBytes", "CacheReport", "CutTile", "Flops", "LayerSizes", "Matrix", "Memory",
    "Parameters", "Report", "Storage", "Stored", "check_expect", "make_report",
]  # fmt: skip
