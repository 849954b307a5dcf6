"""Makes `tests.unit.pretend_session` importable however pytest was started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
