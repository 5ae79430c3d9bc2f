"""Run folders as an enemy, a broken disk or a careless copy would make them; each is built, none is committed.

Every entry gets a `Place`: a folder of runs with one good run in it, and a canary outside that nothing may touch. It
does its harm and says by which REFs and paths the harm is reached.
"""

import hashlib
import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from benchmarks.synthetic import Plan, write_run
from lineage.checkpoint import tensorfile
from lineage_schemas import checkpoint as schema

CANARY = "canary-5d1f0c-must-not-be-read"
EVIL = "\x1b]0;owned\x07\x1b[31mred\x1b[2J\r\x08\x9b2J\x00\u202eevil\u2066\u200b\u2028\ufeff\u00ad[bold]m[/]:smile: \n\tend"
STACKED = "e" + "\u0301" * 300
WIDE = "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 20 + "\u5b57" * 50


@dataclass
class Place:
    """Where an entry does its harm.

    Attributes:
        runs: the folder of runs.
        run: one good run of three sessions and two generations in it.
        outside: a folder that belongs to somebody else, with the canary in it.
        targets: REFs and paths at which commands are aimed.
        session: id of the good run's last session.
    """

    runs: Path
    run: Path
    outside: Path
    targets: list[str] = field(default_factory=list)
    session: str = ""

    @property
    def canary(self) -> Path:
        return self.outside / "canary.json"

    @property
    def log(self) -> Path:
        return self.run / "metrics.jsonl"

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.run / "run.json").read_bytes())

    def write_record(self, record: object) -> None:
        (self.run / "run.json").write_text(json.dumps(record))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_bytes().splitlines()]

    def write_events(self, events: list[dict[str, Any]]) -> None:
        self.log.write_bytes(b"".join(json.dumps(event).encode() + b"\n" for event in events))

    def append_lines(self, *lines: bytes) -> None:
        with self.log.open("ab") as out:
            out.write(b"".join(line + b"\n" for line in lines))

    @property
    def generations(self) -> list[Path]:
        return sorted(path for path in (self.run / "checkpoints").iterdir() if path.is_dir())

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "ts": 1_764_430_000.0, "run": self.run.name, "session": self.session} | fields

    def replace(self, path: Path, make: Callable[[Path], object]) -> None:
        """Put something else in the place of a file or folder."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path)


def make_generation(run: Path, name: str, session: str, recipe: dict[str, Any], **changes: Any) -> Path:
    """A committed generation with one tensor, made without torch; `changes` are fields of the manifest."""
    folder = run / "checkpoints" / name
    folder.mkdir(parents=True)
    data = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)
    spec = tensorfile.TensorSpec("weight", "F32", (2, 2))
    written = tensorfile.write_tensors(
        folder / "model.safetensors", [spec], lambda _: memoryview(data), {"lineage": "1"}
    )
    manifest = schema.Manifest(
        kind="training",
        name=name,
        created_at=datetime(2025, 11, 29, 14, tzinfo=UTC),
        run=schema.RunPoint(run=run.name, session=session),
        position=schema.Position(step=int(name.split("-")[1]), num_updates=int(name.split("-")[1])),
        artifacts=[
            schema.Artifact(
                path="model.safetensors",
                component="model",
                bytes=written.num_bytes,
                sha256=written.sha256,
                tensors={
                    "weight": schema.TensorInfo(
                        dtype="F32", shape=[2, 2], digest=tensorfile.tensor_digest("F32", (2, 2), memoryview(data))
                    )
                },
            )
        ],
        components=[schema.Component(name="model", family="model")],
        recipe=schema.RecipePoint(**recipe),
        writer=schema.Writer(host="node-1", pid=4001),
    )
    write_manifest(folder, manifest.to_wire() | changes)
    return folder


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest and the COMMIT that vouches for it."""
    (folder / "manifest.json").write_text(json.dumps(manifest))
    _recommit(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_bytes())


def make_good_run(runs: Path, name: str = "victim") -> Path:
    """Three sessions (killed, preempted, completed), 90 steps, two generations, ACTIVE and a ledger."""
    run = write_run(
        runs, Plan(steps=90, sessions=3, overlap=7, name=name, checkpoint_every=30, eval_every=30, skip_every=29)
    )
    record = json.loads((run / "run.json").read_bytes())
    ledger = b""
    for session in record["sessions"][:2]:
        name = session["checkpoints"][0]
        recipe = {key: session["recipe"][key] for key in ("fingerprint", "value")}
        folder = make_generation(run, name, session["id"], recipe)
        ledger += orjson.dumps({"ts": 1_764_425_000.0, "action": "committed", "checkpoint": name}) + b"\n"
        sha = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
        active = {"name": name, "step": int(name.split("-")[1]), "manifest_sha256": sha}
        (run / "checkpoints" / "ACTIVE").write_bytes(orjson.dumps(active))
    (run / "checkpoints" / "ledger.jsonl").write_bytes(ledger)
    (run / "run.lock").write_bytes(b"")
    return run


# ---- the entries -----------------------------------------------------------------------------------------------------

Entry = Callable[[Place], None]
ENTRIES: dict[str, Entry] = {}


def entry(make: Entry) -> Entry:
    ENTRIES[make.__name__.replace("_", "-")] = make
    return make


@entry
def nothing_wrong(place: Place) -> None:
    """So that the checks are known to pass where nothing is wrong."""


