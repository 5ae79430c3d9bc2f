"""Which session made this file: moved folders, copied artifacts, re-saved tensors, and hostile files that run nothing."""

from __future__ import annotations

import collections
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402  # after the skip

from lineage.checkpoint.discover import discover  # noqa: E402
from lineage.checkpoint.export import export_weights  # noqa: E402
from lineage.checkpoint.registry import Registry  # noqa: E402
from lineage.checkpoint.store import CheckpointStore, SaveContext  # noqa: E402
from lineage.errors import FormatError, NotFoundError  # noqa: E402
from lineage.history.torchfile import read_torch_file  # noqa: E402
from lineage.history.whence import read_index, tensor_digests, whence  # noqa: E402
from lineage.layout import RunDir  # noqa: E402
from lineage_schemas import checkpoint as schema  # noqa: E402
from lineage_schemas.checkpoint import Position, RecipePoint  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(300, 64)
        self.head = torch.nn.Linear(64, 300, bias=False)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.BatchNorm1d(64)
        self.scale = torch.nn.Parameter(torch.rand(5).bfloat16())
        self.register_buffer("empty", torch.zeros(0))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, list[Any], list[dict[str, Any]]]:
    """Two runs, three generations each in two sessions; their states."""
    saved, states = [], []
    for run in ("one", "two"):
        folder = tmp_path / "runs" / run
        folder.mkdir(parents=True)
        model = Net()
        registry = Registry()
        registry.track("model", model)
        registry.absent("loader", "none")
        registry.absent("scaler", "none")
        store = CheckpointStore(folder, registry)
        parent = None
        for step, session in ((1, 1), (2, 1), (3, 2)):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.rand_like(parameter))
            context = SaveContext(
                run=run,
                session=f"s0{session}-00000000",
                ordinal=session,
                parent=parent if session > 1 else None,
                recipe=RecipePoint(fingerprint="a" * 64),
                code={"commit": "c0ffee"},
            )
            saved.append(store.save(Position(step=step, num_updates=step), context))
            states.append({k: v.clone() for k, v in model.state_dict().items()})
            parent = saved[-1].name
        export_weights(RunDir(folder), registry, "final", Position(step=3, num_updates=3), context)
    return tmp_path / "runs", saved, states


def only(path: Path, runs_dir: Path, how: str, saved: Any) -> None:
    found = whence(path, [runs_dir])
    first = found.matches[0]
    assert (first.run, first.checkpoint, first.step, first.how) == (
        saved.manifest.run.run,
        saved.name,
        saved.manifest.position.step,
        how,
    )
    assert (first.recipe, first.commit) == ("a" * 64, "c0ffee")
    others = [m.checkpoint for m in found.matches[1:]]
    assert others in ([], ["final"]), "no other generation answers"


def test_a_folder_names_itself_wherever_it_was_moved(runs: Any, tmp_path: Path) -> None:
    runs_dir, saved, _ = runs
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    shutil.move(saved[4].path, moved)
    only(moved, runs_dir, "manifest", saved[4])
    only(moved / "manifest.json", runs_dir, "manifest", saved[4])


@pytest.mark.parametrize("name", ["model.r00000.safetensors", "state.r00000.json"])
def test_a_copied_artifact_is_known_by_its_hash(name: str, runs: Any, tmp_path: Path) -> None:
    runs_dir, saved, _ = runs
    copied = tmp_path / "something.bin"
    shutil.copy(saved[1].path / name, copied)
    only(copied, runs_dir, "artifact", saved[1])


def _prefixed(state: dict[str, Any]) -> dict[str, Any]:
    return {f"module._orig_mod.{name}": value for name, value in state.items()}


RESAVES: dict[str, Any] = {
    "torch.save": torch.save,
    "torch.save of an OrderedDict": lambda state, path: torch.save(collections.OrderedDict(state), path),
    "torch.save with prefixes": lambda state, path: torch.save(_prefixed(state), path),
    "torch.save with more around it": lambda state, path: torch.save(
        {"epoch": 3, "model": state, "optimizer": {"state": {0: {"step": torch.ones(3)}}}, "args": {"lr": 0.1}}, path
    ),
    "torch.save of parameters": lambda state, path: torch.save(
        {k: torch.nn.Parameter(v, requires_grad=False) for k, v in state.items()}, path
    ),
    "torch.save of transposed memory": lambda state, path: torch.save(
        {k: v.T.contiguous().T if v.dim() == 2 else v for k, v in state.items()}, path
    ),
    "safetensors": lambda state, path: save_file({k: v.clone() for k, v in _prefixed(state).items()}, path),
}


