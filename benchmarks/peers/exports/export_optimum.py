"""optimum-onnx: export_optimum.py CHECKPOINT OUT. Its own comparison with torch afterwards is left out."""

import sys

from optimum.exporters.onnx import main_export

main_export(sys.argv[1], sys.argv[2], task="text-generation-with-past", do_validation=False)