def _spoil_text(place: Place, text: str) -> None:
    record = place.record
    record |= {"name": text, "notes": text, "tags": [text]}
    for session in record["sessions"]:
        session |= {"host": text, "argv": ["train.py", text, f"--x={text}"], "reason": text}
        session["recipe"] |= {"value": {text: text, "lr": {text: [text]}}, "masked": [text]}
        session["source"] |= dict.fromkeys(("branch", "remote", "root", "problem", "patch"), text)
        session["runtime"] = {text: {text: text}}
        session["data"] = {text: {"fingerprint": text}}
        if session.get("continuation"):
            session["continuation"] |= {"reason": text, "proven": [text]}
            session["continuation"]["first_difference"] = {
                "step": 31,
                "field": text,
                "part": text,
                "before": text,
                "after": text,
            }
        session["start"]["rejected"] = [{"name": text, "reason": text}]
        session["start"]["findings"] = [
            {"path": text, "saved": text, "live": text, "rule": text, "verdict": "noted"},
        ]
    for environment in record["environments"].values():
        environment |= {"python": text, "platform": text, "packages": {text: text}, "variables": {text: text}}
        environment |= {"gpus": [{"name": text}], "cpu": text, "torch": text}
    place.write_record(record)
    events = place.events
    for event in events:
        if "metrics" in event:
            event["metrics"] = {text + name if name != "loss" else name: v for name, v in event["metrics"].items()}
            if "nonfinite" in event:
                event["nonfinite"] = {text + n if n != "loss" else n: v for n, v in event["nonfinite"].items()}
        for key in ("phase", "reason", "message", "code", "host", "name", "scaler"):
            if key in event:
                event[key] = text
        if "groups" in event:
            event["groups"][0]["optimizer"] = text
    events += [
        place.event("note", step=90, text=text),
        place.event("alert", step=90, code=text, message=text, details={text: text}),
        place.event(text, step=90, **{text: text}),
        place.event("system", metrics={text: 1.0}),
    ]
    place.write_events(events)
    for folder in place.generations:
        manifest = read_manifest(folder)
        manifest["artifacts"][0]["component"] = text
        manifest["components"] = [{"name": text, "family": text, "reason": text, "details": {text: text}}]
        manifest["recipe"]["value"] = {text: text}
        manifest["writer"]["host"] = text
        manifest["runtime"] = {text: text}
        write_manifest(folder, manifest)
    with (place.run / "checkpoints" / "ledger.jsonl").open("ab") as out:
        for folder in place.generations:
            line = {"ts": 1.0, "action": "quarantined", "checkpoint": folder.name, "details": {"reason": text}}
            out.write(json.dumps(line).encode() + b"\n")
        out.write(json.dumps({"ts": 1.0, "action": "committed", "checkpoint": text, "session": text}).encode() + b"\n")
    (place.run / "run.lock").write_text(json.dumps({"pid": 1, "host": text, "session": text}))


@entry
def escape_sequences_and_markup_everywhere(place: Place) -> None:
    _spoil_text(place, EVIL)


@entry
def ten_kilobytes_of_name_everywhere(place: Place) -> None:
    _spoil_text(place, EVIL + "x" * 10_000)


@entry
def stacked_marks_and_wide_characters_everywhere(place: Place) -> None:
    _spoil_text(place, STACKED + WIDE)


@entry
def lone_surrogates_everywhere(place: Place) -> None:
    _spoil_text(place, "\ud800a\udfff")


@entry
def empty_text_everywhere(place: Place) -> None:
    _spoil_text(place, "")


@entry
def names_of_files_that_are_hostile(place: Place) -> None:
    """Neighbours of the good run whose folder names are escapes, blanks, options or no UTF-8."""
    evil = EVIL.replace("\x00", "").replace("/", "").encode()
    for number, name in enumerate((b"\xff\xfe-run", evil, b"-rf", b" ", b"@last")):
        folder = place.runs / os.fsdecode(name)
        shutil.copytree(place.run, folder)
        (folder / "run.lock").rename(folder / os.fsdecode(b"\xff%d" % number))
        place.targets.append(str(folder))
    shutil.copytree(place.generations[0], place.run / "checkpoints" / os.fsdecode(b"step-\xff\x1b[2J"))


@entry
def two_folders_with_one_id(place: Place) -> None:
    shutil.copytree(place.run, place.runs / "copy")
    place.targets += ["copy", "victim", place.record["sessions"][0]["id"]]


@entry
def names_that_differ_in_case_alone(place: Place) -> None:
    shutil.copytree(place.run, place.run.with_name(place.run.name.upper()))
    gens = place.generations
    shutil.copytree(gens[0], gens[0].with_name(gens[0].name.upper()))
    manifest = read_manifest(gens[1])
    twin = manifest["artifacts"][0] | {"path": "MODEL.safetensors"}
    shutil.copy(gens[1] / "model.safetensors", gens[1] / "MODEL.safetensors")
    write_manifest(gens[1], manifest | {"artifacts": [manifest["artifacts"][0], twin]})
    place.targets += [place.run.name.upper(), "VICTIM"]


@entry
def a_run_folder_that_is_a_loop_of_links(place: Place) -> None:
    (place.runs / "loop").symlink_to(place.runs / "pool")
    (place.runs / "pool").symlink_to(place.runs / "loop")
    (place.run / "checkpoints" / "step-00000099-s01-00000000").symlink_to(place.run / "checkpoints")
    place.targets += ["loop", str(place.runs / "loop"), str(place.runs / "loop" / "metrics.jsonl")]


@entry
def a_run_folder_that_links_to_itself(place: Place) -> None:
    (place.run / "self").symlink_to(place.run)
    place.targets += [str(place.run / "self" / "self" / "self")]


@entry
def a_log_and_a_record_that_are_loops(place: Place) -> None:
    for name in ("metrics.jsonl", "run.json", "run.lock"):
        place.replace(place.run / name, lambda path: path.symlink_to(path))
    place.replace(place.run / "checkpoints", lambda path: path.symlink_to(path))


@entry
def a_record_that_links_out(place: Place) -> None:
    shutil.copy(place.run / "run.json", place.canary)
    record = place.record
    place.canary.write_text(json.dumps(record | {"notes": CANARY, "name": CANARY}))
    place.replace(place.run / "run.json", lambda path: path.symlink_to(place.canary))


