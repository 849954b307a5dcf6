"""The fixtures of this level; `localcluster.fixtures` has them for other levels' conftest files."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from localcluster.fixtures import cluster, control_plane

__all__ = ["cluster", "control_plane"]
