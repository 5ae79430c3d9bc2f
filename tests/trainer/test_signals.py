"""Who hears SIGTERM and SIGUSR1, and who does not: processes that were told to ignore them, and forked ones."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lineage
from lineage.trainer.signals import PREEMPTION_SIGNALS, Preemption

LOOP = """
    import os, signal, sys
    import lineage

    run = lineage.init(sys.argv[1], name="a", recipe={}, resume="never")
    for step in run.steps(3):
        run.log(loss=1.0)
        os.kill(os.getpid(), signal.Signals[sys.argv[2]])
    run.finish()
"""

FORKING = """
    import os, signal, sys, time
    import lineage

    if "own" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    run = lineage.init(sys.argv[1], name="a", recipe={}, resume="never")
    for step in run.steps(2):
        run.log(loss=1.0)
        if step == 1:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(write, b"x")
                time.sleep(60)
                os._exit(0)
            os.read(read, 1)
            os.kill(child, signal.Signals[sys.argv[2]])
            if sys.argv[2] == "SIGUSR1":
                time.sleep(0.2)
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "a notice to the group ends no worker"
                os.kill(child, signal.SIGKILL)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    run.finish()
"""


def train(tmp_path: Path, script: str, *arguments: str, ignored: str = "") -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "runs"), *arguments]
    if ignored:
        command = ["sh", "-c", f"trap '' {ignored.removeprefix('SIG')}; exec \"$@\"", "sh", *command]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran


def view(tmp_path: Path) -> lineage.RunView:
    return lineage.read(next((tmp_path / "runs").iterdir()))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_that_the_process_was_started_to_ignore_stays_ignored(tmp_path, name) -> None:
    train(tmp_path, LOOP, name, ignored=name)
    assert (view(tmp_path).state, view(tmp_path).last_step) == ("completed", 3)


def test_the_other_signal_is_heard_all_the_same(tmp_path) -> None:
    train(tmp_path, LOOP, "SIGUSR1", ignored="SIGTERM")
    assert (view(tmp_path).state, view(tmp_path).last_step) == ("preempted", 1)


def test_what_was_ignored_before_the_loop_is_ignored_after_it() -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in PREEMPTION_SIGNALS}
    try:
        preemption = Preemption()
        preemption.install()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not preemption.asked
        preemption.restore()
        assert {signal.getsignal(number) for number in PREEMPTION_SIGNALS} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["SIGTERM"], -signal.SIGTERM), (["SIGTERM", "own"], 7), (["SIGUSR1"], -signal.SIGKILL)],
    ids=["SIGTERM", "with-its-own-handler", "SIGUSR1"],
)
def test_a_process_forked_in_the_loop_is_ended_by_sigterm_and_not_by_a_notice(tmp_path, arguments, code) -> None:
    ran = train(tmp_path, FORKING, *arguments)
    assert ran.stdout == f"{code}\n"
    assert view(tmp_path).state == "completed"


WORKERS = """
    import sys, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    import lineage

    data = TensorDataset(torch.zeros(4096, 8))
    model = torch.nn.Linear(8, 1)
    sampler = lineage.ResumableSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2)
    run = lineage.init(sys.argv[1], name="a", recipe={}, resume="auto")
    run.track(model=model, train_loader=loader)
    run.absent("optimizer", "none here")
    run.restore()
    run_began = run.step
    batches = run.batches(loader)
    for step in run.steps(10_000):
        (inputs,) = next(batches)
        run.log(loss=model(inputs).mean().detach())
        if step == run_began + 3:
            print("go", flush=True)
        time.sleep(0.02)
"""


def test_sigusr1_to_the_whole_group_preempts_and_ends_no_worker_of_a_first_or_a_resumed_session(tmp_path) -> None:
    """Sent from outside of the group, as a scheduler sends it. A resume forks its workers before the loop listens."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(textwrap.dedent(WORKERS))
    for session in (1, 2):
        command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "runs")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"go\n"
                os.killpg(process.pid, signal.SIGUSR1)
                _, errors = process.communicate(timeout=120)
            finally:
                process.kill()
        assert process.returncode == 0, errors
        assert [s.status for s in view(tmp_path).record.sessions] == ["preempted"] * session
        assert len(view(tmp_path).events("checkpoint_saved")) == session
