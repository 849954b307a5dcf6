"""Makes `plan_builders` importable for the tests of the plan."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
