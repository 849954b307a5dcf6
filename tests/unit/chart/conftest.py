"""Makes this folder's helpers, and the cluster's list of binaries, importable."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "cluster")]