@entry
def a_log_that_links_out(place: Place) -> None:
    place.canary.write_text(json.dumps(place.event("note", text=CANARY)) + "\n")
    place.replace(place.log, lambda path: path.symlink_to(place.canary))


@entry
def a_lock_that_links_out(place: Place) -> None:
    place.replace(place.run / "run.lock", lambda path: path.symlink_to(place.canary))


@entry
def checkpoints_that_link_out(place: Place) -> None:
    shutil.move(place.run / "checkpoints", place.outside / "checkpoints")
    (place.run / "checkpoints").symlink_to(place.outside / "checkpoints")


@entry
def a_generation_and_artifacts_that_link_out(place: Place) -> None:
    first, second = place.generations
    shutil.move(first, place.outside / first.name)
    first.symlink_to(place.outside / first.name)
    shutil.move(second / "model.safetensors", place.outside / "model.safetensors")
    (second / "model.safetensors").symlink_to(place.outside / "model.safetensors")
    # The first one is not aimed at by its path: a link that a person typed is one that person means.
    place.targets += [str(second), str(second / "model.safetensors")]


@entry
def manifest_and_marker_that_link_out(place: Place) -> None:
    first, second = place.generations
    shutil.move(first / "manifest.json", place.outside / "manifest.json")
    (first / "manifest.json").symlink_to(place.outside / "manifest.json")
    shutil.move(second / "COMMIT", place.outside / "COMMIT")
    (second / "COMMIT").symlink_to(place.outside / "COMMIT")


@entry
def ledger_and_active_that_link_out(place: Place) -> None:
    for name in ("ledger.jsonl", "ACTIVE"):
        shutil.move(place.run / "checkpoints" / name, place.outside / name)
        (place.run / "checkpoints" / name).symlink_to(place.outside / name)


@entry
def commits_that_are_options_of_git(place: Place) -> None:
    """`git log --output=FILE..x` would write the file."""
    record = place.record
    for session in record["sessions"]:
        session["source"]["commit"] = f"--output={place.outside / 'owned'}"
        session["source"]["patch"] = f"source/{session['id']}.patch"
    record["sessions"][1]["source"]["commit"] = "x"
    place.write_record(record)


@entry
def a_cache_and_a_source_that_link_out(place: Place) -> None:
    (place.run / ".cache").symlink_to(place.outside)
    place.replace(place.run / "source", lambda path: path.symlink_to(place.outside))
    record = place.record
    for session in record["sessions"]:
        session["source"] |= {"dirty": True, "patch": "../../outside/canary.json"}
    place.write_record(record)
    place.append_lines(*[json.dumps(place.event("note", text="x" * 1000)).encode()] * 1200)  # enough to be cached


@entry
def fifos_in_place_of_files(place: Place) -> None:
    for path in (place.run / "run.json", place.log, place.run / "run.lock"):
        place.replace(path, os.mkfifo)


@entry
def a_fifo_in_place_of_the_record_alone(place: Place) -> None:
    place.replace(place.run / "run.json", os.mkfifo)


@entry
def fifos_in_checkpoints(place: Place) -> None:
    first, second = place.generations
    for path in (
        first / "COMMIT",
        second / "model.safetensors",
        place.run / "checkpoints" / "ACTIVE",
        place.run / "checkpoints" / "ledger.jsonl",
    ):
        place.replace(path, os.mkfifo)
    os.mkfifo(place.run / "checkpoints" / "step-00000095-s03-00000000")
    place.targets += [str(first), str(second), str(second / "model.safetensors")]


@entry
def a_fifo_in_place_of_a_manifest(place: Place) -> None:
    place.replace(place.generations[0] / "manifest.json", os.mkfifo)
    place.replace(place.generations[1], os.mkfifo)


@entry
def a_fifo_in_place_of_the_cache(place: Place) -> None:
    (place.run / ".cache").mkdir()
    os.mkfifo(place.run / ".cache" / "columns-1.bin")
    place.append_lines(*[json.dumps(place.event("note", text="x" * 1000)).encode()] * 1200)


@entry
def folders_in_place_of_files(place: Place) -> None:
    for path in (
        place.run / "run.json",
        place.log,
        place.run / "run.lock",
        place.run / "checkpoints" / "ACTIVE",
        place.run / "checkpoints" / "ledger.jsonl",
        place.generations[0] / "COMMIT",
        place.generations[0] / "manifest.json",
        place.generations[1] / "model.safetensors",
    ):
        place.replace(path, os.mkdir)


@entry
def files_in_place_of_folders(place: Place) -> None:
    for name in ("checkpoints", ".cache", "source"):
        place.replace(place.run / name, lambda path: path.write_bytes(b"\0"))


@entry
def sockets_in_place_of_files(place: Place) -> None:
    here = os.open(place.run, os.O_RDONLY)  # a socket's path has at most 107 bytes
    try:
        for name in ("run.json", "run.lock", "checkpoints/ledger.jsonl", "metrics.jsonl"):
            (place.run / name).unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{here}/{name}")
    finally:
        os.close(here)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@entry
def endless_devices_in_place_of_files(place: Place) -> None:
    """Links to /dev/zero: a read of the whole file would never end."""
    for path in (place.run / "run.json", place.log, place.run / "run.lock"):
        place.replace(path, _endless)


@entry
def endless_devices_in_checkpoints(place: Place) -> None:
    first, second = place.generations
    for path in (
        first / "COMMIT",
        second / "manifest.json",
        place.run / "checkpoints" / "ACTIVE",
        place.run / "checkpoints" / "ledger.jsonl",
    ):
        place.replace(path, _endless)


