"""The checkpoint's folder, copied: what writing so many bytes takes. export_copy.py CHECKPOINT OUT"""

import shutil
import sys

shutil.copytree(sys.argv[1], sys.argv[2])
