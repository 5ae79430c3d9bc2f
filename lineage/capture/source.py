"""The revision a session runs from, asked of git in a way that a repository's own settings cannot turn against us.

A repository's configuration can name programs for git to start: file-system monitors, external diffs, text
conversions, clean filters, pagers. None of them is started here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lineage import fs
from lineage.capture.argv import printable
from lineage.capture.redact import redact_patch, redact_text, redact_url
from lineage_schemas.run import Source

PATCH_LIMIT_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 2.0

_SAFE: Final = (
    "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.untrackedCache=false",
    "-c", "core.quotePath=true",
    "-c", "protocol.allow=never",  # a partial clone would fetch what it lacks, by a command of its choice
    "-c", "diff.noprefix=false",
    "-c", "diff.mnemonicPrefix=false",
    "-c", "diff.ignoreSubmodules=dirty",  # looking into a submodule would obey that one's configuration
    "-c", "status.showUntrackedFiles=no",
)  # fmt: skip
_WANTED: Final = r"^(filter\..*|remote\..*\.url|branch\..*\.remote)$"
_DIFF: Final = (
    "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative", "--binary", "--full-index",
    "--ignore-submodules=dirty", "--submodule=short",
)  # fmt: skip


@dataclass
class _Answer:
    """What one git command said: `problem` is empty when it came to its end well.

    Attributes:
        data: its output, up to the limit asked for.
        size_bytes: of all of it.
        sha256: of all of it, in hex.
        is_empty: it ended with status 1 and not a word: git's way to say that nothing was found.
    """

    data: bytes = b""
    size_bytes: int = 0
    sha256: str = ""
    problem: str = ""
    is_empty: bool = False

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "backslashreplace")


@dataclass
class _Git:
    """git in one folder; each command gets `timeout_s`."""

    cwd: Path
    timeout_s: float
    options: list[str] = field(default_factory=list)

    def ask(self, *arguments: str, limit: int = 16 << 20) -> _Answer:
        """Run one command to its end; whatever it starts is killed with it when it takes too long."""
        what = f"git {arguments[0]}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_TRACE")}
        environment |= {
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_PAGER": "cat",
            "GIT_NO_LAZY_FETCH": "1",
            "LC_ALL": "C",
        }
        environment.pop("GIT_EXTERNAL_DIFF", None)
        try:
            process = subprocess.Popen(
                ["git", "--no-pager", *_SAFE, *self.options, *arguments],
                cwd=self.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            if not self.cwd.is_dir():
                return _Answer(problem="the folder does not exist")
            return _Answer(problem="git is not installed")
        except OSError as error:
            return _Answer(problem=f"{what}: {error.strerror or error}")
        with process:
            answer, errors = _collect(process, limit, self.timeout_s)
            if answer.problem:
                _kill(process)
                answer.problem = f"{what} {answer.problem}"
        if not answer.problem and process.returncode != 0:
            answer.is_empty = process.returncode == 1 and not errors and not answer.data
            lines = errors.decode("utf-8", "backslashreplace").strip().splitlines()
            answer.problem = f"{what}: {redact_text(lines[0])[:200] if lines else f'exit status {process.returncode}'}"
        return answer


def _collect(process: subprocess.Popen[bytes], limit: int, timeout_s: float) -> tuple[_Answer, bytes]:
    """Read both pipes to their ends, hashing what goes by and keeping no more than `limit`."""
    assert process.stdout is not None  # noqa: S101  # Popen was asked for pipes
    assert process.stderr is not None  # noqa: S101
    answer, kept, errors, digest = _Answer(), bytearray(), bytearray(), hashlib.sha256()
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                answer.problem = f"took more than {timeout_s:g} s"
                break
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    errors += chunk[: max(0, 4096 - len(errors))]
                else:
                    answer.size_bytes += len(chunk)
                    digest.update(chunk)
                    kept += chunk[: max(0, limit - len(kept))]
    if not answer.problem:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            answer.problem = f"took more than {timeout_s:g} s"
    answer.data, answer.sha256 = bytes(kept), digest.hexdigest()
    return answer, bytes(errors)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def capture_source(
    cwd: Path | str | None = None,
    patch_path: Path | None = None,
    *,
    patch_limit: int = PATCH_LIMIT_BYTES,
    timeout_s: float = TIMEOUT_S,
) -> Source:
    """The commit, branch, remote and uncommitted changes of the working tree around `cwd` (the current folder if None).

    Args:
        cwd: a folder in the working tree.
        patch_path: where to keep the diff of tracked files, when there is one: `<run>/source/<session>.patch`;
            `Source.patch` is then its last two parts. Its folder is made when missing. None keeps none.
        patch_limit: a larger diff is not kept; its digest and size are.
        timeout_s: for each command; there are two rounds of them, each in parallel.

    Never raises for git, the repository or the disk: what could not be found out is None, and `problem` says why.
    Credentials in the remote are masked; so are those in the diff, as docs/redaction.md, "Patches" says, and the
    digest of a kept diff is that of the file.
    """
    git = _Git(Path.cwd() if cwd is None else Path(cwd), timeout_s)
    with ThreadPoolExecutor(4, thread_name_prefix="lineage-git") as pool:
        top_asked = pool.submit(git.ask, "rev-parse", "--show-toplevel")
        asked = git.ask("config", "--show-scope", "--null", "--get-regexp", _WANTED)
        top = top_asked.result()
        if top.problem:
            return Source(problem=top.problem)
        settings = _settings(asked)
        filters = _local_filters(settings)
        if (asked.problem and not asked.is_empty) or any("=" in name for name in filters):
            # Its filters could not be switched off, so nothing is asked that might start one.
            return Source(problem=asked.problem or "the repository has filters of odd names; it was not looked at")
        root = Path(os.fsdecode(top.data.removesuffix(b"\n")))
        # The filters of the repository's own configuration run programs of its choice; those a person set up for
        # all repositories (Git LFS) are needed to see which files really differ.
        git = _Git(root, timeout_s, _switched_off(filters))
        status, diff, others = pool.map(
            lambda ask: git.ask(*ask[0], limit=ask[1]),
            (
                (
                    ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=no", "--ignore-submodules=dirty"),
                    16 << 20,
                ),
                (_DIFF, patch_limit + 1),
                (("ls-files", "--others", "--exclude-standard", "-z"), 64 << 20),
            ),
        )
    commit, branch, dirty = _read_status(status)
    problems = [status.problem, others.problem]
    patch = _Patch()
    if not status.problem and commit is None:
        problems.append("no commit yet")
    elif dirty or (dirty is None and not diff.problem and diff.size_bytes):
        patch = _keep_patch(diff, patch_path, patch_limit)
        problems.append(patch.problem)
    remote = _choose_remote(settings, branch)
    return Source(
        commit=commit,
        branch=branch,
        dirty=dirty,
        patch=patch.name,
        patch_sha256=patch.sha256,
        patch_bytes=patch.size_bytes,
        remote=None if remote is None else redact_url(printable(remote)),
        root=printable(root.name),
        num_untracked=None if others.problem else others.data.count(b"\0"),
        problem="; ".join(problem for problem in problems if problem) or None,
    )


def _settings(answer: _Answer) -> list[tuple[str, str, str]]:
    """Scope, name and value of each setting; names as git gives them (sections and last parts in lower case)."""
    parts = answer.text.split("\0")
    found = []
    for scope, entry in zip(parts[0::2], parts[1::2], strict=False):
        name, _, value = entry.partition("\n")
        found.append((scope, name, value))
    return found


def _local_filters(settings: Sequence[tuple[str, str, str]]) -> list[str]:
    """Names of the filters that the repository's own configuration defines."""
    names = (
        name.removeprefix("filter.").rpartition(".")[0]
        for scope, name, _ in settings
        if name.startswith("filter.") and scope in {"local", "worktree"}
    )
    return list(dict.fromkeys(names))