def _node(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # S_IFCHR, /dev/zero


@entry
def device_nodes_in_place_of_files(place: Place) -> None:
    for path in (
        place.run / "run.json",
        place.log,
        place.run / "checkpoints" / "ledger.jsonl",
        place.generations[0] / "COMMIT",
        place.generations[1] / "model.safetensors",
    ):
        place.replace(path, _node)


@entry
def files_that_refuse_to_be_read(place: Place) -> None:
    """/proc/self/mem opens and answers EIO, also to root, on whom permissions do not bite."""
    for path in (place.run / "run.json", place.log, place.run / "run.lock", place.run / "checkpoints" / "ledger.jsonl"):
        place.replace(path, lambda path: path.symlink_to("/proc/self/mem"))


@entry
def files_without_permission(place: Place) -> None:
    """Bites for everybody but root."""
    for path in (place.run / "run.json", place.log, place.run / "run.lock", place.generations[0] / "manifest.json"):
        path.chmod(0)
    place.generations[1].chmod(0)


@entry
def nul_bytes_for_files(place: Place) -> None:
    for path in (
        place.run / "run.json",
        place.log,
        place.run / "run.lock",
        place.run / "checkpoints" / "ledger.jsonl",
        place.run / "checkpoints" / "ACTIVE",
        place.generations[0] / "manifest.json",
        place.generations[1] / "COMMIT",
    ):
        path.write_bytes(b"\0" * 5000)


@entry
def empty_files(place: Place) -> None:
    for path in (
        place.run / "run.json",
        place.log,
        place.run / "checkpoints" / "ledger.jsonl",
        place.run / "checkpoints" / "ACTIVE",
        place.generations[0] / "manifest.json",
        place.generations[1] / "model.safetensors",
    ):
        path.write_bytes(b"")


@entry
def a_huge_sparse_record_log_and_cache(place: Place) -> None:
    """Files of 20 GB that take no room on disk."""
    for path in (
        place.run / "run.json",
        place.run / "checkpoints" / "ledger.jsonl",
        place.generations[0] / "manifest.json",
    ):
        with path.open("r+b") as out:
            out.truncate(20 << 30)
    (place.run / ".cache").mkdir()
    with (place.run / ".cache" / "columns-1.bin").open("wb") as out:
        out.write(b"LNGCOLS1" + struct.pack("<QI", (20 << 30) - 20, 0))
        out.truncate(20 << 30)
    place.append_lines(*[json.dumps(place.event("note", text="x" * 1000)).encode()] * 1200)


@entry
def a_log_without_a_record(place: Place) -> None:
    (place.run / "run.json").unlink()


@entry
def a_record_without_a_log(place: Place) -> None:
    place.log.unlink()


@entry
def a_record_of_a_newer_major(place: Place) -> None:
    place.write_record({"format": {"name": "lineage-run", "version": "2.0"}, "id": EVIL})


@entry
def a_record_whose_version_is_a_book(place: Place) -> None:
    record = place.record
    place.write_record(record | {"format": {"name": "lineage-run", "version": "9" * 6000 + ".0"}})


@entry
def a_record_of_another_format(place: Place) -> None:
    place.write_record({"format": {"name": EVIL, "version": "1.0"}})


@entry
def a_log_of_a_newer_major(place: Place) -> None:
    events = place.events
    events[-5:-5] = [
        place.event("session_start", step=0, format={"name": "lineage-log", "version": "2.0"}, ordinal=4, start={})
    ]
    place.write_events(events)


@entry
def versions_that_are_a_book(place: Place) -> None:
    version = {"name": "lineage-log", "version": "9" * 6000 + ".0"}
    place.write_events(
        [*place.events, place.event("session_start", step=0, format=version, ordinal=4, start={"kind": "fresh"})]
    )
    for folder, name in zip(place.generations, ("version", "min_reader"), strict=True):
        manifest = read_manifest(folder)
        manifest["format"][name] = "9" * 6000 + ".0"
        write_manifest(folder, manifest)


@entry
def a_reader_version_that_is_no_version(place: Place) -> None:
    for folder, text in zip(place.generations, (EVIL, "1"), strict=True):
        manifest = read_manifest(folder)
        manifest["format"]["min_reader"] = text
        write_manifest(folder, manifest)


@entry
def checkpoints_of_a_newer_major(place: Place) -> None:
    first, second = place.generations
    manifest = read_manifest(first)
    write_manifest(first, manifest | {"format": {"name": "lineage-checkpoint", "version": "2.0", "min_reader": "2.0"}})
    (second / "COMMIT").write_bytes((second / "COMMIT").read_bytes().replace(b" 1 ", b" 999999 "))


@entry
def manifests_with_paths_that_leave(place: Place) -> None:
    first, second = place.generations
    for folder, path in ((first, str(place.canary)), (second, "../../../../outside/canary.json")):
        manifest = read_manifest(folder)
        size, sha = tensorfile.hash_file(place.canary)
        manifest["artifacts"][0] |= {"path": path, "bytes": size, "sha256": sha}
        write_manifest(folder, manifest)


@entry
def manifests_with_names_of_the_protocol(place: Place) -> None:
    first, second = place.generations
    manifest = read_manifest(first)
    write_manifest(first, manifest | {"artifacts": manifest["artifacts"] * 2})
    manifest = read_manifest(second)
    manifest["artifacts"][0]["path"] = "COMMIT"
    write_manifest(second, manifest)


@entry
def a_manifest_with_thousands_of_artifacts(place: Place) -> None:
    first = place.generations[0]
    manifest = read_manifest(first)
    one = manifest["artifacts"][0] | {"tensors": {}}
    write_manifest(first, manifest | {"artifacts": [one | {"path": f"a{n}"} for n in range(10_000)]})


@entry
def manifests_with_huge_numbers(place: Place) -> None:
    first, second = place.generations
    manifest = read_manifest(first)
    manifest["artifacts"][0]["bytes"] = 2**63
    manifest["position"] |= {"step": 10**30, "num_updates": 2**64 - 1}
    (first / "manifest.json").write_text(json.dumps(manifest))
    _recommit(first)
    manifest = read_manifest(second)
    manifest["artifacts"][0]["tensors"] = {"w": {"dtype": "F32", "shape": [2**62, 2**62]}}
    manifest["created_at"] = "9999-12-31T23:59:59-23:59"
    manifest["timing"] = {"write_s": 1e308, "fsync_s": 1e308}
    (second / "manifest.json").write_text(json.dumps(manifest))
    _recommit(second)


def _recommit(folder: Path) -> None:
    sha = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    (folder / "COMMIT").write_bytes(schema.format_commit(sha))


@entry
def tensor_files_that_claim_ten_gigabytes(place: Place) -> None:
    first, second = place.generations
    for folder, head in (
        (first, struct.pack("<Q", 10 << 30) + b"{" * 100),
        (second, struct.pack("<Q", 2**64 - 1) + b"\0" * 100),
    ):
        (folder / "model.safetensors").write_bytes(head)
        manifest = read_manifest(folder)
        manifest["artifacts"][0] |= {"bytes": len(head), "sha256": hashlib.sha256(head).hexdigest()}
        write_manifest(folder, manifest)
    place.targets += [str(first / "model.safetensors"), str(second / "model.safetensors")]


@entry
def an_artifact_that_is_a_pickle(place: Place) -> None:
    """Loading it would make a file."""
    import pickle

    class Owned:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(place.outside / "owned"),))

    for name in ("model.pt", "model.pth", "weights.bin", "state.pkl"):
        (place.run / name).write_bytes(pickle.dumps(Owned()))
        place.targets.append(str(place.run / name))
    first = place.generations[0]
    (first / "model.safetensors").write_bytes(pickle.dumps(Owned()))
    place.targets.append(str(first / "model.safetensors"))