@pytest.mark.parametrize("kind", RESAVES)
def test_the_same_tensors_are_known_under_any_name(kind: str, runs: Any, tmp_path: Path) -> None:
    runs_dir, saved, states = runs
    path = tmp_path / "final-v2-really.ckpt"
    RESAVES[kind](states[3], path)
    only(path, runs_dir, "tensors", saved[3])


def test_a_whole_module_saved_by_pickle_is_known_and_its_class_never_imported(runs: Any, tmp_path: Path) -> None:
    runs_dir, saved, states = runs
    model = Net()
    model.load_state_dict(states[2])
    path = tmp_path / "module.pt"
    torch.save(model, path)
    only(path, runs_dir, "tensors", saved[2])


def test_a_part_of_the_tensors_is_told_from_all_of_them(runs: Any, tmp_path: Path) -> None:
    runs_dir, saved, states = runs
    path = tmp_path / "part.pt"
    torch.save({"scale": states[0]["scale"], "w": states[0]["embed.weight"]}, path)
    only(path, runs_dir, "some tensors", saved[0])


def test_tensors_nobody_made_are_unknown_and_another_dtype_is_another_file(runs: Any, tmp_path: Path) -> None:
    runs_dir, _, states = runs
    path = tmp_path / "x.pt"
    torch.save({k: v.half() if v.is_floating_point() else v for k, v in states[0].items()}, path)
    found = whence(path, [runs_dir])
    assert found.matches == ()
    assert "looked at 8 generations of 2 runs" in found.notes[0]


def test_an_export_names_the_step_it_came_from(runs: Any) -> None:
    runs_dir, saved, _ = runs
    found = whence(runs_dir / "two" / "exports" / "final" / "model.safetensors", [runs_dir])
    assert [(m.checkpoint, m.kind, m.step) for m in found.matches] == [("final", "weights", 3)]
    assert saved[5].name in [a.checkpoint for a in whence(saved[5].path, [runs_dir]).ancestry]


def test_the_chain_of_parents_goes_back_to_the_first_session(runs: Any) -> None:
    runs_dir, saved, _ = runs
    found = whence(saved[2].path, [runs_dir])
    assert [(a.session, a.checkpoint, a.step) for a in found.ancestry] == [
        ("s02-00000000", saved[2].name, 3),
        ("s01-00000000", saved[1].name, 2),
    ]


def test_the_chain_crosses_from_a_fork_to_the_run_it_came_from(tmp_path: Path) -> None:
    """By run.json, as the hook writes it: session 2 of a fork, its session 1, and the run it was forked from."""
    import lineage

    def session(name: str, until: int, **more: Any) -> Any:
        model = torch.nn.Linear(2, 2)
        with lineage.init(tmp_path / "runs", name=name, recipe={"lr": 1}, **more) as run:
            run.track(model=model)
            run.absent("loader", "none")
            run.absent("scaler", "none")
            run.restore()
            for _ in run.steps(until):
                with torch.no_grad():
                    model.weight += 1
                run.log(loss=0.0)
            saved = run.checkpoint()
            return run, saved

    first_run, first = session("base", 2, resume="never")
    fork, second = session("fork", 4, resume=first.path, fork=True)
    _, third = session("fork", 6, resume=fork.path)
    found = whence(third.path / "model.r00000.safetensors", [tmp_path / "runs"])
    assert [(a.run, a.checkpoint, a.step) for a in found.ancestry] == [
        (fork.id, third.name, 6),
        (fork.id, second.name, 4),
        (first_run.id, first.name, 2),
    ]
    assert len({a.session for a in found.ancestry}) == 3


# ---- the index -------------------------------------------------------------------------------------------------------


def test_the_index_is_used_and_never_needed(runs: Any, tmp_path: Path) -> None:
    runs_dir, saved, states = runs
    run = RunDir(runs_dir / "one")
    path = tmp_path / "x.pt"
    torch.save(states[1], path)
    cold = whence(path, [runs_dir])
    cache = run.cache_dir / "whence.json"
    assert cache.is_file()
    assert whence(path, [runs_dir]) == cold
    for damage in (b"", b"{", b"[]", b'{"version":99}', b'{"version":1,"generations":{"x":1}}', b"\0" * 100):
        cache.write_bytes(damage)
        assert whence(path, [runs_dir]) == cold
    shutil.rmtree(saved[1].path)
    assert [m.checkpoint for m in whence(path, [runs_dir]).matches] == []


def test_a_generation_that_was_changed_is_read_again(runs: Any) -> None:
    runs_dir, saved, _ = runs
    run = RunDir(runs_dir / "one")
    assert len(read_index(run)) == 4
    manifest = saved[0].path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    assert saved[0].name not in [known.name for known in read_index(run)]