def _switched_off(filters: Sequence[str]) -> list[str]:
    off = ("clean=", "smudge=", "process=", "required=false")
    return [part for name in filters for setting in off for part in ("-c", f"filter.{name}.{setting}")]


def _choose_remote(settings: Sequence[tuple[str, str, str]], branch: str | None) -> str | None:
    """The fetch URL of the branch's remote, else of `origin`, else of the first."""
    urls: dict[str, str] = {}
    tracked = None
    for _, name, value in settings:
        if name.startswith("remote."):
            urls.setdefault(name.removeprefix("remote.").removesuffix(".url"), value)
        elif branch is not None and name == f"branch.{branch}.remote":
            tracked = value
    for remote in (tracked, "origin", next(iter(urls), None)):
        if remote in urls:
            return urls[remote]
    return None


def _read_status(answer: _Answer) -> tuple[str | None, str | None, bool | None]:
    """Commit, branch, and whether tracked files differ; all None when git could not say."""
    if answer.problem:
        return None, None, None
    commit = branch = None
    dirty = False
    for line in answer.text.split("\0"):
        if line.startswith("# branch.oid "):
            oid = line.removeprefix("# branch.oid ")
            commit = None if oid == "(initial)" else oid
        elif line.startswith("# branch.head "):
            head = line.removeprefix("# branch.head ")
            branch = None if head == "(detached)" else head
        elif line[:2] in {"1 ", "2 ", "u "}:
            dirty = True
    return commit, branch, dirty


@dataclass(frozen=True)
class _Patch:
    name: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    problem: str = ""


def _keep_patch(diff: _Answer, path: Path | None, limit: int) -> _Patch:
    if diff.problem:
        return _Patch(problem=diff.problem)
    if diff.size_bytes > limit:
        problem = f"the diff of {diff.size_bytes} bytes is over the limit of {limit} and is not kept"
        return _Patch(None, diff.sha256, diff.size_bytes, problem)
    # As latin-1 each byte is one character: a diff has files of every encoding, and must come back byte for byte.
    masked = redact_patch(diff.data.decode("latin-1")).encode("latin-1")
    digest, size = hashlib.sha256(masked).hexdigest(), len(masked)
    if path is None:
        return _Patch(None, digest, size)
    if path.parent.is_symlink():  # a run folder comes from anyone, and this one would lead out of it
        return _Patch(None, digest, size, f"the diff cannot be kept: {path.parent.name}/ is a symbolic link")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fs.write_atomic(path, masked)
    except OSError as error:
        return _Patch(None, digest, size, f"the diff cannot be kept: {error.strerror or error}")
    return _Patch(f"{path.parent.name}/{path.name}", digest, size)
