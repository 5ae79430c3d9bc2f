"""Saving beside the training, exports, retention, pins, quarantine, full disks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lineage.checkpoint import ledger, retention, store, tensorfile
from lineage.checkpoint.background import BackgroundSaver, wants_background
from lineage.checkpoint.discover import discover, read_candidate
from lineage.checkpoint.errors import (
    BackgroundSaveError,
    DiskSpaceError,
    NoUsableCheckpointError,
    PoisonedError,
    QuarantinedError,
    WeightsOnlyError,
)
from lineage.checkpoint.export import export_weights
from lineage.checkpoint.generations import list_generations
from lineage.checkpoint.quarantine import quarantine, release
from lineage.checkpoint.restore import apply_restore, plan_restore, restore_newest
from lineage.checkpoint.retention import Policy, apply_retention, pin, plan_retention
from lineage.checkpoint.store import CheckpointStore
from lineage.checkpoint.verify import verify_run
from lineage.errors import NotFoundError, UsageError
from lineage.layout import RunDir
from lineage_schemas.checkpoint import Position

# ---- beside the training ---------------------------------------------------------------------------------------------


def test_a_background_save_holds_the_state_of_its_boundary(
    tiny: Any, tmp_path: Path, contexts: Any, make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on and overwrites every tensor before a single byte was written."""
    go = threading.Event()
    real = tensorfile.write_tensors

    def late(*args: Any, **kwargs: Any) -> Any:
        assert go.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(tensorfile, "write_tensors", late)
    saver = BackgroundSaver(CheckpointStore(tmp_path, tiny.registry))
    tiny.step()
    expected = tiny.digest()
    pending = saver.save(Position(step=1, num_updates=1), contexts[0]())
    assert saver.poll() is None
    for _ in range(3):
        tiny.step()
    go.set()
    saved = pending.result(30)
    assert saver.poll() == saved
    assert saver.poll() is None
    fresh = make_tiny(seed=9)
    restored = restore_newest(discover(tmp_path), fresh.registry, contexts[1]())
    assert restored is not None
    restored.finish()
    assert fresh.digest() == expected


def test_buffers_are_used_again_and_one_save_is_in_flight_at_most(tiny: Any, tmp_path: Path, contexts: Any) -> None:
    saver = BackgroundSaver(CheckpointStore(tmp_path, tiny.registry))
    tiny.step()
    saver.save(Position(step=1, num_updates=1), contexts[0]())
    first = {key: buffer.data_ptr() for key, buffer in saver._buffers.items()}
    tiny.step()
    saver.save(Position(step=2, num_updates=2), contexts[0]())
    assert {key: buffer.data_ptr() for key, buffer in saver._buffers.items()} == first
    saver.close()
    assert [c.step for c in discover(tmp_path).candidates] == [2, 1]
    assert verify_run(tmp_path).ok


