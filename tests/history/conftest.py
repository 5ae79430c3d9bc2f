"""Records of runs made by hand: what a run.json says, without a disk."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `history_records`, shared by the files of this folder
