"""One event as one line: what happened, in words."""

from __future__ import annotations

from typing import Final

from lineage_schemas.events import (
    AlertEvent,
    CheckpointRestoredEvent,
    CheckpointSavedEvent,
    ContinuationEvent,
    EvalEvent,
    Event,
    Fp16SkipEvent,
    LogRecoveredEvent,
    LrRestoreEvent,
    NoteEvent,
    PhaseEndEvent,
    PhaseStartEvent,
    SessionEndEvent,
    SessionStartEvent,
    StepEvent,
    SystemEvent,
)
from lineage_tui.widgets.words import duration, number, plain, size

KIND_WORDS: Final[dict[str, str]] = {
    "session_start": "session began",
    "session_end": "session ended",
    "step": "step",
    "eval": "eval",
    "phase_start": "phase began",
    "phase_end": "phase ended",
    "fp16_skip": "step skipped",
    "lr_restore": "lr restored",
    "checkpoint_saved": "checkpoint",
    "checkpoint_restored": "restored",
    "continuation": "continuation",
    "alert": "alert",
    "note": "note",
    "system": "system",
    "log_recovered": "log recovered",
}


def kind_words(kind: str) -> str:
    return KIND_WORDS.get(kind) or plain(kind, 24)


def event_text(event: Event, limit: int = 400) -> str:
    """What an event says, clean and on one line."""
    return plain(_text(event), limit)


def _text(event: Event) -> str:
    if isinstance(event, SessionStartEvent):
        start = event.start
        origin = {
            "fresh": f"nothing restored @{start.step:,}" if start.step else "fresh",
            "resume": f"resume from step {start.step:,}",
            "fork": f"fork at step {start.step:,}",
        }
        return f"session {event.ordinal}: {origin[start.kind]}" + (f" of {start.run}" if start.run else "")
    if isinstance(event, SessionEndEvent):
        return event.status + (f": {event.reason}" if event.reason else "")
    if isinstance(event, EvalEvent):
        return f"{event.name}: {_metrics(event.metrics)}" + (
            f" in {duration(event.duration_s)}" if event.duration_s is not None else ""
        )
    if isinstance(event, PhaseStartEvent):
        return event.phase
    if isinstance(event, PhaseEndEvent):
        return f"{event.phase}, {duration(event.duration_s)}" + ("" if event.ok else ", left by an exception")
    if isinstance(event, Fp16SkipEvent):
        counted = f"; {event.num_skipped:,} skipped so far" if event.num_skipped is not None else ""
        return f"no update, {event.scaler} {number(event.scale_before)} -> {number(event.scale_after)}{counted}"
    if isinstance(event, LrRestoreEvent):
        return _lr_restore(event)
    if isinstance(event, CheckpointSavedEvent):
        return f"{event.checkpoint}, {size(event.size_bytes)}" + (
            f" in {duration(event.duration_s)}" if event.duration_s is not None else ""
        )
    if isinstance(event, CheckpointRestoredEvent):
        return f"{event.checkpoint} of {event.from_session}"
    if isinstance(event, ContinuationEvent):
        return _continuation(event)
    if isinstance(event, AlertEvent):
        return f"{event.code}: {event.message}"
    if isinstance(event, NoteEvent):
        return event.text
    if isinstance(event, SystemEvent | StepEvent):
        return _metrics(event.metrics)
    if isinstance(event, LogRecoveredEvent):
        return f"a torn append of {event.discarded_bytes:,} bytes was cut at byte {event.offset:,}"
    extra = event.model_extra or {}
    return ", ".join(f"{key} {value}" for key, value in list(extra.items())[:12])


def _metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in list(metrics.items())[:16])


def _lr_restore(event: LrRestoreEvent) -> str:
    parts = []
    for group in event.groups[:8]:
        text = f"{group.optimizer}[{group.group}] {number(group.before)} -> {number(group.after)}"
        if group.expected is not None and group.expected != group.after:
            text += f", expected {number(group.expected)}"
        parts.append(text)
    return "; ".join(parts) + ("" if event.ok else "; not what the checkpoint expects")


def _continuation(event: ContinuationEvent) -> str:
    text = event.verdict.replace("_", " ") + f", {event.compared_steps:,} steps compared"
    if (first := event.first_difference) is not None:
        before, after = (
            number(value) if isinstance(value, float) else str(value) for value in (first.before, first.after)
        )
        text += f"; first at step {first.step:,}: {first.field} {before} -> {after}"
    return text + (f"; {event.reason}" if event.reason else "") + ("" if event.final else " (so far)")
