"""A user's code, as type checkers see it: `mypy` reads this file, nothing runs it."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

import lineage
from lineage import LineageError, LockedError, NotFoundError, Run, RunView, Series


def train(config: dict[str, object], batches: list[list[float]]) -> None:
    run: Run = lineage.init("runs", name="tiny", recipe=config, resume="auto")
    run.track(model=object(), optimizer=object())
    run.restore()
    for step in run.steps(100):
        run.log(loss=0.5, lr=3e-4, grad_norm=1.0, tokens=512)
        if step % 10 == 0:
            with run.phase("eval"):
                run.log_eval(loss=0.4)
            run.checkpoint()
    run.note("done")
    run.finish()


def with_context(loader: list[int]) -> str:
    with lineage.init("runs", name="tiny") as run:
        for batch in run.batches(loader):
            run.log(loss=float(batch))
        return run.id


def look(path: Path) -> tuple[float, str | None]:
    view: RunView = lineage.read(path)
    loss: Series = view.series("loss")
    steps: npt.NDArray[np.int64] = loss.step
    values: npt.NDArray[np.float64] = view.series("loss", superseded=True).value
    first: npt.NDArray[np.float64] = view.series("tokens_per_s", session=1).train_time
    starts: list[int] = [session.start.step for session in view.sessions]
    kinds: set[str] = {event.kind for event in view.events(kind="eval")}
    evals: Series = view.evals("eval", metric="loss")
    changed: bool = view.refresh()
    if changed and kinds and starts and len(evals) and len(first):
        return float(values[-1]), view.state
    return float(steps[-1]), None


def handle(path: str) -> str:
    try:
        lineage.read(path)
    except NotFoundError as error:
        return error.hint
    except LockedError as error:
        return f"{error.pid} on {error.host}"
    except LineageError as error:
        return f"{error.what} [{error.where}]"
    return str(lineage.fingerprint_files(["data.bin"]).fingerprint)