@entry
def huge_numbers_in_the_log(place: Place) -> None:
    big = 10**30
    lines = []
    for step in (2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, big):
        metrics = {"loss": 1e308, "lr": -1e308, "grad_norm": 5e-324, "tiny": 2**64 - 1}
        lines.append(place.event("step", step=step, metrics=metrics, duration_s=1e308, tokens=2**63 - 1))
        lines.append(place.event("step", step=step, metrics={"loss": -1e308}, duration_s=1e-320, tokens=big))
        lines.append(place.event("eval", step=step, metrics={"loss": big}, duration_s=1e308))
        lines.append(place.event("fp16_skip", step=step, scale_before=1e308, scale_after="inf", num_skipped=big))
        lines.append(place.event("alert", step=step, code="x", message="y", details={"n": 10**4000}))
        lines.append(place.event("log_recovered", discarded_bytes=big, offset=big))
    place.write_events([*place.events, *lines])


@entry
def times_beyond_every_calendar(place: Place) -> None:
    lines = [
        place.event("step", step=91 + n, metrics={"loss": 1.0}, duration_s=0.1) | {"ts": ts}
        for n, ts in enumerate((-1e308, 1e308, 253402300800.0, -62135596801.0, 0, 2**63, 10**25, -1))
    ]
    lines.append(place.event("session_end", step=99, status="failed") | {"ts": 1e308})
    place.write_events([*place.events, *lines])
    record = place.record
    record["created_at"] = "0001-01-01T00:00:00+23:59"
    record["sessions"][0]["started_at"] = "9999-12-31T23:59:59.999999-23:59"
    record["sessions"][2] |= {"started_at": "0001-01-01T00:00:00+14:00", "ended_at": "9999-12-31T23:59:59-12:00"}
    place.write_record(record)


@entry
def a_last_event_beyond_every_calendar(place: Place) -> None:
    place.write_events([*place.events, place.event("note", text="late") | {"ts": -1e308}])
    (place.run / "run.json").unlink()


@entry
def huge_numbers_in_the_record(place: Place) -> None:
    record = place.record
    big = 10**30
    for session in record["sessions"]:
        session |= {"pid": big, "rank": -big, "world": big, "last_step": big}
        session["start"]["step"] = big
        session["recipe"]["value"] = {"n": 10**4000, "x": 1e308}
        session["source"] |= {"patch_bytes": big, "num_untracked": -big}
        session["data"] = {"train": {"fingerprint": "x", "num_files": big, "size_bytes": big, "num_samples": -big}}
        if session.get("continuation"):
            session["continuation"] |= {"from_step": big, "compared_steps": big}
    for number, session in enumerate(record["sessions"]):
        session["ordinal"] = big + number
    for environment in record["environments"].values():
        environment |= {"num_cpus": big, "memory_bytes": big, "threads": {"omp": big}}
    place.write_record(record)


@entry
def session_ids_without_end(place: Place) -> None:
    """Ordinals of three thousand and of five thousand digits, and of digits that are not ASCII."""
    ids = [f"s{'9' * 3000}-00000000", f"s{'9' * 5000}-00000000", "s\u0661\u0662-00000000", "s00-00000000"]
    lines = []
    for number, id_ in enumerate(ids):
        lines.append(
            place.event(
                "session_start",
                step=0,
                ordinal=10**25 + number,
                start={"kind": "fresh"},
                format={"name": "lineage-log", "version": "1.0"},
            )
            | {"session": id_}
        )
        lines.append(place.event("step", step=1, metrics={"loss": 1.0}) | {"session": id_})
        lines.append(
            place.event(
                "checkpoint_saved",
                step=1,
                checkpoint=f"step-{'9' * 5000}-s{'9' * 5000}-00000000",
                manifest_sha256="0" * 64,
                size_bytes=1,
            )
            | {"session": id_}
        )
    place.write_events([*place.events, *lines])
    (place.run / "run.json").unlink()
    folder = place.run / "checkpoints" / f"step-{'9' * 200}-s01-00000000"
    shutil.copytree(place.generations[0], folder)
    write_manifest(folder, read_manifest(folder) | {"name": folder.name})
    first = place.generations[0]
    write_manifest(first, read_manifest(first) | {"name": f"step-{'9' * 5000}-s01-00000000"})
    place.targets += [f"{place.run}@{'9' * 5000}", f"{place.run}@s{'9' * 5000}-00000000", str(first)]


