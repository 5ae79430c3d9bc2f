"""Where a loop stands inside its step: which batch was taken, what was trained, which step is complete. Pure.

A loop says little of it. That a step's training is done shows in an optimizer that stepped, in a scaler that backed off
instead, or in `log`. That a batch waits for its training shows in one handed out after the last of these.
"""

from __future__ import annotations


class Progress:
    """One step after another, as the hook sees them.

    Attributes:
        step: steps complete.
        current: the step whose body is running; None outside of a loop over steps.
        attempted: an optimizer stepped since the body began.
        advanced: the body's training is done: it updated, logged, or its scaler backed off.
        observed: the step was counted, as an update or as a skip.
        taken: a batch was handed out, and nothing was trained since.
        ahead: so was one before the body that runs, behind the training of the step before.
    """

    __slots__ = ("advanced", "ahead", "attempted", "current", "observed", "step", "taken")

    def __init__(self) -> None:
        self.step = 0
        self.current: int | None = None
        self.attempted = self.advanced = self.observed = False
        self.taken = self.ahead = False

    @property
    def last(self) -> int:
        """The last step whose training is done, be its body still running."""
        return self.step if self.current is None or not self.advanced else self.current

    @property
    def is_between(self) -> bool:
        """Whether a step's batch was taken and its training is not done: no state belongs to where the data stands."""
        return self.taken and self.current is not None and not self.advanced

    @property
    def is_ahead(self) -> bool:
        """Whether the data stands behind a batch that no completed step was trained on."""
        return self.taken or self.ahead

    def enter(self) -> int:
        """Begin the body of the next step; its number."""
        self.current = self.step + 1
        self.attempted = self.advanced = self.observed = False
        return self.current

    def updated(self) -> None:
        """An optimizer stepped, or tried to."""
        self.attempted = self.advanced = True
        self.taken = self.ahead = False

    def trained(self) -> None:
        """The step's training is done, whatever its optimizer did."""
        self.advanced = True
        self.taken = self.ahead = False

    def complete(self) -> None:
        """End the body: its step is complete. A batch that a step without any training took is behind it."""
        if self.advanced:
            self.put_ahead()
        self.taken = False
        if self.current is not None:
            self.step = self.current
        self.current = None

    def leave(self) -> None:
        """Leave the loop, by its end or in the middle of a body: that step is complete if its training is done."""
        if self.current is not None:
            self.put_ahead()
            if self.advanced:
                self.step = self.current
        self.current = None

    def put_ahead(self) -> None:
        """Count a batch that nothing was trained on as one of a step to come."""
        self.ahead = self.ahead or self.taken
        self.taken = False
