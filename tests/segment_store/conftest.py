"""Lets the store's tests import their neighbours and the conformance suite."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "conformance")]
