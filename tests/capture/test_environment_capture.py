"""Environment, runtime flags, command line and data identity of a session."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from lineage.capture import environment as module
from lineage.capture.argv import capture_argv
from lineage.capture.data import BLOCK_BYTES, NUM_BLOCKS, fingerprint_files
from lineage.capture.environment import capture_environment, environment_digest
from lineage.capture.recipe import capture_recipe
from lineage.capture.runtime import capture_runtime
from lineage.capture.source import capture_source
from lineage.errors import NotFoundError, UsageError
from lineage_schemas.run import Environment


def test_the_environment_says_what_this_process_runs_on() -> None:
    found = capture_environment()
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.packages["torch"] == found.torch == torch.__version__
    assert found.packages["pydantic-core"]
    assert found.torch_git == torch.version.git_version
    assert found.threads["torch_intraop"] == torch.get_num_threads()
    assert found.num_cpus == len(os.sched_getaffinity(0))
    assert found.memory_bytes > 1 << 28
    assert found.determinism["float32_matmul_precision"] == "highest"
    assert Environment.model_validate_json(found.model_dump_json()) == found


def test_the_digest_is_the_same_until_something_changes() -> None:
    one = capture_environment(variables={"OMP_NUM_THREADS": "1"})
    assert environment_digest(one) == environment_digest(capture_environment(variables={"OMP_NUM_THREADS": "1"}))
    assert environment_digest(one) != environment_digest(capture_environment(variables={"OMP_NUM_THREADS": "2"}))
    again = Environment.model_validate_json(one.model_dump_json(exclude_none=True))
    assert environment_digest(again) == environment_digest(one)


def test_only_listed_variables_are_recorded_and_no_secret_among_them() -> None:
    found = capture_environment(
        variables={
            "AWS_SECRET_ACCESS_KEY": "abcdef", "HOME": "/home/me", "SLURM_JOB_ID": "7", "RANK": "0", "PATH": "/bin",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "PYTHONHASHSEED": "0",
            "TORCH_HUB_TOKEN": "abcdef", "NCCL_NET": "https://u:abcdef@h/", "MKL_NUM_THREADS": "many", "LD_PRELOAD": "a\udcffb",
        }
    )  # fmt: skip
    assert set(found.variables) == {
        "CUBLAS_WORKSPACE_CONFIG", "NCCL_DEBUG", "OMP_NUM_THREADS", "PYTHONHASHSEED", "TORCH_HUB_TOKEN", "NCCL_NET",
        "MKL_NUM_THREADS", "LD_PRELOAD",
    }  # fmt: skip
    assert "abcdef" not in str(found.variables)
    assert found.variables["TORCH_HUB_TOKEN"].startswith("***masked:")
    assert found.threads["omp"] == 4
    assert "mkl" not in found.threads


def test_flags_are_read_as_torch_has_them_now() -> None:
    before = capture_runtime(device=torch.device("cpu"), precision="float16", accumulation=2, world=4)
    assert (before["device"], before["precision"], before["accumulation"], before["world"]) == ("cpu", "float16", 2, 4)
    assert before["torch"] == torch.__version__
    assert before["deterministic_algorithms"] is False
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = True
    try:
        after = capture_runtime(device="cpu", precision="float16", accumulation=2, world=4)
        assert capture_environment().determinism["deterministic_algorithms"] is True
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.backends.cudnn.benchmark = False
    differ = {name for name in before if before[name] != after[name]}
    assert differ == {"deterministic_algorithms", "cudnn_benchmark"}
    assert capture_runtime(device="cuda:3")["device"] == capture_runtime(device=2)["device"] == "cuda"
    assert all(value is None or isinstance(value, bool | int | str) for value in before.values())


def test_a_program_that_mixes_old_and_new_tf32_names_is_still_recorded() -> None:
    code = (
        "import torch; torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "from lineage.capture.runtime import capture_runtime; r = capture_runtime()\n"
        "print(r['cuda_matmul_fp32_precision'], r['float32_matmul_precision'])\n"
        "torch.set_num_interop_threads(2)"
    )
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (found.stdout, found.stderr, found.returncode) == ("tf32 None\n", "", 0)


def test_without_torch_loaded_nothing_loads_it_and_all_is_quick(tmp_path: Path) -> None:
    code = """
