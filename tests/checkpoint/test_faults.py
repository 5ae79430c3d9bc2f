"""Every way a generation can rot or be forged: a loud, specific refusal, nothing changed, no code run."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from lineage.checkpoint.discover import discover, read_candidate
from lineage.checkpoint.errors import (
    ArtifactError,
    NoUsableCheckpointError,
    ResumeRefusedError,
    WeightsOnlyError,
)
from lineage.checkpoint.restore import apply_restore, plan_restore, restore_newest
from lineage.checkpoint.verify import verify_generation, verify_run
from lineage.errors import FormatError, NewerFormatError

FILES = (
    "model.r00000.safetensors",
    "optim.r00000.safetensors",
    "extra.r00000.safetensors",
    "state.r00000.json",
    "manifest.json",
    "COMMIT",
)


def newest(run_dir: Path) -> Path:
    return discover(run_dir).candidates[0].path


def refused(tiny: Any, run_dir: Path, contexts: Any) -> str:
    """Restore: the damaged generation 2 is passed over with a reason, generation 1 is taken. The reason."""
    restored = restore_newest(discover(run_dir), tiny.registry, contexts[1]())
    assert restored is not None
    assert restored.position.step == 1
    assert restored.candidate.step == 1
    return "".join(r.reason for r in restored.rejected if "step-00000002" in r.name)


def test_an_undamaged_run_is_whole(run_dir: Path) -> None:
    report = verify_run(run_dir)
    assert report.ok
    assert [g.step for g in report.generations] == [2, 1]
    assert sorted(p.name for p in newest(run_dir).iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("part", ["first", "middle", "last"])
def test_one_flipped_bit_is_found_and_the_generation_before_is_taken(
    name: str, part: str, run_dir: Path, tiny: Any, contexts: Any
) -> None:
    path = newest(run_dir) / name
    data = bytearray(path.read_bytes())
    at = {"first": 0, "middle": len(data) // 2, "last": len(data) - 1}[part]
    data[at] ^= 0x01
    path.write_bytes(data)
    report = verify_run(run_dir, newest=True)
    faults = [fault for g in report.generations for fault in g.faults]
    assert not report.ok
    expected = {"COMMIT": {"marker", "manifest", "newer_format"}, "manifest.json": {"manifest"}}
    assert {fault.kind for fault in faults if fault.kind != "stale_active"} <= expected.get(name, {"flipped"})
    if name.endswith(("safetensors", "r00000.json")):
        assert faults[0].path == name
        assert "expected SHA-256" in faults[0].message
    assert refused(tiny, run_dir, contexts)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in _leaves(v, (*path, k))]
    if isinstance(value, list):
        return [leaf for i, v in enumerate(value) for leaf in _leaves(v, (*path, i))]
    return [path]


def test_a_flipped_bit_in_any_field_of_the_manifest_is_found(run_dir: Path) -> None:
    """Every line of the indented manifest holds a field: one bit in each, one after another."""
    path = newest(run_dir) / "manifest.json"
    whole = path.read_bytes()
    at = 0
    for line in whole.splitlines(keepends=True):
        data = bytearray(whole)
        data[at + len(line) // 2] ^= 0x04
        path.write_bytes(data)
        assert not verify_generation(path.parent).ok
        with pytest.raises(FormatError):
            read_candidate(path.parent)
        at += len(line)
    path.write_bytes(whole)
    assert verify_generation(path.parent).ok


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, run_dir: Path, tiny: Any, contexts: Any) -> None:
    folder = newest(run_dir)
    (folder / name).unlink()
    report = verify_run(run_dir)
    fault = next(g for g in report.generations if g.name == folder.name).faults[0]
    kinds = {"COMMIT": ("marker", "COMMIT"), "manifest.json": ("manifest", "manifest.json")}
    assert (fault.kind, fault.path) == kinds.get(name, ("missing", name))
    assert "missing" in refused(tiny, run_dir, contexts)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", ["nothing", "half", "all but a byte"])
def test_a_truncated_file_is_named(name: str, keep: str, run_dir: Path, tiny: Any, contexts: Any) -> None:
    folder = newest(run_dir)
    data = (folder / name).read_bytes()
    cut = {"nothing": 0, "half": len(data) // 2, "all but a byte": len(data) - 1}[keep]
    (folder / name).write_bytes(data[:cut])
    fault = next(g for g in verify_run(run_dir).generations if g.name == folder.name).faults[0]
    expected = {"COMMIT": "marker", "manifest.json": "manifest"}.get(name, "short")
    assert (fault.kind, fault.path) == (expected, name)
    assert refused(tiny, run_dir, contexts)


def test_an_extra_file_is_a_fault_of_verify_and_no_hindrance(run_dir: Path, tiny: Any, contexts: Any) -> None:
    (newest(run_dir) / "notes.txt").write_text("hello")
    faults = verify_run(run_dir).generations[0].faults
    assert [(f.kind, f.path) for f in faults] == [("extra", "notes.txt")]
    restored = restore_newest(discover(run_dir), tiny.registry, contexts[1]())
    assert restored is not None
    assert restored.position.step == 2


def test_a_folder_without_commit_that_was_never_committed_is_not_listed(
    run_dir: Path, tiny: Any, contexts: Any
) -> None:
    folder = run_dir / "checkpoints" / "step-00000009-s01-0badcafe"
    folder.mkdir()
    (folder / "model.r00000.safetensors").write_bytes(b"half")
    found = discover(run_dir)
    assert folder.name not in [c.name for c in found.candidates]
    assert found.incomplete == (folder.name,)
    assert verify_run(run_dir).ok
    restored = restore_newest(found, tiny.registry, contexts[1]())
    assert restored is not None
    assert restored.position.step == 2


def test_a_generation_whose_folder_vanished_is_reported(run_dir: Path) -> None:
    import shutil

    folder = newest(run_dir)
    shutil.rmtree(folder)
    report = verify_run(run_dir)
    lost = next(g for g in report.generations if g.name == folder.name)
    assert lost.faults[0].kind == "missing"
    assert folder.name in [r.name for r in discover(run_dir).rejected]


def test_candidates_of_which_none_is_usable_never_mean_step_zero(run_dir: Path, tiny: Any, contexts: Any) -> None:
    for candidate in discover(run_dir).candidates:
        (candidate.path / "state.r00000.json").write_bytes(b"{}")
    found = discover(run_dir)
    with pytest.raises(NoUsableCheckpointError) as error:
        found.newest()
    assert len(error.value.rejected) == 2
    with pytest.raises(NoUsableCheckpointError) as error:
        restore_newest(found, tiny.registry, contexts[1]())
    for step in (1, 2):
        assert f"step-0000000{step}" in str(error.value)


def test_all_markers_lost_is_an_error_and_not_a_fresh_start(run_dir: Path) -> None:
    for candidate in discover(run_dir).candidates:
        (candidate.path / "COMMIT").unlink()
    with pytest.raises(NoUsableCheckpointError, match="COMMIT is missing"):
        discover(run_dir).newest()


def test_a_run_that_never_had_a_checkpoint_has_none(tmp_path: Path) -> None:
    assert discover(tmp_path).newest() is None


# ---- ACTIVE ----------------------------------------------------------------------------------------------------------


def _active(run_dir: Path, change: dict[str, Any]) -> None:
    path = run_dir / "checkpoints" / "ACTIVE"
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | change))


ACTIVES: dict[str, Callable[[Path], None]] = {
    "an older generation": lambda d: _active(d, {"name": discover(d).candidates[-1].name}),
    "one that is not there": lambda d: _active(d, {"name": "step-00000099-s01-00000000", "step": 99}),
    "another manifest": lambda d: _active(d, {"manifest_sha256": "1" * 64}),
    "another step": lambda d: _active(d, {"step": 7}),
    "a path out of the run": lambda d: _active(d, {"name": "../../../../etc"}),
    "nothing readable": lambda d: (d / "checkpoints/ACTIVE").write_bytes(b"\0" * 40) and None,
    "a link": lambda d: _replace_by_link(d / "checkpoints/ACTIVE", Path("/etc/passwd")),
}


def _replace_by_link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("what", ACTIVES)
def test_a_stale_or_forged_active_is_a_fault_and_never_decides(
    what: str, run_dir: Path, tiny: Any, contexts: Any
) -> None:
    ACTIVES[what](run_dir)
    report = verify_run(run_dir)
    faults = [fault for g in report.generations for fault in g.faults]
    assert [(fault.kind, fault.path) for fault in faults] == [("stale_active", "ACTIVE")]
    found = discover(run_dir)
    assert found.notes or what == "another step"
    restored = restore_newest(found, tiny.registry, contexts[1]())
    assert restored is not None
    assert restored.position.step == 2


# ---- forged manifests, with right hashes -----------------------------------------------------------------------------


def _artifact(manifest: dict[str, Any], component: str) -> dict[str, Any]:
    found: dict[str, Any] = next(a for a in manifest["artifacts"] if a["component"] == component)
    return found


def _set(component: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: _artifact(manifest, component).update(fields)


def _wrong_dtype(manifest: dict[str, Any]) -> None:
    _artifact(manifest, "optim")["tensors"]["optimizer/0.weight/exp_avg"]["dtype"] = "F16"


def _unknown_dtype(manifest: dict[str, Any]) -> None:
    _artifact(manifest, "optim")["tensors"]["optimizer/0.weight/exp_avg"]["dtype"] = "Q7"


def _drop_tensor(manifest: dict[str, Any]) -> None:
    del _artifact(manifest, "optim")["tensors"]["optimizer/0.weight/exp_avg"]


def _huge_shape(manifest: dict[str, Any]) -> None:
    _artifact(manifest, "optim")["tensors"]["optimizer/0.weight/exp_avg"]["shape"] = [10**12]


FORGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "absolute path": _set("model", path="/etc/passwd"),
    "parent path": _set("model", path="../../../secret"),
    "path with a slash": _set("model", path="sub/model"),
    "hidden path": _set("model", path=".model"),
    "same file twice": lambda m: m["artifacts"].append(dict(_artifact(m, "model"))),
    "the marker as artifact": _set("extra", path="COMMIT"),
    "wrong size": _set("model", bytes=10),
    "huge size": _set("model", bytes=10**13),
    "negative size": _set("model", bytes=-1),
    "wrong hash": _set("model", sha256="0" * 64),
    "malformed hash": _set("model", sha256="xyz"),
    "no model file": lambda m: m["artifacts"].remove(_artifact(m, "model")),
    "no state file": lambda m: m["artifacts"].remove(_artifact(m, "state")),
    "wrong dtype": _wrong_dtype,
    "unknown dtype": _unknown_dtype,
    "a tensor fewer": _drop_tensor,
    "a shape of terabytes": _huge_shape,
    "another step": lambda m: m["position"].update(step=5),
    "another name": lambda m: m.update(name="step-00000002-s01-ffffffff"),
    "no generation's name": lambda m: m.update(name="../x"),
    "updates that disagree with the state": lambda m: m["position"].update(num_updates=9),
    "weights in place of training": lambda m: m.update(kind="weights"),
    "an unknown kind": lambda m: m.update(kind="training-ish"),
    "a newer major format": lambda m: m["format"].update(version="2.0"),
    "a newer reader needed": lambda m: m["format"].update(min_reader="1.9"),
    "another format": lambda m: m["format"].update(name="something-else"),
    "a string for a number": lambda m: m["position"].update(step="2"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_manifest_with_right_hashes_is_refused(
    what: str, run_dir: Path, contexts: Any, forge: Any, make_tiny: Any
) -> None:
    """The chain of hashes cannot help here: names, sizes, headers and shapes are checked on their own."""
    folder = newest(run_dir)
    forge(folder, FORGED[what])
    fresh = make_tiny(seed=5)
    before = [p.clone() for p in fresh.model.parameters()]
    # A tensor table that does not fit the model is a finding, not damage; everything else is damage.
    with pytest.raises((FormatError, WeightsOnlyError, ResumeRefusedError)) as error:
        apply_restore(plan_restore(read_candidate(folder), fresh.registry, contexts[1]()))
    assert folder.name in str(error.value)
    assert fresh.registry.poisoned is None
    assert all((a == b).all() for a, b in zip(before, fresh.model.parameters(), strict=True))
    assert not fresh.optimizer.state
    assert not verify_generation(folder).ok or what in VALID_FOR_VERIFY


VALID_FOR_VERIFY = {
    # Whole as files go; a restore refuses them for what they say.
    "no model file",
    "no state file",
    "updates that disagree with the state",
    "weights in place of training",
}


@pytest.mark.parametrize("name", ["model.r00000.safetensors", "manifest.json", "COMMIT"])
def test_a_link_in_place_of_a_file_is_refused(name: str, run_dir: Path, tmp_path: Path) -> None:
    """Even to the very same bytes: nothing in a run folder may point out of it."""
    folder = newest(run_dir)
    outside = tmp_path / "outside"
    outside.write_bytes((folder / name).read_bytes())
    _replace_by_link(folder / name, outside)
    assert not verify_generation(folder).ok
    with pytest.raises(FormatError):
        read_candidate(folder)


def test_a_pipe_in_place_of_a_file_does_not_hang(run_dir: Path) -> None:
    folder = newest(run_dir)
    for name in ("model.r00000.safetensors", "manifest.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(FormatError):
            read_candidate(folder)
        assert not verify_generation(folder).ok


def test_a_linked_generation_folder_is_not_a_candidate(run_dir: Path, tmp_path: Path) -> None:
    folder = newest(run_dir)
    moved = tmp_path / folder.name
    folder.rename(moved)
    folder.symlink_to(moved)
    assert folder.name not in [c.name for c in discover(run_dir).candidates]


def test_a_newer_format_says_so(run_dir: Path, forge: Any) -> None:
    folder = newest(run_dir)
    forge(folder, lambda m: m["format"].update(version="2.0"))
    with pytest.raises(NewerFormatError, match=r"2\.0"):
        read_candidate(folder)
    assert [f.kind for f in verify_generation(folder).faults] == ["newer_format"]
    marker = (folder / "COMMIT").read_bytes()
    (folder / "COMMIT").write_bytes(marker.replace(b"checkpoint 1 ", b"checkpoint 2 "))
    with pytest.raises(NewerFormatError):
        read_candidate(folder)


def test_fields_of_a_newer_minor_version_are_passed_over(run_dir: Path, forge: Any, tiny: Any, contexts: Any) -> None:
    folder = newest(run_dir)
    forge(folder, lambda m: m.update(format={**m["format"], "version": "1.7"}, brand_new={"a": 1}))
    apply_restore(plan_restore(read_candidate(folder), tiny.registry, contexts[1]()))


# ---- hostile tensor files --------------------------------------------------------------------------------------------


def _tensor_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


HEADERS: dict[str, bytes] = {
    "a header of ten gigabytes": _tensor_file(b"{}", length=10 * 10**9),
    "a header of 2**63": _tensor_file(b"{}", length=2**63),
    "a header longer than the file": _tensor_file(b"{}", length=100),
    "no header": b"\x02\0\0",
    "not JSON": _tensor_file(b"{{{{"),
    "a list": _tensor_file(b"[1,2]"),
    "a tensor of terabytes": _tensor_file(
        b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    ),
    "a hole": _tensor_file(b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}', b"abcd"),
    "an overlap": _tensor_file(
        b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}',
        b"abcd",
    ),
    "bytes after the last tensor": _tensor_file(b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"abcd"),
    "a negative offset": _tensor_file(b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[-2,0]}}', b"abcd"),
    "a negative shape": _tensor_file(b'{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}', b"abcd"),
    "a boolean shape": _tensor_file(b'{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}', b"a"),
    "a shape that does not fit": _tensor_file(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"abcd"),
    "an unknown type": _tensor_file(b'{"a":{"dtype":"F7","shape":[4],"data_offsets":[0,4]}}', b"abcd"),
    "metadata that is no text": _tensor_file(b'{"__metadata__":{"a":1}}'),
    "a million brackets": _tensor_file(b"[" * 1_000_000),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_hostile_tensor_file_is_refused_before_memory_is_asked_for(what: str, tmp_path: Path) -> None:
    from lineage.checkpoint.tensorfile import read_header, read_tensors

    path = tmp_path / "hostile.safetensors"
    path.write_bytes(HEADERS[what])

    def never(_: Any) -> memoryview:
        raise AssertionError("memory was asked for")

    with pytest.raises(ArtifactError):
        read_header(path)
    with pytest.raises(ArtifactError):
        read_tensors(path, num_bytes=None, sha256=None, check=lambda _: None, destination=never)
