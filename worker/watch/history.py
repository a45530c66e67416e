"""What logs tell of a task: the calls of `DelayQueue` that changed it, and the first that must not have happened.

Calls are logged at LOG_LEVEL=debug. Of tests/contract/model.py these are the rules that a log tells enough for;
tests/contract/test_history.py holds the one to the other.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

#: By how much an extended lease may have ended sooner than a log tells, because clocks differ, ms.
INEXACT_MS = 1000
#: Calls that need the lease, and what they show of a task besides its id.
LEASED = ("extend", "ack", "retry", "release", "dead_letter")
SHOWN: dict[str, tuple[str, ...]] = dict.fromkeys((*LEASED, "ack_late"), ("attempt", "token"))
SHOWN |= {"claim": ("attempt", "token", "due_at_ms")}
CALLS = {*SHOWN, "schedule", "seed", "restore", "cancel", "requeue", "purge"}
#: What is shown of other lines about a task.
OTHERS = ("attempt", "late_ms", "delay_ms", "reason", "error")


class Line(NamedTuple):
    """A call, or another line about a task. Times are ms since the epoch, by the clock of its process."""

    ended_ms: float
    began_ms: float
    queue: str
    worker: str
    name: str
    task: str
    #: Of a call: what it showed of the task, and what all its tasks share; of another line: its fields.
    facts: dict[str, Any]

    @property
    def judged(self) -> bool:
        """Whether it is a call that changed the task."""
        return self.name in CALLS and not self.facts.get("refused")

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.ended_ms / 1000).astimezone()
        facts = (f"{name}={value}" for name, value in self.facts.items())
        said = (at.isoformat(" ", "milliseconds"), self.worker, self.name, self.task, *facts)
        return " ".join(filter(None, said))


def read(lines: Iterable[str], names: dict[str, str]) -> Iterator[Line]:
    """The lines of a log that name tasks; others are skipped. Adds the workers that it names."""
    for text in lines:
        try:
            line = json.loads(text[text.index("{") :])  # docker compose puts a name in front
            ended_ms = 1000 * datetime.fromisoformat(line["timestamp"]).timestamp()
            event, queue = line["event"], line.get("queue", "")
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if event == "started":
            names |= dict.fromkeys(line.get("by", ()), line.get("worker", ""))
        if event in CALLS and "each" in line:
            yield from _calls(line, ended_ms, names.get(line["by"], line["by"]))
            continue
        others = {name: line[name] for name in OTHERS if name in line}
        for task in (line.get("id"), line.get("order"), *line.get("ids", ())):
            if isinstance(task, str):
                yield Line(ended_ms, ended_ms, queue, "", f"({event})", task, others)


def _calls(line: dict[str, Any], ended_ms: float, worker: str) -> Iterator[Line]:
    name, began_ms = line["event"], ended_ms - line["took_ms"]
    shared = {
        fact: line[fact] for fact in ("put", "at_ms", "lease_ms", "unanswered") if fact in line
    }
    # A claim without an answer may have leased any task.
    for task, *values in line["each"] or [("",)]:
        facts = dict(zip(SHOWN.get(name, ("answer",)), values, strict=False)) | shared
        if task in line.get("refused", ()):
            facts["refused"] = True
        yield Line(ended_ms, began_ms, line["queue"], worker, name, task, facts)


@dataclass
class History:
    """Where a task is, as far as the calls so far tell. Times are in ms on the server's clock."""

    #: "": not known.
    place: str = ""
    token: str = ""
    holder: str = ""
    leased_until_ms: float = 0
    #: Whether it was scheduled by a producer, and nothing else has happened to it since.
    is_new: bool = False
    #: The attempt that is next, if that is known.
    next_attempt: int | None = None
    #: Claims without an answer, each of which may have been an attempt.
    unanswered: int = 0
    cancelled: bool = False
    now_ms: float = 0
    #: The server's clock minus that of the holder's process.
    ahead_ms: float = 0

    def why_not(self, line: Line) -> str:
        """Why this must not have happened; "" if it may have."""
        return next(self._reasons(line), "")

    def _reasons(self, line: Line) -> Iterator[str]:
        name, facts, place = line.name, line.facts, self.place
        if facts.get("late_ms", 0) < 0:
            yield f"it was handled {-facts['late_ms']} ms before it was due"
        if not (line.judged and line.task and place):
            return
        if name == "claim":
            yield from self._reasons_not_to_claim(facts)
        if name in LEASED and place != "leased":
            yield f"the token {facts['token']} holds no lease: it is {place}"
        if name in LEASED and self.token != facts["token"]:
            yield f"the token {facts['token']} holds no lease: {self.holder} holds {self.token}"
        if name == "ack_late" and place != "leased" and not self.unanswered:
            yield f"no other worker holds it: it is {place}"
        if name in ("requeue", "purge") and place != "dead":
            yield f"it is no dead letter: it is {place}"
        removed = facts.get("answer") == "removed"
        if removed and place != "scheduled" and not self.unanswered:
            yield f"it does not wait: it is {place}"

    def _reasons_not_to_claim(self, facts: dict[str, Any]) -> Iterator[str]:
        at_ms, attempt, following = facts["at_ms"], facts["attempt"], self.next_attempt
        if self.place not in ("scheduled", "leased"):
            yield f"it is {self.place}, and nothing has scheduled it since"
        # Unless the server's clock was set back.
        if self.place == "leased" and self.now_ms <= at_ms < self.leased_until_ms:
            left_ms = self.leased_until_ms - at_ms
            yield f"{self.holder} holds {self.token} for {left_ms:.0f} ms more"
        if self.is_new and at_ms < facts["due_at_ms"]:
            yield f"it is due {facts['due_at_ms'] - at_ms} ms later"
        if following and not following <= attempt <= following + self.unanswered:
            yield f"attempt {following} is next, not {attempt}"

    def add(self, line: Line) -> None:
        """Note what a call has done."""
        name, facts = line.name, line.facts
        if not line.judged:
            return
        self.is_new = facts.get("answer") in ("created", "rescheduled")
        if facts.get("unanswered"):
            self.unanswered += 1
            if line.task and name != "extend":  # it may be anywhere
                self.place, self.next_attempt = "", None
        elif name == "claim":
            self.place, self.token, self.holder = "leased", facts["token"], line.worker
            self.now_ms, self.leased_until_ms = facts["at_ms"], facts["at_ms"] + facts["lease_ms"]
            self.next_attempt, self.unanswered = facts["attempt"] + 1, 0
            self.ahead_ms = facts["at_ms"] - line.ended_ms
        elif name == "extend":
            began_ms = line.began_ms + self.ahead_ms
            self.leased_until_ms = began_ms + facts["lease_ms"] - INEXACT_MS
        elif name in SHOWN:
            self._settle(name, facts)
        else:
            self._put(name, facts.get("answer", ""))
        self.cancelled = self.cancelled and self.place == "leased"

    def _settle(self, name: str, facts: dict[str, Any]) -> None:
        places = {"ack": "done", "ack_late": "done", "dead_letter": "dead"}
        if name == "release" and self.next_attempt:
            self.next_attempt -= 1
        if facts.get("put") == "new":
            self.next_attempt = 1
        self.place = places.get(name, "scheduled")
        if self.cancelled and self.place != "done":
            self.place = "cancelled"

    def _put(self, name: str, answer: str) -> None:
        """Note what producers, sweeps and operators have done."""
        if name == "cancel":
            self.cancelled = answer == "cancelling"
            self.place = {"removed": "cancelled", "dead": "dead"}.get(answer, self.place)
        elif name == "purge":
            self.place = "purged"
        elif answer in ("dead", "unchanged"):
            self.place = "dead" if answer == "dead" else self.place
        else:
            # What a sweep restores was lost, or is brought forward.
            self.place, self.next_attempt = "scheduled", None if name == "restore" else 1


def histories(lines: Iterable[Line]) -> Iterator[tuple[str, list[tuple[Line, str]]]]:
    """Of each task that a call names: its queue, and its lines as `judged` says."""
    by_task: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_task[line.task].append(line)
    tasks = {(line.queue, task) for task in by_task for line in by_task[task] if line.judged}
    for queue, task in sorted(tasks - {(queue, "") for queue, _ in tasks}):
        some = (*by_task[task], *by_task[""])
        yield queue, [*judged(line for line in some if line.queue in ("", queue))]


def judged(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """The lines about one task, the first that must not have happened with the reason why.

    Calls that overlapped are put into an order that may have been, if there is one.
    """
    history, wrong = History(), False
    waiting = sorted(lines, key=lambda line: line[:2])
    while waiting:
        ended_ms = waiting[0].ended_ms
        overlapping = [line for line in waiting if line.began_ms <= ended_ms]
        line = next((each for each in overlapping if not history.why_not(each)), waiting[0])
        waiting.remove(line)
        why = "" if wrong else history.why_not(line)
        wrong = wrong or bool(why)
        yield line, why
        history.add(line)
