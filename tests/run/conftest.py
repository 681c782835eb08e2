"""Puts this folder on the path, which worker processes inherit: they import `odd_scorers` from there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