def test_a_thousand_generations_are_searched_in_well_under_a_second(runs: Any, tmp_path: Path) -> None:
    """From a warm index; the first search builds it."""
    runs_dir, saved, states = runs
    template = (saved[0].path / "manifest.json").read_bytes()
    many = tmp_path / "many"
    for run in range(10):
        for step in range(100):
            folder = many / f"run{run}" / "checkpoints" / f"step-{step:08d}-s01-{run * 100 + step:08x}"
            folder.mkdir(parents=True)
            manifest = orjson.loads(template)
            manifest["name"] = folder.name
            for artifact in manifest["artifacts"]:
                artifact["sha256"] = hashlib.sha256(f"{run}{step}{artifact['path']}".encode()).hexdigest()
                for info in artifact["tensors"].values():
                    info["digest"] = hashlib.sha256(f"{run}{step}{info}".encode()).hexdigest()[:32]
            data = orjson.dumps(manifest)
            (folder / "manifest.json").write_bytes(data)
            (folder / "COMMIT").write_bytes(schema.format_commit(hashlib.sha256(data).hexdigest()))
    path = tmp_path / "x.pt"
    torch.save(states[4], path)
    assert whence(path, [many]).matches == ()
    cpu = time.process_time()
    assert "1000 generations" in whence(path, [many]).notes[0]
    assert time.process_time() - cpu < 0.8
    assert whence(path, [many, runs_dir]).matches[0].checkpoint == saved[4].name


# ---- hostile files ---------------------------------------------------------------------------------------------------


