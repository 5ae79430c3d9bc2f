"""An hour of training in seconds: memory of writer and reader stay flat, and the audit at the end is right.

360,000 steps in twenty sessions take a few seconds; with `LINEAGE_LONG=1` it is ten hours instead of one.
"""

import os
from pathlib import Path

from benchmarks import soak

LONG = bool(os.environ.get("LINEAGE_LONG"))


def test_a_long_training_is_written_followed_and_audited_in_flat_memory(tmp_path: Path) -> None:
    scale = soak.TEN_HOURS if LONG else soak.WHOLE
    found = soak.soak(tmp_path, scale)
    assert found.num_acknowledged == found.num_read, "every acknowledged step of every killed session is in the log"
    assert found.num_kills == scale.sessions - 1
    assert found.wrong_verdicts == []
    assert found.effective_steps == scale.steps
    assert found.num_damaged == 0
    assert found.writer_growth_bytes < soak.WRITER_BOUND_BYTES
    assert found.reader_growth_bytes < soak.reader_bound_bytes(scale)
    assert found.refreshes > scale.sessions
