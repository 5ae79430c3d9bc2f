"""The revision a session ran from, and a repository that tries to run code while it is asked."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from lineage.capture import source as module
from lineage.capture.source import capture_source


def git(folder: Path, *arguments: str, **kwargs: str) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        **kwargs,
    }  # fmt: skip
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    (folder / "train.py").write_text("print(1)\n")
    (folder / ".gitignore").write_text("ignored\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_clean_tree_has_a_commit_and_no_patch(repo: Path, tmp_path: Path) -> None:
    (repo / "sub").mkdir()
    source = capture_source(repo / "sub", tmp_path / "run" / "source" / "s01-0.patch")
    assert source.commit == git(repo, "rev-parse", "HEAD").strip()
    assert (source.branch, source.dirty, source.root, source.num_untracked) == ("trunk", False, "project", 0)
    assert (source.patch, source.patch_sha256, source.patch_bytes, source.remote, source.problem) == (None,) * 5
    assert not (tmp_path / "run").exists()


def test_the_patch_of_a_dirty_tree_rebuilds_it(repo: Path, tmp_path: Path) -> None:
    (repo / "train.py").write_bytes(b"print(2)\r\n\xff no newline")
    (repo / "blob").write_bytes(bytes(range(256)) * 20)
    git(repo, "add", "blob")
    for n in range(3):
        (repo / f"notes{n}").write_text("x")
    (repo / "ignored").write_text("x")
    path = tmp_path / "run" / "source" / "s01-0.patch"
    (repo / "deep").mkdir()
    source = capture_source(repo / "deep", path)
    assert source.dirty
    assert source.num_untracked == 3
    assert source.patch == "source/s01-0.patch"
    assert source.patch_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.patch_bytes == path.stat().st_size
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", str(repo), str(copy))
    git(copy, "apply", str(path))
    for name in ("train.py", "blob"):
        assert (copy / name).read_bytes() == (repo / name).read_bytes()
    assert capture_source(repo).patch_sha256 == source.patch_sha256


def test_a_patch_over_the_limit_is_known_by_digest_and_size_only(repo: Path, tmp_path: Path) -> None:
    (repo / "train.py").write_text("".join(f"line {n}\n" for n in range(40_000)))
    path = tmp_path / "s.patch"
    source = capture_source(repo, path, patch_limit=10_000)
    diff = subprocess.run(["git", *module._DIFF], cwd=repo, capture_output=True).stdout
    assert len(diff) > 400_000
    assert (source.patch, source.patch_bytes, source.patch_sha256) == (
        None,
        len(diff),
        hashlib.sha256(diff).hexdigest(),
    )
    assert "limit" in source.problem
    assert not path.exists()


def test_a_detached_head_has_no_branch(repo: Path) -> None:
    git(repo, "checkout", "-q", "--detach")
    source = capture_source(repo)
    assert source.commit
    assert source.branch is None


def test_a_repository_without_a_commit_says_so(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "x").write_text("x")
    source = capture_source(tmp_path)
    assert (source.commit, source.branch, source.num_untracked, source.problem) == (None, "trunk", 1, "no commit yet")


def test_outside_of_git_or_without_git_there_is_a_reason_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = capture_source(tmp_path)
    assert source.commit is None
    assert "not a git repository" in source.problem
    assert "does not exist" in capture_source(tmp_path / "missing").problem
    monkeypatch.setenv("PATH", str(tmp_path))
    assert capture_source(tmp_path).problem == "git is not installed"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("git@github.com:org/repo.git", "git@github.com:org/repo.git"),
        ("https://github.com/org/repo", "https://github.com/org/repo"),
        ("https://me:hunter22@github.com/org/repo", "github.com/org/repo"),
        ("https://ghp_0123456789abcdefghijABCDEFGHIJ012345@github.com/org/repo", "github.com/org/repo"),
        ("https://h/repo?private_token=hunter22", "https://h/repo?private_token="),
    ],
)
def test_a_remote_is_kept_without_its_credentials(repo: Path, url: str, kept: str) -> None:
    git(repo, "remote", "add", "origin", url)
    remote = capture_source(repo).remote
    assert kept in remote
    assert "hunter22" not in remote
    assert "ghp_" not in remote
    assert ("***masked:" in remote) == (url != kept)


def test_the_remote_is_that_of_the_branch(repo: Path) -> None:
    git(repo, "remote", "add", "aaa", "https://h/aaa")
    assert capture_source(repo).remote == "https://h/aaa"
    git(repo, "remote", "add", "origin", "https://h/origin")
    assert capture_source(repo).remote == "https://h/origin"
    git(repo, "config", "branch.trunk.remote", "aaa")
    assert capture_source(repo).remote == "https://h/aaa"


def test_tokens_in_changed_lines_do_not_reach_the_run(repo: Path, tmp_path: Path) -> None:
    token = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    (repo / "train.py").write_text(f"print(1)\nTOKEN = '{token}'\nURL = 'https://me:hunter22@h/x'\n")
    path = tmp_path / "s.patch"
    source = capture_source(repo, path)
    text = path.read_text()
    assert token not in text
    assert "hunter22" not in text
    assert text.count("***masked:") == 2
    assert source.patch_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "-q", str(repo), str(copy))
    git(copy, "apply", str(path))


def test_a_hostile_repository_runs_nothing(repo: Path, tmp_path: Path) -> None:
    """Every setting that names a program for status, diff or ls-files to start."""
    mark = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0 $*" >> {mark}\ncat\n')
    trap.chmod(trap.stat().st_mode | stat.S_IXUSR)
    (repo / ".gitattributes").write_text("*.py filter=trap diff=trap\n*.bin filter=a.b diff=trap\n")
    (repo / "w.bin").write_bytes(b"\0one")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "second")
    included = tmp_path / "included"
    included.write_text(f'[filter "a.b"]\n\tprocess = {trap}\n\trequired = true\n')
    for name, value in {
        "core.fsmonitor": trap, "core.pager": trap, "pager.diff": trap, "pager.status": trap, "core.editor": trap,
        "diff.external": trap, "diff.trap.command": trap, "diff.trap.textconv": trap, "diff.trap.cachetextconv": "true",
        "filter.trap.clean": trap, "filter.trap.smudge": trap, "filter.trap.required": "true",
        "core.sshCommand": trap, "core.hooksPath": tmp_path, "include.path": included, "diff.submodule": "diff",
    }.items():  # fmt: skip
        git(repo, "config", name, str(value))
    (tmp_path / "post-index-change").write_text(trap.read_text())
    (tmp_path / "post-index-change").chmod(0o755)
    (repo / "train.py").write_text("print(22)\n")
    (repo / "w.bin").write_bytes(b"\0two")
    subprocess.run(["git", "status"], cwd=repo, capture_output=True)
    assert mark.exists(), "the trap works: plain git runs it"
    mark.unlink()
    source = capture_source(repo, tmp_path / "s.patch")
    assert not mark.exists(), mark.read_text()
    assert source.dirty
    assert source.problem is None
    assert "+print(22)" in (tmp_path / "s.patch").read_text("latin-1")


def test_a_filter_that_cannot_be_switched_off_stops_the_looking(repo: Path, tmp_path: Path) -> None:
    with (repo / ".git" / "config").open("a") as config:
        config.write('[filter "a=b"]\n\tclean = false\n')
    source = capture_source(repo)
    assert source.commit is None
    assert "odd names" in source.problem


@pytest.mark.parametrize("slow", ["status", "diff", "ls-files", "rev-parse"])
def test_a_slow_git_costs_its_timeout_and_names_itself(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    real = subprocess.run(["which", "git"], capture_output=True, text=True).stdout.strip()
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\ncase " $* " in *" {slow} "*) sleep 30;; esac\nexec {real} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    (repo / "train.py").write_text("print(3)\n")
    begun = time.monotonic()
    source = capture_source(repo, timeout_s=0.5)
    assert time.monotonic() - begun < 5
    assert f"git {slow} took more than 0.5 s" in source.problem
    assert (source.commit is None) == (slow in {"status", "rev-parse"})
    assert (source.num_untracked is None) == (slow in {"ls-files", "rev-parse"})


def test_a_disk_that_refuses_the_patch_is_a_problem_and_no_error(repo: Path, tmp_path: Path) -> None:
    (repo / "train.py").write_text("print(3)\n")
    (tmp_path / "file").write_text("")
    source = capture_source(repo, tmp_path / "file" / "s.patch")
    assert source.patch is None
    assert source.patch_sha256
    assert "cannot be kept" in source.problem


def test_a_patch_is_not_written_through_a_link(repo: Path, tmp_path: Path) -> None:
    """A run folder comes from anyone; `source` in it may lead elsewhere."""
    (repo / "train.py").write_text("print(3)\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "source").symlink_to(tmp_path / "elsewhere")
    source = capture_source(repo, tmp_path / "source" / "s.patch")
    assert source.patch is None
    assert "symbolic link" in source.problem
    assert not list((tmp_path / "elsewhere").iterdir())


def test_asking_changes_nothing_in_the_repository(repo: Path) -> None:
    (repo / "train.py").touch()
    before = {path: path.stat().st_mtime_ns for path in (repo / ".git").rglob("*")}
    capture_source(repo)
    assert {path: path.stat().st_mtime_ns for path in (repo / ".git").rglob("*")} == before
