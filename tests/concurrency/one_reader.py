"""Read a run again and again while it is written: `python one_reader.py WHAT RUNS RUN SECONDS`.

Prints one JSON object: how often it read, and what was wrong, if anything. Never imports torch.
"""

import asyncio
import contextlib
import io
import json
import sys
import time
import traceback
from pathlib import Path

WORDS = {
    "ls": ["ls", "--json", "{runs}"],
    "show": ["show", "--json", "{run}"],
    "log": ["log", "--json", "{run}"],
    "audit": ["audit", "--json", "{run}"],
    "verify": ["verify", "--json", "{run}"],
    "checkpoints": ["checkpoints", "--json", "{run}"],
}
WHATS = (*WORDS, "view", "tui")


def command(words: list[str], what: str, faults: list[str]) -> None:
    from lineage import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    if code == 1 and what == "verify" and only_active_is_behind(out.getvalue()):
        return
    if code != 0:
        faults.append(f"{what} answered {code}: {err.getvalue()[-500:]} {out.getvalue()[-700:]}")
        return
    if what == "log":
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        if not all("kind" in line for line in lines):
            faults.append("a line of the log has no kind")
        return
    document = json.loads(out.getvalue())
    if what == "ls" and [run["state"] for run in document["runs"]] not in (["running"], ["killed"]):
        faults.append(f"ls says {document}")
    if what == "audit" and any(r["verdict"] not in {"exact", "unproven"} for r in document["resumes"]):
        faults.append(f"audit says {document}")


def only_active_is_behind(text: str) -> bool:
    """Killed between a commit and the new ACTIVE, which is advice: true as long as nobody resumes (decision 036)."""
    found = json.loads(text)["generations"]
    return {fault["kind"] for generation in found for fault in generation["faults"]} == {"stale_active"}


def look(view: object, faults: list[str]) -> None:
    import numpy as np

    view.refresh()
    loss = view.series("loss")
    if view.damage:
        faults.append(f"damage: {view.damage}")
    if not np.array_equal(loss.step, np.arange(1, len(loss) + 1)):
        faults.append(f"the history has not every step once: {len(loss)} values up to {loss.step[-1:]}")
    if not np.isfinite(loss.value).all():
        faults.append("a loss is not finite")


async def screens(runs: Path, run: Path, until: float, faults: list[str]) -> int:
    from lineage_tui import keys
    from lineage_tui.app import LineageApp, Options

    app = LineageApp(run, runs, Options(state_dir=runs.parent / "state"))
    count = 0
    async with app.run_test(size=(100, 30)) as pilot:
        while time.monotonic() < until:
            for digit, *_ in keys.SCREENS:
                await pilot.press(digit)
                await pilot.pause(0.05)
                count += 1
            if app.problems:
                faults.append(f"the app has problems: {app.problems}")
                break
    if getattr(app, "crash_text", None):
        faults.append(f"the app stopped: {app.crash_text}")
    return count


def main() -> None:
    what, runs, run, seconds = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    until = time.monotonic() + seconds
    faults: list[str] = []
    count = 0
    view = None
    try:
        if what == "tui":
            count = asyncio.run(screens(runs, run, until, faults))
        while what != "tui" and time.monotonic() < until and len(faults) < 3:
            if what == "view":
                from lineage.view import read

                view = view or read(run)
                look(view, faults)
            else:
                command([word.format(runs=runs, run=run) for word in WORDS[what]], what, faults)
            count += 1
            time.sleep(0.03)
    except BaseException:  # noqa: BLE001  # told to the test, whatever it is
        faults.append(traceback.format_exc()[-3000:])
    if "torch" in sys.modules:
        faults.append("a reader imported torch")
    print(json.dumps({"what": what, "count": count, "faults": faults}))


if __name__ == "__main__":
    main()
