"""One process writes a run, and its death frees the lock at once."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from lineage.errors import LockedError
from lineage.runs import lock as lock_module
from lineage.runs.lock import LockOwner, RunLock, probe

HOLD = """
import os, sys
from pathlib import Path
from lineage.runs.lock import RunLock
lock = RunLock.acquire(Path(sys.argv[1]), sys.argv[2])
print(os.getpid(), flush=True)
sys.stdin.readline()
"""


def test_a_second_writer_is_told_the_owners_pid_host_and_session(tmp_path: Path, start_child) -> None:
    child = start_child(HOLD, tmp_path, "s01-00000001")
    pid = int(child.stdout.readline())
    with pytest.raises(LockedError) as refused:
        RunLock.acquire(tmp_path, "s02-00000002", retry_s=0.1)
    assert (refused.value.pid, refused.value.host, refused.value.session) == (pid, socket.gethostname(), "s01-00000001")
    for fact in (str(pid), socket.gethostname(), "s01-00000001"):
        assert fact in str(refused.value)
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.pid, again.session, str(again)) == (pid, "s01-00000001", str(refused.value))


def test_the_lock_of_a_sigkilled_owner_is_free_at_once(tmp_path: Path, start_child) -> None:
    child = start_child(HOLD, tmp_path, "s01-00000001")
    child.stdout.readline()
    assert probe(tmp_path) is not None
    child.kill()
    child.wait()
    assert probe(tmp_path) is None
    assert (tmp_path / "run.lock").read_bytes()  # the dead owner's words are still there, and nobody believes them
    begun = time.monotonic()
    lock = RunLock.acquire(tmp_path, "s02-00000002")
    assert time.monotonic() - begun < 0.5
    assert probe(tmp_path) == lock.owner
    lock.close()


WITH_WORKERS = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from lineage.runs.lock import RunLock
def work(pipe):
    pipe.send(os.getpid())
    time.sleep(600)
lock = RunLock.acquire(Path(sys.argv[1]), "s01-00000001")
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
pids = []
for _ in range(3):
    context.Process(target=work, args=(theirs,)).start()
    pids.append(ours.recv())
if os.fork() == 0:
    theirs.send(os.getpid())
    time.sleep(600)
pids.append(ours.recv())
print(*pids, flush=True)
time.sleep(600)
"""


def test_workers_that_outlive_a_sigkilled_trainer_do_not_keep_its_lock(tmp_path: Path, start_child) -> None:
    trainer = start_child(WITH_WORKERS, tmp_path)
    workers = [int(pid) for pid in trainer.stdout.readline().split()]
    try:
        assert len(workers) == 4
        assert probe(tmp_path) is not None
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
        assert probe(tmp_path) is None
        RunLock.acquire(tmp_path, "s02-00000002", retry_s=0).close()
        for pid in workers:
            os.kill(pid, 0)  # raises when the worker is gone: then this test has shown nothing
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)