@entry
def deep_nesting_everywhere(place: Place) -> None:
    for depth in (150, 250, 900, 100_000):
        nested = b"[" * depth + b"]" * depth
        head = json.dumps(place.event("alert", step=90, code="x", message="y")).encode()[:-1]
        place.append_lines(head + b', "details": {"d": ' + nested + b"}}", nested, head + b', "x": ' + nested + b"}")
    text = (place.run / "run.json").read_bytes().rstrip()[:-1]
    nested = b'{"a":' * 180 + b"1" + b"}" * 180
    (place.run / "run.json").write_bytes(text + b', "later": ' + nested + b', "notes": "deep"}')
    for folder, depth in zip(place.generations, (180, 100_000), strict=True):
        text = (folder / "manifest.json").read_bytes()[:-1]
        (folder / "manifest.json").write_bytes(text + b', "model": {"d": ' + b"[" * depth + b"]" * depth + b"}}")
        _recommit(folder)
    depth = 100_000
    ledger = place.run / "checkpoints" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes() + b'{"details": ' + b"[" * depth + b"]" * depth + b"}\n")
    (place.run / "run.lock").write_bytes(b"[" * 4000)


@entry
def a_deep_recipe(place: Place) -> None:
    for depth, session in zip((50, 150, 190), range(3), strict=True):
        record = place.record
        value: Any = EVIL
        for _ in range(depth):
            value = {"a": value}
        record["sessions"][session]["recipe"]["value"] = value
        record["sessions"][session]["runtime"] = {"r": value}
        place.write_record(record)


@entry
def a_record_nested_beyond_reading(place: Place) -> None:
    (place.run / "run.json").write_bytes(b'{"a":' * 100_000)


@entry
def garbage_between_good_lines(place: Place) -> None:
    lines = place.log.read_bytes().splitlines()
    for at, line in (
        (5, b"\xff\xfe" * 50),
        (17, b"{"),
        (30, b""),
        (31, b"null"),
        (40, b'{"kind": 7}'),
        (50, b"\x1b[2J" * 99),
    ):
        lines[at] = line
    place.log.write_bytes(b"\n".join(lines) + b'\n{"kind": "torn')


@entry
def a_log_of_blank_lines(place: Place) -> None:
    place.log.write_bytes(b"\n" * 30_000)


@entry
def a_line_beyond_the_longest(place: Place) -> None:
    with place.log.open("ab") as out:
        out.write(b'{"kind": "note", "text": "')
        for _ in range(20):
            out.write(b"x" * (1 << 20))
        out.write(b'"}\n' + json.dumps(place.event("note", text="after")).encode() + b"\n")


@entry
def a_log_without_a_newline(place: Place) -> None:
    place.log.write_bytes(b"x" * 3_000_000)


@entry
def many_sessions_and_many_metrics(place: Place) -> None:
    lines = []
    for number in range(60):
        session = f"s{number + 10:02d}-0000000a"
        metrics = {f"m{number}": 1.0, "loss": 1.0}
        lines.append(place.event("step", step=number + 1, metrics=metrics) | {"session": session})
    wide = {f"w{n}": float(n) for n in range(2000)}
    lines += [place.event("step", step=91 + n, metrics=wide) for n in range(5)]
    place.write_events([*place.events, *lines])


@entry
def sessions_that_start_from_each_other(place: Place) -> None:
    record = place.record
    first, second, third = record["sessions"]
    for session, other in ((first, second), (second, third), (third, first)):
        session["start"] |= {"kind": "resume", "step": 30, "session": other["id"]}
        session["start"]["checkpoint"] = "step-00000030-s01-00000000"
    record["parent"] = {"run": record["id"], "checkpoint": "step-00000030-s01-00000000", "step": 30}
    place.write_record(record)


@entry
def forks_in_a_ring(place: Place) -> None:
    other = make_good_run(place.runs, "other")
    for run, parent in ((place.run, other), (other, place.run)):
        record = json.loads((run / "run.json").read_bytes())
        checkpoint = record["sessions"][0]["checkpoints"][0]
        record["parent"] = {"run": parent.name, "checkpoint": checkpoint, "step": 30}
        record["sessions"][0]["start"] = {"kind": "fork", "step": 30, "run": parent.name, "checkpoint": checkpoint}
        (run / "run.json").write_text(json.dumps(record))
    place.targets.append(other.name)


@entry
def sessions_with_one_ordinal_and_one_id(place: Place) -> None:
    record = place.record
    record["sessions"] = [session | {"ordinal": 1} for session in record["sessions"]] * 2
    place.write_record(record)


@entry
def events_of_other_runs_and_unknown_sessions(place: Place) -> None:
    events = place.events
    for number, event in enumerate(events):
        if number % 3 == 0:
            event["run"] = "another-run"
        if number % 5 == 0:
            event["session"] = f"s{number + 4:02d}-0000000b"
    place.write_events(events)


@entry
def steps_that_run_backwards(place: Place) -> None:
    place.write_events(place.events[::-1])


@entry
def metrics_named_like_derived_ones(place: Place) -> None:
    events = place.events
    for event in events:
        if event["kind"] == "step":
            event["metrics"] |= {"tokens_per_s": -1.0, "step_s": None, "": 1.0, "duration_s": 2.0, "step": 3.0}
            event["nonfinite"] = event.get("nonfinite", {}) | {"step_s": "-inf"}
            event |= {"duration_s": 0.0, "tokens": 0}
    place.write_events(events)


