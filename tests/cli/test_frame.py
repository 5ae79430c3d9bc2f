"""What holds for every verb: help, errors, exit codes, pipes, interrupts, and nothing raw on a terminal."""

import errno
import importlib
import importlib.metadata
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lineage import cli
from lineage.cli import VERBS, main, parser_of
from lineage.cli.command import Command
from lineage.cli.diagnostics import ExitCode, exit_code_of, report
from lineage.cli.refs import find
from lineage.errors import DamagedError, FormatError, LineageError, LockedError, NotFoundError, RefError, UsageError

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def command(verb: str) -> Command:
    return cli._load(verb)


def all_verbs() -> list[str]:
    return [*VERBS, *cli._entry_points()]


@pytest.mark.parametrize("verb", all_verbs())
def test_the_table_says_what_the_verb_says_of_itself(verb):
    found = command(verb)
    assert found.name == verb
    assert found.summary
    assert len(found.summary) < 76
    if verb in VERBS:
        assert VERBS[verb][1] == found.summary


@pytest.mark.parametrize("verb", all_verbs())
def test_help_ends_with_examples_and_goes_to_stdout(lineage, verb):
    code, out, err = lineage(verb, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: lineage {verb}")
    last = out.rstrip().split("examples:\n")[-1].splitlines()
    assert len(last) == len(command(verb).examples) > 0
    assert all(line.strip().startswith(f"lineage {verb}") for line in last)


@pytest.mark.parametrize("verb", all_verbs())
def test_every_verb_is_documented(verb):
    assert f"## lineage {verb}" in DOCS.read_text("utf-8")


def examples() -> list[str]:
    """All but those of `demo`, which tests/demo plays as it stands, and of the packages that test their own."""
    return [line for verb in VERBS if verb != "demo" for line, _ in command(verb).examples]


@pytest.mark.parametrize("line", examples())
def test_every_example_of_the_help_does_what_it_shows(place, line):
    """In a shell, as a person would paste it; 1 is an answer too (a check that failed)."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    options = {"text": True, "capture_output": True, "timeout": 200, "env": environment, "cwd": place}
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], **options)
    assert done.returncode in {0, 1}, done.stderr
    assert "Traceback" not in done.stderr
    assert "error:" not in done.stderr


def test_no_verb_shows_the_help_with_every_verb(lineage):
    code, out, _ = lineage()
    assert code == 0
    assert out == lineage("--help")[1]
    for verb in all_verbs():
        assert re.search(rf"^  {verb} +\S", out, re.MULTILINE)


def test_a_verb_of_another_package_that_does_not_load_leaves_the_help_whole(lineage, monkeypatch):
    broken = importlib.metadata.EntryPoint("broken", "no_such_module:Thing", "lineage.commands")
    monkeypatch.setattr(cli, "_entry_points", lambda: {"broken": broken})
    code, out, _ = lineage("--help")
    assert code == 0
    assert "broken" in out
    code, _, err = lineage("broken")
    assert code == ExitCode.USAGE
    assert "no_such_module" in err


def test_a_verb_nobody_knows_is_refused_with_the_nearest(lineage):
    code, out, err = lineage("lss")
    assert (code, out) == (ExitCode.USAGE, "")
    assert err == "error: there is no verb 'lss'\n  try: lineage ls\n"


@pytest.mark.parametrize(
    "words", [["ls", "--bogus"], ["show"], ["log", "x", "-n", "-3"], ["schema", "nonsense"], ["--bogus"]]
)
def test_wrong_arguments_are_usage_errors_without_a_traceback(lineage, words):
    code, out, err = lineage(*words)
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith("error: ")
    assert "try: lineage" in err


def test_only_the_words_that_must_be_there_are_called_required(lineage):
    code, out, err = lineage("checkpoints")
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.splitlines()[0] == "error: the following arguments are required: REF"


def options_with_values() -> list[tuple[str, str]]:
    """Each option of each verb whose value is parsed or one of a few."""
    return [
        (verb, action.option_strings[0])
        for verb in all_verbs()
        for action in parser_of(command(verb))._actions
        if action.option_strings and (action.type not in {None, Path} or action.choices)
    ]


@pytest.mark.parametrize(("verb", "option"), options_with_values())
@pytest.mark.parametrize(
    "value", ["x", "", "1.5.2", "nan", "9" * 5000 + "!"], ids=["x", "empty", "dots", "nan", "long"]
)
def test_a_wrong_value_of_an_option_is_answered_with_what_is_allowed(place, lineage, verb, option, value):
    positional = ["tiny-gpt"] if verb not in {"ls", "schema", "demo", "tui"} else []
    code, out, err = lineage(verb, *positional, option, value)
    assert (code, out) == (ExitCode.USAGE, "")
    said = err.splitlines()[0]
    assert re.search(rf"^error: argument \S*{option}\S*: ", said)
    allowed = r"is not a (whole )?number(, \d+ or more| from [\d.]+ to [\d.]+)$|choose from '?\w+"
    assert re.search(allowed, said), said
    assert not re.search(r"_|function|partial|invalid \w+ value", said)
    assert len(said) < 6000


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "tiny-gpt", "--window", "9" * 30),
        ("checkpoints", "tiny-gpt", "prune", "--keep", "9" * 30),
        ("checkpoints", "tiny-gpt", "prune", "--every", "9" * 30),
    ],
)
def test_a_number_beyond_what_a_machine_counts_to_is_a_very_large_one(place, lineage, words):
    code, out, err = lineage(*words)
    assert code == 0
    assert out
    assert "defect" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (RefError("x"), 2),
        (NotFoundError("x"), 3),
        (LockedError("x"), 5),
        (DamagedError("x"), 1),
        (FormatError("x"), 1),
        (LineageError("x"), 1),
        (OSError(5, "Input/output error", "file"), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert exit_code_of(error) == code


def test_an_error_says_what_where_and_what_to_do(capsys):
    assert report(NotFoundError("it is gone", "over\x1b[31mthere", "look elsewhere")) == 3
    assert capsys.readouterr().err == "error: it is gone\n  at over\\x1b[31mthere\n  try: look elsewhere\n"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a/run.lock"), "lineage ls DIR"),
        (PermissionError(errno.EACCES, "Permission denied", "a/run.json"), "chmod"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), "make room"),
        (OSError(errno.EXDEV, "Invalid cross-device link", "x"), "--debug"),
    ],
)
def test_what_the_system_refuses_has_a_next_step_too_also_inside_of_another_error(capsys, error, says):
    assert report(error) == (3 if error.errno == errno.ENOENT else 1)
    alone = capsys.readouterr().err
    assert alone.startswith(f"error: {error.strerror}\n  at {error.filename}\n  try: ")
    assert says in alone
    wrapped = LineageError("the log cannot be opened", "x")
    wrapped.__cause__ = error
    report(wrapped)
    assert capsys.readouterr().err.splitlines()[2] == alone.splitlines()[2]


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("zzz", "there is no run 'zzz'\n  at runs\n  try: there are 2"),
        ("tiny-gtp", "at runs\n  try: did you mean tiny-gpt"),
        ("TINY-GPT", "at runs\n  try: did you mean tiny-gpt"),
        ("runs", "this folder holds runs, and is none itself\n  at runs\n  try: one of them: runs/2"),
        ("runs/{id}x", "there is no such folder or file\n  at runs/{id}x\n  try: did you mean runs/{id}?"),
        ("no/such/run", "there is no such folder or file\n  at no/such/run\n  try: lineage ls DIR"),
        ("runs/{id}/checkpoints", "this is inside of a run, and not the run\n  at runs/{id}/checkpoints\n"),
        ("empty", "this folder is no run: it has no run.json\n  at empty\n  try: lineage ls DIR"),
        ("file", "this file is no part of a run\n  at file\n  try: a run is the folder"),
        ("tiny-gpt@7", "the run has no session 7\n  at runs/{id}\n  try: it has @1, @2, @3"),
    ],
)
@pytest.mark.parametrize(
    "verb", ["show", "log", "export", "audit", "diff", "explain", "checkpoints", "verify", "repair"]
)
def test_a_run_that_is_not_there_is_3_and_the_error_says_what_is(place, lineage, verb, ref, says):
    (place / "empty").mkdir()
    (place / "file").touch()
    known = next((place / "runs").iterdir()).name
    code, out, err = lineage(verb, ref.format(id=known))
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert err.startswith("error: ")
    assert says.format(id=known) in err


@pytest.mark.parametrize(
    "words",
    [
        ["log", "tiny-gpt"],
        ["log", "tiny-gpt", "--follow"],
        ["repair", "tiny-gpt"],
        ["repair", "tiny-gpt", "--dry-run"],
        ["log", "tiny-gpt", "--session", "8"],
        ["log", "tiny-gpt@1", "--session", "2"],
        ["explain", "tiny-gpt", "--window", "0"],
        ["ls", "nowhere"],
        ["--runs", "nowhere", "show", "tiny-gpt"],
        ["version"],
    ],
)
def test_every_error_says_what_to_do_next(place, lineage, words):
    (next((place / "runs").iterdir()) / "metrics.jsonl").unlink()
    code, out, err = lineage(*words)
    assert code in {ExitCode.USAGE, ExitCode.NOT_FOUND}
    assert out == ""
    assert re.fullmatch(r"error: .+\n(  at .+\n)?  try: .+\n", err)


def test_a_run_deleted_while_a_command_begins_is_an_error_with_a_next_step(place, lineage, monkeypatch):
    """Between the look at run.json and the lock: the folder is gone."""
    run = next((place / "runs").iterdir())
    monkeypatch.setattr("lineage.cli.repair.find", lambda *words: (find(*words), shutil.rmtree(run))[0])
    monkeypatch.setattr("os.path.lexists", lambda _: True)
    code, out, err = lineage("repair", "tiny-gpt")
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert f"  at runs/{run.name}/run.lock\n  try: see whether its folder is there" in err


@pytest.mark.parametrize(
    "words", [["--debug", "show", "nothing"], ["show", "nothing", "--debug"], ["show", "--debug", "nothing"]]
)
def test_a_traceback_comes_with_debug_wherever_it_stands(place, lineage, words):
    code, _, err = lineage(*words)
    assert code == ExitCode.NOT_FOUND
    assert "Traceback" in err
    assert "Traceback" not in lineage(*[word for word in words if word != "--debug"])[2]


def test_a_traceback_reaches_no_terminal_raw(place, lineage):
    err = lineage("ls", "--debug", "\x07\x1b[2J\u202e")[2]
    assert "Traceback" in err
    assert not set(err) & {"\x07", "\x1b", "\u202e"}


def test_a_defect_is_one_line_without_debug(lineage, monkeypatch):
    def boom(*_):
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("lineage.cli.ls.LsCommand.run", boom)
    code, _, err = lineage("ls")
    assert code == 1
    assert "ZeroDivisionError: by nought" in err
    assert "Traceback" not in err
    assert "--debug" in err


@pytest.mark.parametrize("before", [True, False])
def test_runs_may_stand_before_or_after_the_verb(place, lineage, before):
    (place / "runs").rename(place / "elsewhere")
    words = ["--runs", "elsewhere", "show", "tiny-gpt"] if before else ["show", "tiny-gpt", "--runs", "elsewhere"]
    assert lineage(*words)[0] == 0
    assert lineage("show", "tiny-gpt")[0] == ExitCode.NOT_FOUND


def test_the_folder_of_runs_can_be_said_by_the_environment(place, lineage, monkeypatch):
    (place / "runs").rename(place / "elsewhere")
    monkeypatch.setenv("LINEAGE_RUNS", str(place / "elsewhere"))
    assert lineage("show", "tiny-gpt")[0] == 0
    assert lineage("--runs", "nowhere", "show", "tiny-gpt")[0] == ExitCode.NOT_FOUND


def test_version(lineage):
    from lineage import __version__

    assert lineage("--version") == (0, f"lineage {__version__}\n", "")


@pytest.mark.parametrize(
    "line",
    ["lineage log tiny-gpt --json | head -n 1", "lineage log tiny-gpt --pretty | true", "lineage ls --json | true"],
)
def test_a_reader_that_leaves_is_no_error(place, line):
    script = line.replace("lineage", f"{shlex.quote(sys.executable)} -m lineage", 1)
    done = subprocess.run(
        ["bash", "-c", f"{script}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("lineage show tiny-gpt >&-", 0),
        ("lineage log tiny-gpt --pretty >&- <&-", 0),
        ("lineage --help >&-", 0),
        ("lineage show nothing >&-", 3),
        ("lineage show nothing 2>&-", 3),
        ("lineage show nothing <&- >&- 2>&-", 3),
        ("lineage diff tiny-gpt@1 tiny-gpt@3 <&- 2>&-", 1),
    ],
)
def test_a_stream_that_is_closed_is_no_defect_and_its_text_stands_in_no_other(place, line, code):
    script = line.replace("lineage", f"{shlex.quote(sys.executable)} -m lineage", 1)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert "defect" not in done.stderr
    assert ("error: " in done.stderr) == ("nothing >&-" in line)
    assert "error: " not in done.stdout
    assert bool(done.stdout) == line.startswith("lineage diff")


def test_ctrl_c_ends_a_follower_with_130_and_no_traceback(place):
    follower = subprocess.Popen(
        [sys.executable, "-m", "lineage", "log", "tiny-gpt", "--follow", "--kind", "session_end"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout.readline()
    time.sleep(0.2)
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert "Traceback" not in err


def on_a_terminal(words: list[str], **environment: str) -> str:
    """What a command writes to a real terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "100"} | environment)
        os.environ.pop("COLORTERM", None)
        os.execv(sys.executable, [sys.executable, "-m", "lineage", *words])
    out = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        out += piece
    os.close(fd)
    os.waitpid(pid, 0)
    return out.decode("utf-8", "replace")


@pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")
def test_colour_comes_on_a_terminal_and_never_under_no_color(place, lineage, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in on_a_terminal(["ls"])
    assert "\x1b" not in on_a_terminal(["ls"], NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(["ls"], TERM="dumb")
    assert "\x1b" not in lineage("ls")[1]


@pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")
def test_a_log_is_sentences_on_a_terminal_and_json_when_asked(place):
    assert "session_end         completed" in on_a_terminal(["log", "tiny-gpt"])
    assert '"kind":"session_end"' in on_a_terminal(["log", "tiny-gpt", "--json"])


@pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")
def test_a_locale_without_utf8_prints_escapes_not_an_error(place, process):
    run = next((place / "runs").iterdir())
    record = (run / "run.json").read_text("utf-8").replace('"name": "tiny-gpt"', '"name": "größe"')
    (run / "run.json").write_text(record, "utf-8")
    done = process("show", str(run), env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 0
    assert r"name: gr\xf6\xdfe" in done.stdout


def test_help_answers_within_150_ms_of_a_bare_python(cpu_of):
    bare = min(cpu_of("-c", "pass") for _ in range(5))
    shown = min(cpu_of("-m", "lineage", "--help") for _ in range(5))
    assert shown - bare < 0.15


def test_the_help_imports_no_heavy_package():
    script = (
        "import sys; from lineage.cli import main; main(['--help']);"
        "sys.exit(','.join({'numpy','pydantic','textual','torch','rich'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_typed_verb_is_imported():
    script = (
        "import sys; from lineage.cli import main; main(['schema']);"
        "sys.exit(','.join(m for m in sys.modules if m.startswith('lineage.cli.') and m.split('.')[-1] in "
        f"{sorted(set(VERBS) - {'schema'})!r}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_stdout_is_written_by_output_alone():
    """`print` and `sys.stdout` stand in output.py and the frame, nowhere else in the command line."""
    folder = Path(cli.__file__).parent
    for path in folder.glob("*.py"):
        if path.name in {"output.py", "__init__.py", "diagnostics.py"}:
            continue
        text = path.read_text("utf-8")
        assert "print(" not in text, path
        assert "sys.stdout" not in text, path


@pytest.mark.parametrize("verb", all_verbs())
def test_every_parser_takes_what_is_there_for_all(verb):
    flags = {flag for action in parser_of(command(verb))._actions for flag in action.option_strings}
    assert {"--help", "--runs", "--debug"} <= flags


def test_main_never_raises(capsys):
    for words in (
        [""],
        ["\0"],
        ["--"],
        ["-"],
        ["show", ""],
        ["show", "\0"],
        ["ls", "\udc80"],
        ["--runs"],
        ["show", "x" * 5000],
    ):
        assert main(words) in set(ExitCode)
    assert "Traceback" not in capsys.readouterr().err
