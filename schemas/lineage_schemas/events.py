"""metrics.jsonl: one class for each kind of line."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from lineage_schemas.base import Digest, Format, MetricsRecord, Number, Record, Sha256
from lineage_schemas.errors import FormatError
from lineage_schemas.ids import MAX_ORDINAL, MAX_STEP
from lineage_schemas.run import (
    Continuation,
    GenerationField,
    RunIdField,
    SessionIdField,
    SessionStatus,
    Start,
)

FORMAT_NAME: Final = "lineage-log"
FORMAT_MAJOR: Final = 1
FORMAT: Final = Format(name=FORMAT_NAME, version="1.0")

Step = Annotated[int, Field(ge=0, le=MAX_STEP)]


class Event(Record):
    """What every line has.

    Attributes:
        ts: Unix seconds, UTC, of the writer's clock when the event was recorded.
        run, session: ids of who wrote it.
        step: steps complete at that moment, where the event has one.
    """

    kind: str
    ts: float
    run: RunIdField
    session: SessionIdField
    step: Step | None = None


class Witness(Record):
    """What a step records so that a second attempt at it can be compared.

    Attributes:
        batch: digest of the step's batches, in order (docs/format.md, "Witness").
        rng: digest of every random stream after the step.
        lr: learning rate per group the step was taken with, by optimizer.
        scale: loss scale the step was taken with, by scaler.
    """

    batch: Digest | None = None
    rng: Digest | None = None
    lr: dict[str, list[Number]] | None = None
    scale: dict[str, Number] | None = None


class SessionStartEvent(Event):
    """First line of a session; names the format, so that every part of a log says how to read it."""

    kind: Literal["session_start"] = "session_start"
    format: Format = FORMAT
    ordinal: int = Field(ge=1, le=MAX_ORDINAL)
    start: Start
    pid: int | None = None
    host: str | None = None


class SessionEndEvent(Event):
    """Last line of a session that ended by itself; a killed one has none."""

    kind: Literal["session_end"] = "session_end"
    status: SessionStatus
    reason: str | None = None


class StepEvent(MetricsRecord, Event):
    """What one completed step of the training loop measured.

    Attributes:
        step: steps completed since the run began, this one included, from 1; a resume goes on counting.
        metrics: name to value, as the training code named them; `loss`, `lr` and `grad_norm` are the usual ones.
        duration_s: training time of this step alone, monotonic clock; phases and gaps are not in it.
        tokens, samples: how many this step consumed; throughput is their sum over `duration_s`.
        witness: present on the steps after a session's start and after each checkpoint.
    """

    kind: Literal["step"] = "step"
    step: Annotated[int, Field(ge=1, le=MAX_STEP)]
    duration_s: float | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    samples: int | None = Field(default=None, ge=0)
    witness: Witness | None = None


class EvalEvent(MetricsRecord, Event):
    """Result of one evaluation after `step` steps; `name` is the split or suite."""

    kind: Literal["eval"] = "eval"
    name: str = "eval"
    duration_s: float | None = Field(default=None, ge=0)


class PhaseStartEvent(Event):
    """The process turned from training to something else (`eval`, `checkpoint`, `restore`, or the user's word)."""

    kind: Literal["phase_start"] = "phase_start"
    phase: str


class PhaseEndEvent(Event):
    """The phase ended after `duration_s`; `ok` is False when an exception left it."""

    kind: Literal["phase_end"] = "phase_end"
    phase: str
    duration_s: float = Field(ge=0)
    ok: bool = True


class Fp16SkipEvent(Event):
    """The scaler found non-finite gradients: the step is complete, its optimizer changed nothing.

    Attributes:
        step: the step that was no update.
        num_updates, num_skipped: of the run so far, this step counted.
    """

    kind: Literal["fp16_skip"] = "fp16_skip"
    scaler: str = "scaler"
    scale_before: Number
    scale_after: Number
    num_updates: int | None = Field(default=None, ge=0)
    num_skipped: int | None = Field(default=None, ge=0)


class LrGroup(Record):
    """One optimizer group at a restore: before it, after it, and what the checkpoint expects for the next step."""

    optimizer: str
    group: int = Field(ge=0)
    before: Number
    after: Number
    expected: Number | None = None


class LrRestoreEvent(Event):
    """A restore put the learning rate back; `ok` says whether it is what the checkpoint expects next."""

    kind: Literal["lr_restore"] = "lr_restore"
    groups: list[LrGroup]
    ok: bool = True


class CheckpointSavedEvent(Event):
    """A generation was committed: durable before this line was written."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    checkpoint: GenerationField
    manifest_sha256: Sha256
    size_bytes: int = Field(ge=0)
    duration_s: float | None = Field(default=None, ge=0)


class CheckpointRestoredEvent(Event):
    """A generation was put back into memory and checked; `step` is the one it stands at.

    Attributes:
        discovery_s: seconds spent finding and comparing.
        load_s: seconds spent reading, hashing and putting back.
        lost_steps: steps the session before had completed beyond this generation, and which are trained again; the
            recovery point, in steps. Absent for a fork.
    """

    kind: Literal["checkpoint_restored"] = "checkpoint_restored"
    checkpoint: GenerationField
    from_run: RunIdField
    from_session: SessionIdField
    manifest_sha256: Sha256
    discovery_s: float | None = Field(default=None, ge=0)
    load_s: float | None = Field(default=None, ge=0)
    lost_steps: int | None = Field(default=None, ge=0)


class ContinuationEvent(Continuation, Event):
    """The verdict on this session's resume, as far as it is known at `step`."""

    kind: Literal["continuation"] = "continuation"
    final: bool = False


class AlertEvent(Event):
    """Something a person should know; one per cause, not one per step.

    Attributes:
        code: stable word for the cause: `non_finite`, `events_lost`, `loss_jump`, `lr_unexpected`, `diverged`,
            `checkpoint_failed`, ...
        details: the figures behind the message.
    """

    kind: Literal["alert"] = "alert"
    code: str
    message: str
    severity: Literal["info", "warning", "error"] = "warning"
    details: dict[str, Any] = {}


class NoteEvent(Event):
    """What a person wrote to the log."""

    kind: Literal["note"] = "note"
    text: str


class SystemEvent(MetricsRecord, Event):
    """Figures of the machine: memory, utilisation, temperature."""

    kind: Literal["system"] = "system"


class LogRecoveredEvent(Event):
    """A torn append was cut from the end when the log was opened."""

    kind: Literal["log_recovered"] = "log_recovered"
    discarded_bytes: int = Field(ge=1)
    offset: int = Field(ge=0)


class UnknownEvent(Event):
    """A kind of a newer minor version: kept with all its fields, understood by nobody here."""


AnyEvent = (
    SessionStartEvent
    | SessionEndEvent
    | StepEvent
    | EvalEvent
    | PhaseStartEvent
    | PhaseEndEvent
    | Fp16SkipEvent
    | LrRestoreEvent
    | CheckpointSavedEvent
    | CheckpointRestoredEvent
    | ContinuationEvent
    | AlertEvent
    | NoteEvent
    | SystemEvent
    | LogRecoveredEvent
    | UnknownEvent
)

EVENT_CLASSES: Final[dict[str, type[Event]]] = {
    cls.model_fields["kind"].default: cls
    for cls in (
        SessionStartEvent,
        SessionEndEvent,
        StepEvent,
        EvalEvent,
        PhaseStartEvent,
        PhaseEndEvent,
        Fp16SkipEvent,
        LrRestoreEvent,
        CheckpointSavedEvent,
        CheckpointRestoredEvent,
        ContinuationEvent,
        AlertEvent,
        NoteEvent,
        SystemEvent,
        LogRecoveredEvent,
    )
}
KINDS: Final = tuple(EVENT_CLASSES)

E = TypeVar("E", bound=Event)
_PROBE: Final = TypeAdapter(dict[str, Any])


def parse_event(line: bytes | str, *, where: str = "") -> Event:
    """One line of a log as its event; a kind nobody here knows becomes `UnknownEvent`.

    Raises:
        FormatError: no JSON object, no kind, or fields that are not what the kind promises.
    """
    try:
        fields = _PROBE.validate_json(line)
        kind = fields.get("kind")
        if not isinstance(kind, str):
            raise FormatError("the line is no event: it has no kind", where)
        return EVENT_CLASSES.get(kind, UnknownEvent).model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "the line"
        raise FormatError(f"not an event: {path}: {first['msg']}", where) from error
