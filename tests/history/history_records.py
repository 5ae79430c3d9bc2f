"""Short ways to write runs, sessions and events in tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lineage_schemas.events import StepEvent, Witness
from lineage_schemas.ids import SessionId, make_generation_name, make_session_id
from lineage_schemas.run import Environment, Recipe, Run, Session, Source, Start

T0 = datetime(2026, 11, 29, 13, 40, 12, tzinfo=UTC)
RUN = "20261129-134012-tiny-gpt"
OTHER_RUN = "20261128-010203-parent"
NO_RECIPE = Recipe(value={}, fingerprint="0" * 64)


def sid(ordinal: int) -> SessionId:
    return make_session_id(ordinal, ordinal * 0x1111)


def gen(step: int, ordinal: int) -> str:
    return make_generation_name(step, ordinal, step * 31 + ordinal)


def session(ordinal: int, start: Start | None = None, **changes: Any) -> Session:
    fields: dict[str, Any] = {
        "id": sid(ordinal),
        "ordinal": ordinal,
        "started_at": T0 + timedelta(hours=ordinal),
        "pid": 100 + ordinal,
        "host": "node",
        "recipe": NO_RECIPE,
        "source": Source(),
        "environment": "e" * 16,
        "start": start or Start(kind="fresh"),
    }
    return Session(**(fields | changes))


def resumed(step: int, by: int, **changes: Any) -> Start:
    """A start from the checkpoint that session `by` made at `step`."""
    return Start(**({"kind": "resume", "step": step, "checkpoint": gen(step, by), "session": sid(by)} | changes))


def run_of(*sessions: Session, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "id": RUN,
        "name": "tiny-gpt",
        "created_at": T0,
        "sessions": list(sessions),
        "environments": {
            "e" * 16: Environment(python="3.11.9", implementation="CPython", platform="Linux", machine="x86_64")
        },
    }
    return Run(**(fields | changes))


def step_event(
    ordinal: int, step: int, *, witness: Witness | None = None, run: str = RUN, **metrics: float
) -> StepEvent:
    return StepEvent(ts=1000.0 + step, run=run, session=sid(ordinal), step=step, metrics=metrics, witness=witness)