@entry
def only_non_finite_values(place: Place) -> None:
    events = place.events
    for number, event in enumerate(events):
        if event["kind"] == "step":
            event["nonfinite"] = dict.fromkeys(event["metrics"], ("nan", "inf", "-inf")[number % 3])
            event["metrics"] = dict.fromkeys(event["metrics"])
    place.write_events(events)


@entry
def a_record_that_is_json_but_no_record(place: Place) -> None:
    (place.run / "run.json").write_bytes(b'[{"format": "x"}]')
    other = make_good_run(place.runs, "other")
    (other / "run.json").write_bytes(b'{"format": 5}')
    third = make_good_run(place.runs, "third")
    (third / "run.json").write_bytes(b"\xef\xbb\xbf{}")
    place.targets += [other.name, third.name]


@entry
def a_folder_of_runs_that_is_no_folder(place: Place) -> None:
    for name in ("file", "fifo", "loop"):
        path = place.runs / name
        {"file": Path.touch, "fifo": os.mkfifo, "loop": lambda p: p.symlink_to(p)}[name](path)
        place.targets.append(str(path))
    place.targets += ["", "\0", "\x1b[2J", "@", "@1", "victim@0", "victim@99", "victim@last@last", "x" * 5000, "/dev/null",
                      "/dev/zero", str(place.run / "metrics.jsonl"), "..", "/", "victim@" + "9" * 5000, "\udcff", "~nobody-here"]  # fmt: skip


@entry
def a_ledger_of_lies(place: Place) -> None:
    lines = [
        {"ts": 1e308, "action": "verified", "checkpoint": folder.name, "ok": False} for folder in place.generations
    ]
    lines += [
        {"ts": -1e308, "action": "committed", "checkpoint": "../../../outside"},
        {"ts": 1.0, "action": "deleted", "checkpoint": place.generations[0].name},
        {"ts": 1.0, "action": "committed", "checkpoint": "step-00000099-s09-00000000"},
        {"ts": 1.0, "action": "quarantined", "checkpoint": place.generations[1].name, "details": {"reason": [EVIL]}},
        {"ts": 10**25, "action": "pinned", "checkpoint": place.generations[1].name},
    ]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (place.run / "checkpoints" / "ledger.jsonl").write_bytes(text + b'\xff\n\n{"ts": "x"}\n{"torn')
    active = {"name": "step-00000099-s09-00000000", "step": 99, "manifest_sha256": "0" * 64}
    (place.run / "checkpoints" / "ACTIVE").write_text(json.dumps(active))


@entry
def a_record_of_a_hundred_megabytes(place: Place) -> None:
    place.write_record(place.record | {"notes": "x" * (100 << 20)})


@entry
def a_thousand_sessions_and_tags(place: Place) -> None:
    record = place.record
    record["tags"] = [f"tag-{number}" for number in range(5000)]
    last = record["sessions"][-1]
    for ordinal in range(4, 1004):
        record["sessions"].append(last | {"id": f"s{ordinal:02d}-0000000c", "ordinal": ordinal, "checkpoints": []})
    place.write_record(record)


@entry
def a_recipe_of_tens_of_thousands_of_values(place: Place) -> None:
    record = place.record
    for number, session in enumerate(record["sessions"]):
        session["recipe"]["value"] = {f"layer.{n}.{EVIL}": [n, number, {"x": n}] for n in range(20_000)}
    place.write_record(record)


@entry
def ten_thousand_entries_in_checkpoints(place: Place) -> None:
    """Generations, folders that only have the name of one, staging folders, and files."""
    folder = place.run / "checkpoints"
    for number in range(200):
        name = f"step-{number + 100:08d}-s03-{number:08x}"
        shutil.copytree(place.generations[0], folder / name)
        write_manifest(folder / name, read_manifest(folder / name) | {"name": name})
    for number in range(5000):
        (folder / f"step-{number + 1000:08d}-s03-{number:08x}").mkdir()
    for number in range(2500):
        (folder / f".staging-{number}").mkdir()
        (folder / f"file-{number}").touch()


@entry
def five_thousand_runs_in_one_folder(place: Place) -> None:
    record = place.record
    for number in range(5000):
        folder = place.runs / f"20251129-134012-many-{number}"
        folder.mkdir()
        if number % 10 == 0:
            (folder / "run.json").write_text(
                json.dumps(record | {"id": folder.name, "sessions": record["sessions"][:1]})
            )


@entry
def events_by_the_hundred_thousand(place: Place) -> None:
    lines = [
        json.dumps(place.event(kind, step=90, **fields)).encode()
        for kind, fields in (
            ("alert", {"code": "x", "message": EVIL}),
            ("note", {"text": EVIL}),
            ("fp16_skip", {"scale_before": 2.0, "scale_after": 1.0, "num_skipped": 1}),
            ("phase_start", {"phase": EVIL}),
        )
    ]
    with place.log.open("ab") as out:
        out.write((b"\n".join(lines) + b"\n") * 25_000)


@entry
def text_in_windows_1252(place: Place) -> None:
    """Names, record, log and manifest of a machine that never heard of UTF-8."""
    text = "Andr\u00e9\u2019s \u201cbest\u201d run \u20ac"
    shutil.copytree(place.run, place.runs / os.fsdecode(text.encode("cp1252")))
    place.targets.append(str(place.runs / os.fsdecode(text.encode("cp1252"))))
    wire = json.dumps(place.record | {"notes": text}, ensure_ascii=False)
    (place.run / "run.json").write_bytes(wire.encode("cp1252"))
    place.append_lines(json.dumps(place.event("note", text=text), ensure_ascii=False).encode("cp1252"))
    first, second = place.generations
    (first / "manifest.json").write_bytes(
        json.dumps(read_manifest(first) | {"x": text}, ensure_ascii=False).encode("cp1252")
    )
    _recommit(first)
    second.rename(second.with_name(os.fsdecode(b"step-\x80")))
    (place.run / "checkpoints" / "ACTIVE").write_bytes(text.encode("cp1252"))
    (place.run / "run.lock").write_bytes(text.encode("cp1252"))