import sys, time
from lineage.capture.argv import capture_argv
from lineage.capture.environment import capture_environment
from lineage.capture.recipe import capture_recipe
from lineage.capture.runtime import capture_runtime
from lineage.capture.source import capture_source
found = capture_environment(), capture_runtime(), capture_recipe({"a": 1}), capture_source("."), capture_argv()
assert found[0].torch is None and "torch" not in found[1]
assert found[0].packages["torch"]
print([name for name in ("torch", "numpy", "textual") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_a_folder_called_torch_is_not_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("x = 1")
    code = (
        "import torch; from lineage.capture.environment import capture_environment; print(capture_environment().torch)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout == "None\n"


def test_everything_together_takes_less_than_a_second(tmp_path: Path) -> None:
    def capture() -> float:
        begun = time.perf_counter()
        capture_environment()
        capture_runtime()
        capture_recipe({"api_key": f"{begun}", "layers": [{"d": n} for n in range(500)]})
        capture_source(Path(__file__).parent, tmp_path / "s.patch")
        capture_argv(["x", "--token", f"{begun}"])
        return time.perf_counter() - begun

    assert min(capture() for _ in range(3)) < 1.0


def test_gpus_and_driver_are_read_from_the_driver_without_a_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(2):
        folder = tmp_path / "gpus" / f"0000:0{n}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H{n}00\nIRQ:   \t\t 1\n")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x)\nGCC version: gcc 11\n"
    )
    monkeypatch.setattr(module, "_NVIDIA", tmp_path)
    found = capture_environment()
    assert found.driver == "570.86.15"
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA H000", "NVIDIA H100"]
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n")
    assert capture_environment().driver == "535.183.01"


def test_a_command_line_is_masked_and_printable() -> None:
    found = capture_argv(["train.py", "--api-key", "hunter22", "a\udcffb", "--lr=3"])
    assert found[2].startswith("***masked:")
    assert [*found[:2], *found[3:]] == ["train.py", "--api-key", "a\\xffb", "--lr=3"]
    assert capture_argv() == [str(item) for item in sys.argv]


# --- data ---


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "a.bin").write_bytes(bytes(range(256)) * 8192)
    (folder / "train" / "b.bin").write_bytes(b"b" * 1000)
    (folder / "c.txt").write_text("c")
    (folder / "empty").touch()
    return folder


@pytest.mark.parametrize("content", ["sampled", "whole"])
def test_the_same_files_elsewhere_and_in_another_order_are_the_same_data(
    dataset: Path, tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [path for path in dataset.rglob("*") if path.is_file()]
    found = fingerprint_files(dataset, content=content)
    assert (found.num_files, found.size_bytes) == (4, 256 * 8192 + 1001)
    assert found.method == ("sampled" if content == "sampled" else "content")
    assert fingerprint_files([dataset], content=content) == found
    assert fingerprint_files(reversed(files), content=content) == found
    assert fingerprint_files([*files, str(files[0])], content=content) == found
    shutil.copytree(dataset, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert fingerprint_files("moved", content=content) == found


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("content", ["sampled", "whole"])
def test_every_change_of_name_size_or_ends_is_another_fingerprint(dataset: Path, content: str) -> None:
    seen = {fingerprint_files(dataset, content=content).fingerprint}
    big = dataset / "train" / "a.bin"
    size = big.stat().st_size
    changes = [
        lambda: flip(big, 0),
        lambda: flip(big, size - 1),
        lambda: flip(dataset / "train" / "b.bin", 500),
        lambda: (dataset / "c.txt").rename(dataset / "d.txt"),
        (dataset / "empty").unlink,
        lambda: big.write_bytes(big.read_bytes() + b"x"),
        lambda: (dataset / "train").rename(dataset / "valid"),
    ]
    for change in changes:
        change()
        seen.add(fingerprint_files(dataset, content=content).fingerprint)
    assert len(seen) == len(changes) + 1


def test_a_sample_reads_the_documented_blocks_and_whole_reads_all(dataset: Path) -> None:
    big = dataset / "train" / "a.bin"
    size = big.stat().st_size
    starts = [block * (size - BLOCK_BYTES) // 7 for block in range(NUM_BLOCKS)]
    data = big.read_bytes()
    digest = hashlib.sha256(b"".join(data[start : start + BLOCK_BYTES] for start in starts)).hexdigest()
    text = f"a.bin\0{size}\0{digest}\n".encode()
    assert fingerprint_files(big).fingerprint == f"sampled-1:{hashlib.sha256(text).hexdigest()}"
    text = f"a.bin\0{size}\0{hashlib.sha256(data).hexdigest()}\n".encode()
    assert fingerprint_files(big, content="whole").fingerprint == f"whole-1:{hashlib.sha256(text).hexdigest()}"
    sampled, whole = fingerprint_files(big), fingerprint_files(big, content="whole")
    flip(big, starts[1] - 1)
    assert fingerprint_files(big) == sampled
    assert fingerprint_files(big, content="whole") != whole


def test_missing_files_are_counted_and_named(dataset: Path) -> None:
    with pytest.raises(NotFoundError, match=r"2 of 3 data files are not there: .*gone, .*lost") as refused:
        fingerprint_files([dataset / "c.txt", dataset / "gone", dataset / "c.txt" / "lost"])
    assert refused.value.hint
    with pytest.raises(UsageError):
        fingerprint_files([])
    (dataset / "nothing").mkdir()
    with pytest.raises(UsageError):
        fingerprint_files(dataset / "nothing")
    with pytest.raises(UsageError):
        fingerprint_files(dataset, content="hashed")


def test_a_fifo_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe"):
        fingerprint_files([tmp_path / "pipe"])


def test_capturing_leaves_no_thread_behind(dataset: Path) -> None:
    before = threading.active_count()
    fingerprint_files(dataset)
    capture_source(dataset)
    assert threading.active_count() == before
