"""Where a session ran, as far as it can change numerics or be needed to rebuild it."""

from __future__ import annotations

import hashlib
import json

from lineage_schemas.run import Environment


def environment_digest(environment: Environment) -> str:
    """The name under which run.json keeps an environment: SHA-256 of its canonical JSON.

    Canonical: the wire form, keys sorted by code point, no spaces, UTF-8.
    """
    text = json.dumps(environment.to_wire(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