class Bomb:
    """Runs a command when it is unpickled, as an attacker's file would."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.flag}",)


def _zip(path: Path, members: dict[str, bytes], **more: Any) -> None:
    with zipfile.ZipFile(path, "w", **more) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_code_in_a_pickle_is_never_run(runs: Any, tmp_path: Path) -> None:
    """The tensors beside it are still read: the machine steps over what it does not know."""
    runs_dir, saved, states = runs
    flag, path = tmp_path / "owned", tmp_path / "hostile.pt"
    torch.save({"bomb": Bomb(flag), "model": states[2], "after": Bomb(flag)}, path)
    only(path, runs_dir, "tensors", saved[2])
    assert not flag.exists()
    os.system(f"touch {flag}")
    assert flag.exists(), "the bomb would have worked"


PICKLES: dict[str, bytes] = {
    "a call of os.system": b"cos\nsystem\n(S'touch FLAG'\ntR.",
    "an instance of subprocess.Popen": b"(S'touch FLAG'\nisubprocess\nPopen\n.",
    "a build with a hostile state": b'cbuiltins\nexec\n(S\'open("FLAG","w")\'\ntR}b.',
    "a new object by class": b"\x80\x02cbuiltins\neval\n(S'1'\nt\x81.",
    "a lone mark": b"(t.",
    "popping an empty stack": b"0.",
    "a memo that is not there": b"h\x05.",
    "an unknown opcode": b"\xff.",
    "no end": b"}",
    "nothing": b"",
    "an extension": b"\x82\x01.",
    "a huge length": b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a list in itself": b"]q\x00h\x00a.",
}


@pytest.mark.parametrize("what", PICKLES)
def test_a_hostile_pickle_is_refused_or_read_as_nothing(what: str, tmp_path: Path) -> None:
    flag, path = tmp_path / "owned", tmp_path / "x.pt"
    _zip(path, {"archive/data.pkl": PICKLES[what].replace(b"FLAG", str(flag).encode())})
    try:
        assert list(tensor_digests(path)) == []
    except FormatError as error:
        assert str(path) in str(error)  # noqa: PT017  # refused or empty, both are right
    assert not flag.exists()


def _persistent(num_items: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> bytes:
    """A pickle of one float tensor over storage 0, with the numbers given."""

    class Storage:
        pass

    def rebuild() -> None: ...

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", Kind, "0", "cpu", num_items) if isinstance(obj, Storage) else None

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, Tensor):
                return rebuild, (Storage(), offset, shape, strides, False, None)
            return NotImplemented

    class Tensor:
        pass

    class Kind:
        pass

    for item, module, name in ((Kind, "torch", "FloatStorage"), (rebuild, "torch._utils", "_rebuild_tensor_v2")):
        item.__module__, item.__qualname__, item.__name__ = module, name, name
    import io

    out = io.BytesIO()
    patched = {"torch": Kind, "torch._utils": rebuild}
    torch_utils = sys.modules["torch._utils"]
    old = (torch.FloatStorage, torch_utils._rebuild_tensor_v2)
    try:
        torch.FloatStorage, torch_utils._rebuild_tensor_v2 = patched["torch"], patched["torch._utils"]
        Pickler(out, 2).dump({"w": Tensor()})
    finally:
        torch.FloatStorage, torch_utils._rebuild_tensor_v2 = old
    return out.getvalue()


@pytest.mark.parametrize(
    ("numbers", "refused"),
    [
        ((4, (2, 2), (2, 1)), False),
        ((4, (10**12,), (1,)), True),
        ((4, (2, 2), (2, 1), 3), True),
        ((4, (2, 2), (2, 1), -1), True),
        ((4, (10**6, 10**6), (0, 0)), False),
        ((4, (2, -2), (2, 1)), False),
    ],
    ids=["honest", "terabytes", "past the end", "before the start", "expanded for ever", "negative"],
)
def test_a_forged_tensor_never_reads_outside_of_its_storage(
    numbers: tuple[Any, ...], refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    _zip(path, {"a/data.pkl": _persistent(*numbers), "a/data/0": b"\0" * 16})
    if refused:
        with pytest.raises(FormatError, match="outside"):
            list(read_torch_file(path))
    else:
        assert sum(len(t.data) for t in read_torch_file(path)) <= 16


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    _zip(path, {"a/data.pkl": b"\0" * 10_000_000}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="compressed"):
        list(read_torch_file(path))


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04 cut", b"hello", b"\0" * 100], ids=["empty", "cut-zip", "text", "zeros"]
)
def test_what_is_no_tensor_file_says_so(data: bytes, runs: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        whence(path, [runs[0]])


def test_a_cut_torch_file_is_refused_at_any_length(runs: Any, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.pt", tmp_path / "cut.pt"
    torch.save(runs[2][0], whole)
    data = whole.read_bytes()
    for cut in range(0, len(data), len(data) // 20):
        path.write_bytes(data[:cut])
        with pytest.raises(FormatError):
            whence(path, [runs[0]])


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        whence(tmp_path / "missing", [])
    with pytest.raises(NotFoundError, match="no checkpoint"):
        whence(tmp_path, [])


# ---- the commands ----------------------------------------------------------------------------------------------------


def lineage(*words: str, cwd: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "lineage", *words], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_the_verbs_on_a_run_of_their_own(runs: Any, tmp_path: Path) -> None:
    """verify finds a flipped bit by name and both hashes; checkpoints, pin, prune and whence answer in JSON."""
    runs_dir, saved, states = runs
    run = str(runs_dir / "one")
    code, out, _ = lineage("verify", run, "--json", cwd=tmp_path)
    assert (code, [g["ok"] for g in orjson.loads(out)["generations"]]) == (0, [True] * 3)
    code, out, _ = lineage("checkpoints", run, "--json", cwd=tmp_path)
    listed = orjson.loads(out)["generations"]
    assert code == 0
    assert [g["step"] for g in listed] == [3, 2, 1, 3]
    assert {"name", "step", "session", "bytes", "kind", "committed_at", "verified_at", "restored_at", "pinned"} <= set(
        listed[0]
    )
    assert lineage("checkpoints", run, "pin", "1", cwd=tmp_path)[0] == 0
    code, out, _ = lineage("checkpoints", run, "prune", "--keep", "1", "--dry-run", "--json", cwd=tmp_path)
    assert orjson.loads(out)["delete"] == [saved[1].name]
    assert len(discover(runs_dir / "one").candidates) == 3
    assert lineage("checkpoints", run, "prune", "--keep", "1", "--force", cwd=tmp_path)[0] == 0
    assert [c.step for c in discover(runs_dir / "one").candidates] == [3, 1]
    torch.save(states[2], tmp_path / "foo.pt")
    code, out, _ = lineage("--runs", "runs", "whence", "foo.pt", "--json", cwd=tmp_path)
    answer = orjson.loads(out)
    assert code == 0
    assert answer["matches"][0] | {"recipe": "", "kind": ""} == {
        "run": "one",
        "session": "s02-00000000",
        "step": 3,
        "checkpoint": saved[2].name,
        "how": "tensors",
        "kind": "",
        "recipe": "",
        "commit": "c0ffee",
    }
    path = saved[0].path / "model.r00000.safetensors"
    data = bytearray(path.read_bytes())
    before = hashlib.sha256(data).hexdigest()
    data[-3] ^= 4
    path.write_bytes(data)
    code, out, _ = lineage("verify", run, cwd=tmp_path)
    assert code == 1
    line = next(line for line in out.splitlines() if line.startswith("flipped"))
    assert f"{saved[0].name}/model.r00000.safetensors" in line
    assert before in line
    assert hashlib.sha256(data).hexdigest() in line
    assert lineage("verify", run, "--newest", cwd=tmp_path)[0] == 0
    assert lineage("verify", str(tmp_path / "nothing"), cwd=tmp_path)[0] == 3
    assert lineage("whence", str(tmp_path / "nothing"), cwd=tmp_path)[0] == 3
