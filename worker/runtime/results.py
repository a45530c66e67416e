"""What became of the tasks of a batch."""

import reprlib
from dataclasses import dataclass, field

from ..backoff import LOOK_AGAIN
from ..errors import Unavailable
from ..flow import MAX_DELAY_MS, DeadLetter, Failed, Outcome, Reschedule, Retry, Task


class LookAgain(Retry):
    """Not now, because something that this task alone needs is unavailable. Nothing is counted or reset."""

    def __init__(self, task: Task, error: Unavailable) -> None:
        super().__init__(1000 * LOOK_AGAIN(task.attempt))
        self.__cause__ = error


@dataclass(slots=True)
class BatchResult:
    """The tasks of a batch, sorted by what became of them."""

    done: list[Task] = field(default_factory=list)
    retries: list[tuple[Task, Retry]] = field(default_factory=list)
    #: Done, and due again: a new appointment.
    rescheduled: list[tuple[Task, Reschedule]] = field(default_factory=list)
    dead: list[tuple[Task, DeadLetter]] = field(default_factory=list)
    #: Each with its error, or with a counted `Retry`, whose delay replaces the backoff.
    failed: list[tuple[Task, BaseException]] = field(default_factory=list)
    #: Not handled, or not done because of an outage: to be released uncounted.
    untouched: list[Task] = field(default_factory=list)
    #: Set when something the handler needs is unavailable.
    outage: Unavailable | None = None

    def add(self, task: Task, outcome: Outcome | None) -> None:
        match outcome:
            case None:
                self.done.append(task)
            # With what they need: a subclass may have an __init__ of its own.
            case Retry(delay_ms=delay_ms, counted=True) if _is_delay(delay_ms):
                self.failed.append((task, outcome))
            case Retry(delay_ms=delay_ms) if _is_delay(delay_ms):
                self.retries.append((task, outcome))
            case Reschedule(delay_ms=delay_ms) if _is_delay(delay_ms):
                self.rescheduled.append((task, outcome))
            case DeadLetter(reason=str()):
                self.dead.append((task, outcome))
            case Failed(error=BaseException() as error):
                self.failed.append((task, error))
            case _:
                wrong = TypeError(
                    f"the handler returned {reprlib.repr(outcome)}, which is not an outcome"
                )
                # Running it again would repeat its work, with the same return value.
                self.dead.append((task, DeadLetter(wrong)))

    def handled(self) -> list[Task]:
        """The tasks that the handler dealt with, whatever the outcome."""
        others = (self.retries, self.rescheduled, self.dead, self.failed)
        return [*self.done, *(task for outcomes in others for task, _ in outcomes)]

    def tasks(self) -> list[Task]:
        """All tasks."""
        return [*self.handled(), *self.untouched]

    def merge(self, more: "BatchResult") -> None:
        """Add the results of another call."""
        self.done += more.done
        self.retries += more.retries
        self.rescheduled += more.rescheduled
        self.dead += more.dead
        self.failed += more.failed
        self.untouched += more.untouched
        self.outage = more.outage or self.outage


def _is_delay(ms: object) -> bool:
    return isinstance(ms, int | float) and abs(ms) <= MAX_DELAY_MS  # false for NaN