def test_a_forked_child_neither_holds_the_lock_nor_frees_it(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path, "s01-00000001")
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            held = lock.held
            lock.close()
            code = 1 if held else 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert lock.held
    assert probe(tmp_path) == lock.owner
    lock.close()
    assert probe(tmp_path) is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forking_while_other_threads_take_and_probe_locks_leaks_no_lock(tmp_path: Path) -> None:
    """The child closes whatever was open at that instant; a leaked descriptor would keep one of the runs locked."""
    stop = threading.Event()

    def churn(folder: Path) -> None:
        folder.mkdir()
        while not stop.is_set():
            RunLock.acquire(folder, "s01-00000001").close()
            probe(folder)

    threads = [threading.Thread(target=churn, args=(tmp_path / str(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    pids = []
    try:
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                os._exit(1 if "run.lock" in " ".join(open_files()) else 0)
            pids.append(pid)
            time.sleep(0.002)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 30


def open_files() -> list[str]:
    """Where this process's descriptors lead."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one this very listing uses
            found.append(str(link.readlink()))
    return found


RACE = """
import sys, time
from pathlib import Path
from lineage.errors import LockedError
from lineage.runs import lock as lock_module
from lineage.runs.lock import RunLock
print("ready", flush=True)
for line in sys.stdin:
    folder, at = line.split()
    time.sleep(max(0.0, float(at) - time.time()))
    try:
        lock = RunLock.acquire(Path(folder), sys.argv[1], retry_s=0.02)
    except LockedError as refused:
        print("lost", refused.session, flush=True)
    else:
        print("won", sys.argv[1], flush=True)
        sys.stdin.readline()
        lock.close()
        print("left", flush=True)
"""


def test_of_two_processes_racing_for_a_run_exactly_one_wins(tmp_path: Path, start_child) -> None:
    names = ("s01-aaaaaaaa", "s01-bbbbbbbb")
    racers = [start_child(RACE, name) for name in names]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 2
    winners = []
    for number in range(60):
        folder = tmp_path / str(number)
        folder.mkdir()
        for racer in racers:
            racer.stdin.write(f"{folder} {time.time() + 0.01}\n")
            racer.stdin.flush()
        results = [racer.stdout.readline().split() for racer in racers]
        assert sorted(word for word, _ in results) == ["lost", "won"], results
        (winner,) = (name for word, name in results if word == "won")
        (named,) = (name for word, name in results if word == "lost")
        # A loser that comes in the instant between lock and text is told no session rather than a wrong one.
        assert named in {winner, "None"}
        winners.append(winner)
        racer = racers[names.index(winner)]
        racer.stdin.write("\n")
        racer.stdin.flush()
        assert racer.stdout.readline() == "left\n"
    assert set(winners) == set(names), "one side won every round: that was no race"


def test_readers_that_probe_all_the_time_do_not_keep_a_writer_out(tmp_path: Path) -> None:
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            probe(tmp_path)

    RunLock.acquire(tmp_path).close()
    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(30):
            RunLock.acquire(tmp_path, "s01-00000001").close()
    finally:
        stop.set()
        for reader in readers:
            reader.join()


def test_a_lock_file_removed_under_its_owner_is_not_shared_by_two_later_ones(tmp_path: Path) -> None:
    first = RunLock.acquire(tmp_path, "s01-00000001")
    (tmp_path / "run.lock").unlink()
    second = RunLock.acquire(tmp_path, "s02-00000002")
    with pytest.raises(LockedError):
        RunLock.acquire(tmp_path, "s03-00000003", retry_s=0)
    first.close()
    with pytest.raises(LockedError, match=re.escape("s02-00000002")):
        RunLock.acquire(tmp_path, "s03-00000003", retry_s=0)
    second.close()


@pytest.mark.parametrize(
    "text", [b"", b"\0" * 50, b"{", b"[1]", b'{"pid": "x", "host": 3, "session": []}', b"\xff" * 9000]
)
def test_whatever_stands_in_the_file_of_a_held_lock_it_is_held(tmp_path: Path, text: bytes) -> None:
    lock = RunLock.acquire(tmp_path, "s01-00000001")
    (tmp_path / "run.lock").write_bytes(text)
    assert probe(tmp_path) == LockOwner()
    with pytest.raises(LockedError, match="another process"):
        RunLock.acquire(tmp_path, retry_s=0)
    lock.close()


def test_a_fifo_in_the_place_of_the_lock_does_not_hang_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.lock")
    assert probe(tmp_path) is None


def test_a_folder_without_a_lock_file_is_free_and_stays_untouched(tmp_path: Path) -> None:
    assert probe(tmp_path) is None
    assert probe(tmp_path / "missing") is None
    assert list(tmp_path.iterdir()) == []


def test_a_lock_on_a_file_removed_before_it_was_taken_is_not_believed(tmp_path: Path, monkeypatch) -> None:
    """Between our open and our lock somebody removes the file: our lock would be one that nobody else looks at."""
    real, opened = lock_module._open, []

    def open_and_lose(path: Path, flags: int) -> int:
        fd = real(path, flags)
        if not opened:
            path.unlink()
        opened.append(fd)
        return fd

    with monkeypatch.context() as patch:
        patch.setattr(lock_module, "_open", open_and_lose)
        lock = RunLock.acquire(tmp_path, "s01-00000001")
    assert len(opened) == 2
    assert probe(tmp_path) == lock.owner
    lock.close()