@entry
def files_saved_by_an_editor_of_windows(place: Place) -> None:
    """A byte order mark, and a carriage return at each line's end."""
    for path in (place.run / "run.json", place.log, place.run / "checkpoints" / "ledger.jsonl"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))


@entry
def a_log_in_utf_16(place: Place) -> None:
    place.log.write_bytes(place.log.read_bytes().decode().encode("utf-16"))


@entry
def a_lock_that_is_a_folder(place: Place) -> None:
    place.replace(place.run / "run.lock", os.mkdir)


@entry
def a_lock_and_a_ledger_that_are_fifos(place: Place) -> None:
    for name in ("run.lock", "checkpoints/ledger.jsonl", "checkpoints/ACTIVE"):
        place.replace(place.run / name, os.mkfifo)


@entry
def cached_files_that_link_out(place: Place) -> None:
    """The folder is the run's own, and what stands in it leads away; so do folders that only a writer makes."""
    (place.run / ".cache").mkdir()
    for name in ("columns-1.bin", "whence.json"):
        shutil.copy(place.canary, place.outside / name)
        (place.run / ".cache" / name).symlink_to(place.outside / name)
    (place.run / "exports").symlink_to(place.outside)
    for name in ("damaged", "repair", "metrics.jsonl.bak", "metrics.jsonl.tmp"):
        (place.run / name).symlink_to(place.outside / name)
    place.append_lines(*[json.dumps(place.event("note", text="x" * 1000)).encode()] * 1200, b"damage")


@entry
def a_cache_that_is_a_second_name_of_a_file_outside(place: Place) -> None:
    (place.run / ".cache").mkdir()
    for name in ("columns-1.bin", "whence.json"):
        shutil.copy(place.canary, place.outside / name)
        (place.run / ".cache" / name).hardlink_to(place.outside / name)
    place.append_lines(*[json.dumps(place.event("note", text="x" * 1000)).encode()] * 1200)


@entry
def a_clock_in_the_year_9999(place: Place) -> None:
    """Hours before the end of the calendar, so that a local time is beyond it; and files that are as old."""
    late = 253402300799.0
    record = place.record
    record["created_at"] = "9999-12-31T23:59:59Z"
    for session in record["sessions"]:
        session |= {"started_at": "9999-12-31T23:00:00Z", "ended_at": "9999-12-31T23:59:59.999999Z"}
    place.write_record(record)
    place.write_events([event | {"ts": late} for event in place.events])
    for path in (place.run, place.run / "run.json", place.log, *place.generations):
        os.utime(path, (late, late))


@entry
def a_clock_before_the_beginning(place: Place) -> None:
    early = -62135596800.0
    record = place.record
    record["created_at"] = "0001-01-01T00:00:00Z"
    for session in record["sessions"]:
        session |= {"started_at": "0001-01-01T00:00:00Z", "ended_at": "0001-01-01T00:00:01Z"}
    place.write_record(record)
    place.write_events([event | {"ts": early} for event in place.events])
    for path in (place.run / "run.json", place.log, *place.generations):
        os.utime(path, (-1e9, -1e9))


@entry
def steps_of_two_to_the_63rd_everywhere(place: Place) -> None:
    record = place.record
    for session in record["sessions"]:
        session["last_step"] = 2**63
        session["checkpoints"] = [f"step-{2**63}-s01-00000000"]
    place.write_record(record)
    place.write_events(
        [
            event | ({"step": 2**63 - len(place.events) + n} if "step" in event else {})
            for n, event in enumerate(place.events)
        ]
    )
    first = place.generations[0]
    renamed = first.rename(first.with_name(f"step-{2**63}-s01-00000000"))
    manifest = read_manifest(renamed)
    manifest["position"] |= {"step": 2**63, "num_updates": 2**63}
    write_manifest(renamed, manifest | {"name": renamed.name})
    place.targets += [f"{place.run}@{2**63}", str(renamed)]


@entry
def keys_that_are_there_twice(place: Place) -> None:
    record = (place.run / "run.json").read_bytes().rstrip()[:-1]
    (place.run / "run.json").write_bytes(record + b', "name": "second", "sessions": [], "id": "../outside"}')
    lines = place.log.read_bytes().splitlines()
    lines[10:] = [line[:-1] + b', "kind": "note", "step": "x", "metrics": []}' for line in lines[10:]]
    place.log.write_bytes(b"\n".join(lines) + b"\n")


@entry
def folders_without_permission(place: Place) -> None:
    """Root enters them all the same; `test_what_may_not_be_entered_is_told_with_a_next_step` gives its rights away."""
    other = place.runs / "closed"
    shutil.copytree(place.run, other)
    other.chmod(0)
    (place.run / ".cache").mkdir(mode=0)
    (place.run / "checkpoints").chmod(0)
    place.targets += ["closed", str(other)]


def build(name: str, root: Path, good: Path) -> Place:
    """Copy the good run under `root`, lay out the canary, and let the entry do its harm."""
    runs = root / "runs"
    runs.mkdir(parents=True)
    run = runs / good.name
    shutil.copytree(good, run)
    outside = root / "outside"
    outside.mkdir()
    place = Place(runs, run, outside, [run.name, str(run), f"{run.name}@last"])
    place.session = place.record["sessions"][-1]["id"]
    place.canary.write_text(json.dumps({"kind": CANARY, "text": CANARY}))
    ENTRIES[name](place)
    return place