@pytest.mark.parametrize("boundary", ["save", "poll", "close"])
def test_a_failed_background_save_is_raised_at_the_next_boundary(
    boundary: str, tiny: Any, run_dir: Path, contexts: Any
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saver = BackgroundSaver(CheckpointStore(run_dir, tiny.registry))
    before = sorted(p.name for p in (run_dir / "checkpoints").iterdir())
    pending = saver.save(Position(step=3, num_updates=3), contexts[0](before_commit=full))
    pending._done.wait(30)
    with pytest.raises(BackgroundSaveError, match="No space left"):
        {"poll": saver.poll, "close": saver.close}.get(
            boundary, lambda: saver.save(Position(step=4, num_updates=4), contexts[0]())
        )()
    assert sorted(p.name for p in (run_dir / "checkpoints").iterdir()) == before
    saver.save(Position(step=5, num_updates=5), contexts[0]())
    saver.close()
    assert discover(run_dir).candidates[0].step == 5


def test_a_cpu_trainer_saves_in_the_foreground_by_default(tiny: Any) -> None:
    assert not wants_background(tiny.registry)


# ---- full and failing disks ------------------------------------------------------------------------------------------


def test_a_disk_without_room_is_refused_before_a_byte_is_written(
    tiny: Any, run_dir: Path, contexts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    real = os.statvfs
    monkeypatch.setattr(store.os, "statvfs", lambda path: _Full(real(path)))
    with pytest.raises(DiskSpaceError, match="MB are free") as error:
        CheckpointStore(run_dir, tiny.registry).save(Position(step=3, num_updates=3), contexts[0]())
    assert store.is_disk_full(error.value)
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before


class _Full:
    def __init__(self, real: Any) -> None:
        self.f_frsize, self.f_bavail = real.f_frsize, 3


@pytest.mark.parametrize("fail_at", range(1, 16, 2))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_midway_costs_only_the_unfinished_generation(
    fail_at: int, code: int, *, tiny: Any, run_dir: Path, contexts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second write or fsync of a save; late ones are of ACTIVE and ledger, and the save has succeeded."""
    before = sorted(p.name for p in (run_dir / "checkpoints").iterdir())
    calls = []

    def failing(real: Any) -> Any:
        def call(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == fail_at:
                raise OSError(code, os.strerror(code))
            return real(*args)

        return call

    with monkeypatch.context() as patch, contextlib.suppress(OSError):
        patch.setattr(os, "write", failing(os.write))
        patch.setattr(os, "fsync", failing(os.fsync))
        CheckpointStore(run_dir, tiny.registry).save(Position(step=3, num_updates=3), contexts[0]())
    assert len(calls) >= fail_at
    found = discover(run_dir)
    if len(found.candidates) == 2:
        assert sorted(p.name for p in (run_dir / "checkpoints").iterdir()) == before
    assert found.candidates[-1].step == 1
    assert not found.rejected
    assert not found.incomplete
    CheckpointStore(run_dir, tiny.registry).save(Position(step=4, num_updates=4), contexts[0]())
    assert discover(run_dir).candidates[0].step == 4


def test_the_log_is_synced_before_the_marker_and_its_failure_aborts(tiny: Any, run_dir: Path, contexts: Any) -> None:
    seen = []

    def look() -> None:
        folder = max((run_dir / "checkpoints").glob("step-00000003*"))
        seen.append(sorted(p.name for p in folder.iterdir()))

    store_ = CheckpointStore(run_dir, tiny.registry)
    store_.save(Position(step=3, num_updates=3), contexts[0](before_commit=look))
    assert "manifest.json" in seen[0]
    assert "COMMIT" not in seen[0]

    def fail() -> None:
        raise OSError(errno.EIO, "the log is gone")

    with pytest.raises(OSError, match="the log is gone"):
        store_.save(Position(step=4, num_updates=4), contexts[0](before_commit=fail))
    assert discover(run_dir).candidates[0].step == 3


# ---- retention -------------------------------------------------------------------------------------------------------


def steps(run_dir: Path) -> list[int]:
    return [c.step for c in discover(run_dir).candidates]


def test_a_policy_keeps_the_newest_as_training_goes_on(tiny: Any, save: Any, tmp_path: Path) -> None:
    for step in range(1, 7):
        save(tiny, tmp_path, step, retention=Policy(last=2))
        assert steps(tmp_path) == [s for s in (step, step - 1) if s > 0]
    assert verify_run(tmp_path).ok
    assert not discover(tmp_path).rejected


def test_every_reason_to_stay_is_named(tiny: Any, save: Any, tmp_path: Path, contexts: Any, make_tiny: Any) -> None:
    names = {step: save(tiny, tmp_path, step).name for step in range(1, 9)}
    pin(tmp_path, names[1])
    ledger.append(RunDir(tmp_path).ledger, "verified", names[2], ok=True)
    ledger.append(RunDir(tmp_path).ledger, "verified", names[6], ok=False)
    candidate = next(c for c in discover(tmp_path).candidates if c.step == 3)
    apply_restore(plan_restore(candidate, make_tiny().registry, contexts[1]())).finish()
    plan = plan_retention(tmp_path, Policy(last=2, every=5))
    assert plan.keep == {
        names[8]: ("one of the newest 2", "the newest not quarantined", "ACTIVE points at it"),
        names[7]: ("one of the newest 2",),
        names[5]: ("every 5 steps",),
        names[3]: ("the newest restored",),
        names[2]: ("the newest verified",),
        names[1]: ("pinned",),
    }
    assert plan.delete == (names[4], names[6])
    assert steps(tmp_path) == list(range(8, 0, -1)), "planning deletes nothing"
    assert apply_retention(tmp_path, plan) == [names[4], names[6]]
    assert steps(tmp_path) == [8, 7, 5, 3, 2, 1]
    assert not discover(tmp_path).rejected
    pin(tmp_path, names[1], pinned=False)
    assert names[1] in plan_retention(tmp_path, Policy(last=2, every=5)).delete


def test_what_is_damaged_or_unknown_is_reported_and_never_deleted(run_dir: Path, tiny: Any, save: Any) -> None:
    for step in (3, 4):
        save(tiny, run_dir, step)
    damaged = discover(run_dir).candidates[3]
    (damaged.path / "model.r00000.safetensors").write_bytes(b"x")
    (run_dir / "checkpoints" / "my-notes").mkdir()
    unfinished = run_dir / "checkpoints" / "step-00000009-s01-0badcafe"
    unfinished.mkdir()
    (unfinished / "mine.txt").write_text("keep me")
    plan = plan_retention(run_dir, Policy(last=1))
    assert set(plan.reported) == {damaged.name, "my-notes", unfinished.name}
    apply_retention(run_dir, plan_retention(run_dir, Policy(last=1), unfinished=True))
    assert damaged.path.is_dir()
    assert (run_dir / "checkpoints" / "my-notes").is_dir()
    assert (unfinished / "mine.txt").read_text() == "keep me"


def test_a_policy_never_takes_the_last_generation() -> None:
    for wrong in ({"last": 0}, {"every": 0}):
        with pytest.raises(UsageError):
            Policy(**wrong)


def test_generations_are_named_by_step_part_or_newest(run_dir: Path) -> None:
    layout = RunDir(run_dir)
    newest, oldest = retention.generation_names(layout)
    assert retention.resolve(layout, "newest") == newest
    assert retention.resolve(layout, "1") == oldest
    assert retention.resolve(layout, oldest[-8:]) == oldest
    for wrong in ("9", "step-", "", "../.."):
        with pytest.raises(NotFoundError):
            retention.resolve(layout, wrong)


def test_a_token_of_digits_names_its_generation_and_a_step_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["step-00000300-s02-06678252", "step-06678252-s01-0a1b2c3d", "step-00000100-s01-12345678"]
    monkeypatch.setattr(retention, "generation_names", lambda _: names)
    layout = RunDir(Path("run"))
    assert retention.resolve(layout, "12345678") == names[2]
    assert retention.resolve(layout, "06678252") == names[1]
    assert retention.resolve(layout, "00000300") == names[0]
    for wrong in ("5678", "1", "\N{SUPERSCRIPT TWO}", "9" * 5000):
        with pytest.raises(NotFoundError):
            retention.resolve(layout, wrong)


def test_a_torn_last_line_of_the_ledger_costs_only_itself(run_dir: Path) -> None:
    path = RunDir(run_dir).ledger
    before = ledger.read(path)
    data = path.read_bytes()
    path.write_bytes(data + b'{"ts": 1, "action": "pin')
    assert ledger.read(path) == before
    ledger.append(path, "pinned", "step-00000001-s01-00000000")
    assert [line.action for line in ledger.read(path)] == [*(line.action for line in before), "pinned"]
    assert path.read_bytes().startswith(data)


def test_many_processes_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            for number in range(50):
                ledger.append(path, "verified", f"g{child}", details={"n": number, "pad": "x" * 500})
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    lines = ledger.read(path)
    assert len(lines) == 200
    for child in range(4):
        assert [line.details["n"] for line in lines if line.checkpoint == f"g{child}"] == list(range(50))


def test_a_process_stopped_with_the_lock_in_its_hand_hangs_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.append(path, "pinned", "a")
    monkeypatch.setattr(ledger, "_LOCK_WAIT_S", 0.05)
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ledger.append(path, "pinned", "b")
    assert [line.checkpoint for line in ledger.read(path)] == ["a", "b"]


def test_a_generation_moved_out_of_its_run_writes_into_no_other_folder(
    run_dir: Path, tmp_path: Path, tiny: Any, contexts: Any
) -> None:
    source = discover(run_dir).candidates[0]
    moved = tmp_path / "backup" / source.name
    moved.parent.mkdir()
    (tmp_path / "checkpoints").mkdir()
    source.path.rename(moved)
    apply_restore(plan_restore(read_candidate(moved), tiny.registry, contexts[1]())).finish()
    assert list((tmp_path / "checkpoints").iterdir()) == []


# ---- quarantine ------------------------------------------------------------------------------------------------------


def test_a_family_in_quarantine_is_refused_without_a_flag_and_saving_goes_on(
    run_dir: Path, tiny: Any, save: Any, contexts: Any
) -> None:
    candidates = discover(run_dir).candidates
    quarantine(run_dir, candidates[1].manifest, "it diverged")
    save(tiny, run_dir, 3)
    held = discover(run_dir)
    assert [c.step for c in held.candidates] == [3, 2, 1], "the family, newer ones too"
    assert all(c.quarantined and "it diverged" in c.quarantined for c in held.candidates)
    with pytest.raises(NoUsableCheckpointError, match="it diverged"):
        restore_newest(held, tiny.registry, contexts[1]())
    with pytest.raises(QuarantinedError):
        plan_restore(held.candidates[0], tiny.registry, contexts[1]())
    plan_restore(held.candidates[0], tiny.registry, contexts[1](quarantined=True))
    assert all(g.quarantined for g in list_generations(run_dir))
    release(run_dir, candidates[1].manifest, "the driver was at fault")
    assert discover(run_dir).newest() is not None


def test_a_restore_that_fails_midway_quarantines(
    run_dir: Path, tiny: Any, contexts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = discover(run_dir).newest()
    assert candidate is not None

    def fail(*_: Any) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(tiny.registry.components["optimizer"], "restore_layout", fail)
    with pytest.raises(PoisonedError):
        apply_restore(plan_restore(candidate, tiny.registry, contexts[1]()))
    reason = discover(run_dir).candidates[0].quarantined
    assert reason is not None
    assert "no kernel image" in reason


@pytest.mark.parametrize(
    ("error", "more"),
    [(MemoryError("no memory"), {}), (RuntimeError("new code"), {"mode": "fork", "run": "other"})],
    ids=["out-of-memory", "fork"],
)
def test_a_failure_that_is_not_the_generations_own_quarantines_nothing(
    error: Exception, more: dict[str, Any], run_dir: Path, *, tiny: Any, contexts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = discover(run_dir).newest()
    assert candidate is not None

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(tiny.registry.components["optimizer"], "restore_layout", fail)
    with pytest.raises(PoisonedError):
        apply_restore(plan_restore(candidate, tiny.registry, contexts[1](**{"run": "tiny", **more})))
    assert discover(run_dir).candidates[0].quarantined is None


# ---- exports ---------------------------------------------------------------------------------------------------------


def test_an_export_is_readable_elsewhere_and_never_resumable(run_dir: Path, tiny: Any, contexts: Any) -> None:
    from safetensors.torch import load_file

    layout = RunDir(run_dir)
    exported = export_weights(layout, tiny.registry, "final", Position(step=2, num_updates=2), contexts[0]())
    loaded = load_file(exported.path / "model.safetensors")
    assert {k: v.tolist() for k, v in loaded.items()} == {k: v.tolist() for k, v in tiny.model.state_dict().items()}
    absent = {c.family for c in exported.manifest.components if c.state == "absent"}
    assert absent == {"optimizer", "scheduler", "scaler", "loader", "rng", "counters"}
    assert exported.name not in [c.name for c in discover(run_dir).candidates]
    with pytest.raises(WeightsOnlyError, match="weights-only export"):
        read_candidate(exported.path)
    disguised = run_dir / "checkpoints" / "step-00000099-s01-00000000"
    exported.path.rename(disguised)
    found = discover(run_dir)
    assert found.candidates[0].step == 2
    assert "weights-only export" in next(r.reason for r in found.rejected if r.name == disguised.name)
    assert [g.kind for g in list_generations(run_dir)] == ["weights", "training", "training"]


def test_exports_are_never_written_over(run_dir: Path, tiny: Any, contexts: Any) -> None:
    layout = RunDir(run_dir)
    position = Position(step=2, num_updates=2)
    export_weights(layout, tiny.registry, "final", position, contexts[0]())
    for name in ("final", "../x", "a/b", ""):
        with pytest.raises(UsageError):
            export_weights(layout, tiny.registry, name, position, contexts[0]())
