"""The tiny GPT of the demo; `lineage.demo.train` is the example to read. Importing this package loads no torch.

It sets one environment variable, before torch can be loaded: threads of OpenMP that wait for each other sleep instead
of spinning. On cores that other processes use as well, spinning made a step of 60 ms take 6 s.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
