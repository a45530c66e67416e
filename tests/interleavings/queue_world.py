"""The queue on a real server, two workers and an operator, who act one at a time in any order."""

import copy
import math
import re
import secrets
import time
from collections.abc import Hashable
from typing import Any

import redis

from tests.contract.model import Machine
from tests.contract.steps import never_sent
from tests.interleavings.moves import WORKERS, Move
from worker import DelayQueue, Due, Task
from worker.queue.environment import Memory
from worker.queue.replies import Put

LEASE, LIMIT, OUTAGE = 20, 4, 3000
REDIS = (
    "known",
    "dead",
    "paused",
    "resumed",
    "lost_claims",
    "claims",
    "alone",
    "sweeper",
    "spared",
)
OWN = (
    *("now", "due", "done", "held", "begun", "asked_to_pause", "renewed", "flushed", "unreported"),
    *("silent", "delayed", "early", "saved"),
)
TOKEN = re.compile(r"\b[0-9a-f]{64}\b")


class QueueWorld(Machine):
    """Each move is made on the server and on the model, which are compared after it."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self._keys = self.queue.keys.stored()
        #: The application's records: what is to be done, and when.
        self.due: dict[str, int] = {}
        #: What was done, and not scheduled again since.
        self.done: set[str] = set()
        #: The tasks that each worker believes it holds.
        self.held: dict[str, list[Task]] = {name: [] for name in WORKERS}
        #: How often a task was claimed.
        self.begun: dict[str, int] = {}
        #: The operator's last word.
        self.asked_to_pause = False
        #: Whether Redis lost a resume: whoever knows only of the pause before it renews that.
        self.renewed = False
        #: What Redis may have at an earlier time than the records, having lost a later one.
        self.early: set[str] = set()
        #: Whether nobody has swept since Redis lost something.
        self.flushed = False
        #: Since when Redis has not answered a worker.
        self.silent: dict[str, int] = {}
        #: A worker's claim that it no longer waits for, and that Redis has not executed yet: the arguments of
        #: the script, and what it reports.
        self.delayed: dict[str, tuple[tuple[Any, ...], list[str], bool]] = {}
        #: What Redis has written to its disk, and the model of it.
        self.saved: tuple[dict[str, bytes], dict[str, Any]] = {}, self._model()

    # -- for the explorer ------------------------------------------------------------------

    def key(self) -> Hashable:
        memory = [(queue.memory.paused, [*queue.memory.lost_claims]) for queue in self._queues()]
        own = [_in_order(getattr(self, name)) for name in (*REDIS, *OWN) if name != "saved"]
        saved = [_in_order(value) for value in self.saved[1].values()]
        names: dict[str, str] = {}  # tokens are random, so each is named after its place
        text = repr((own, memory, saved))
        return TOKEN.sub(lambda found: names.setdefault(found[0], f"#{len(names)}"), text)

    def save(self) -> Any:
        memories = [queue.memory for queue in self._queues()]
        own = {name: getattr(self, name) for name in (*REDIS, *OWN)}
        return self._dump(), copy.deepcopy((memories, own))

    def load(self, saved: Any) -> None:
        stored, rest = saved
        self._restore(stored)
        memories, own = copy.deepcopy(rest)
        for queue, memory in zip(self._queues(), memories, strict=True):
            # However long the search has taken, what was known of a pause still is.
            if math.isfinite(memory.asked_at):
                memory.asked_at = time.monotonic()
            queue.memory = memory
        vars(self).update(own)

    def _dump(self) -> dict[str, bytes]:
        with self.client.pipeline(transaction=False) as pipe:
            for key in self._keys:
                pipe.dump(key)
            found = zip(self._keys, pipe.execute(), strict=True)
        return {key: value for key, value in found if value is not None}

    def _restore(self, stored: dict[str, bytes]) -> None:
        with self.client.pipeline(transaction=False) as pipe:
            pipe.delete(*self._keys)
            for key, value in stored.items():
                pipe.restore(key, 0, value)
            pipe.execute()

    def _model(self) -> dict[str, Any]:
        return copy.deepcopy({name: getattr(self, name) for name in REDIS})

    def can(self, move: Move) -> bool:
        """A worker settles only what it believes it holds."""
        if move.verb == "late claim":
            return move.actor in self.delayed
        return not (move.actor and move.task) or self._task(move) is not None

    def do(self, move: Move) -> None:
        method = getattr(self, "do_" + move.verb.replace(" ", "_"), None)
        arguments = [argument for argument in (move.actor, move.task) if argument]
        if method is None:
            raise ValueError(f"nobody can {move.verb!r}")
        method(*arguments)
        self.each_task_is_where_the_model_says_and_nothing_else_is_stored()
        assert not self.paused or self.asked_to_pause or self.renewed, "nobody asked for the pause"
        assert self.flushed or self.due.keys() <= self.known.keys(), "a task is lost"

    def check(self) -> None:
        """With all faults over, everybody goes on, and everything is settled. No pause comes back."""
        self.queue.resume()
        left = set(self.due)
        for round_ in range(12):
            self.now += 10 * LEASE
            records = [Due(task_id, self.due[task_id] - self.now) for task_id in sorted(left)]
            for queue in self._queues() if round_ < 1 else [self.queue]:
                queue.restore(records, now_ms=self.now)
                claim = queue.claim(LIMIT, LEASE, now_ms=self.now)
                queue.ack(claim.tasks)
                left -= {task.id for task in claim.tasks}
                assert not claim.paused, "the pause came back"
            if not claim.tasks and claim.next_in_ms is None:
                break
        else:
            raise AssertionError(f"not settled: {self.queue.stats(now_ms=self.now)}")
        assert left <= {*self.dead}, f"lost: {left}"

    def _queues(self) -> list[DelayQueue]:
        return [self.queue, *self.workers.values()]

    def _task(self, move: Move) -> Task | None:
        return next((task for task in self.held[move.actor] if task.id == move.task), None)

    # -- producers and operators -----------------------------------------------------------

    def do_schedule(self, task_id: str, delay: int = 0) -> None:
        self.schedule(task_id, delay, b"", only_if_absent=False, relative=True)
        if task_id not in self.dead:
            self.due[task_id] = self.now + delay
            self.done.discard(task_id)
            self.early.discard(task_id)
            self.begun[task_id] = 0

    def do_schedule_later(self, task_id: str) -> None:
        self.do_schedule(task_id, LEASE)

    def do_cancel(self, task_id: str) -> None:
        self.cancel(task_id)
        if task_id not in self.dead:
            self.due.pop(task_id, None)

    def do_requeue(self, task_id: str) -> None:
        if task_id in self.dead:
            self.due[task_id], self.begun[task_id] = self.now, 0
        self.requeue([task_id])

    def do_purge(self, task_id: str) -> None:
        if task_id in self.dead:
            self.due.pop(task_id, None)
        self.purge([task_id])

    def do_pause(self) -> None:
        self.asked_to_pause = True
        self.pause_or_resume(paused=True)

    def do_resume(self) -> None:
        self.asked_to_pause = False
        self.pause_or_resume(paused=False)

    # -- workers ---------------------------------------------------------------------------

    def do_claim(self, worker: str) -> None:
        self._tell_of_silence(worker)
        claimed: Any = self.claim(worker, LIMIT, LEASE)
        del self.silent[worker]
        for task in claimed.values:
            assert task.id not in self.done, "what was done is claimed again"
            assert task.id in self.early or self.due.get(task.id, 0) <= self.now, "early"
            self._count(task.id, task.deliveries)
            self.held[worker].append(task)

    def do_lose_claim(self, worker: str) -> None:
        """Redis executes it, and the reply is lost."""
        self._tell_of_silence(worker)
        self.claim_and_lose_the_reply(worker, LIMIT, LEASE)
        self._count_leased(self.unreported[worker][-1])

    def do_delay_claim(self, worker: str) -> None:
        """Redis executes it late, if at all."""
        queue = self.workers[worker]
        reported, knew = [*self.unreported[worker]], queue.memory.paused
        with never_sent(queue) as run:
            queue.claim(LIMIT, LEASE, now_ms=self.now)
        self.unreported[worker] = [*queue.memory.lost_claims]
        self.delayed[worker] = run.call_args.args[2:], reported, knew

    def do_late_claim(self, worker: str) -> None:
        arguments, reported, knew = self.delayed.pop(worker)
        self.workers[worker]._run("claim", self.now, *arguments)
        self.renew_pause(knew=knew)
        self.report_lost_claims(worker, reported, LEASE)
        token = arguments[4]
        self.take(worker, LIMIT, LEASE, token)
        self._count_leased(token)

    def _tell_of_silence(self, worker: str) -> None:
        """The next claim says for how long Redis has been silent."""
        ms = self.now - self.silent.setdefault(worker, self.now)
        self.workers[worker].memory.silent_since = time.monotonic() - ms / 1000
        self.note_silence(ms)

    def _count_leased(self, token: str) -> None:
        for task_id, known in self.known.items():
            if known.attempts and known.attempts.token == token:
                self._count(task_id, known.attempts.deliveries)

    def _count(self, task_id: str, deliveries: int) -> None:
        """No more deliveries are counted than a task was claimed before."""
        begun = self.begun.get(task_id, 0)
        assert deliveries <= begun, f"{deliveries} deliveries of {begun}"
        self.begun[task_id] = begun + 1

    def do_die(self, worker: str) -> None:
        self.workers[worker].memory = Memory(secrets.token_hex(8))
        self.held[worker], self.unreported[worker] = [], []
        self.claims.pop(worker, None)
        self.silent.pop(worker, None)

    def do_sweep(self, worker: str) -> None:
        """Restore what the records say, one after the other."""
        for task_id, due in sorted(self.due.items()):
            self.restore([task_id], due - self.now, b"", worker, look_only=False)
        self.flushed = self.flushed and not self.due.keys() <= self.known.keys()

    def do_resign(self, worker: str) -> None:
        self.resign(worker)

    def do_ack(self, worker: str, task_id: str, *, heard: bool = True) -> None:
        task = self._let_go(worker, task_id, keep=not heard)
        was_known = task_id in self.known
        self.ack(task)
        if was_known and task_id not in self.known:
            self.done.add(task_id)
            self.due.pop(task_id, None)

    def do_ack_unheard(self, worker: str, task_id: str) -> None:
        """The reply is lost, so the worker sends it again at some time."""
        self.do_ack(worker, task_id, heard=False)

    def do_extend(self, worker: str, task_id: str) -> None:
        self.extend(self._let_go(worker, task_id, keep=True), LEASE)

    def do_extend_long(self, worker: str, task_id: str) -> None:
        self.extend(self._let_go(worker, task_id, keep=True), 2 * LEASE)

    def do_retry(self, worker: str, task_id: str, put: Put = Put.AGAIN) -> None:
        self.retry(self._let_go(worker, task_id), LEASE, put)

    def do_fail(self, worker: str, task_id: str) -> None:
        self.do_retry(worker, task_id, Put.FAILED)

    def do_defer(self, worker: str, task_id: str) -> None:
        self.do_retry(worker, task_id, Put.NOT_DUE)

    def do_look_again(self, worker: str, task_id: str) -> None:
        self.do_retry(worker, task_id, Put.LATER)

    def do_reschedule(self, worker: str, task_id: str) -> None:
        """It is done, and due again."""
        self.do_retry(worker, task_id, Put.NEW)

    def do_release(self, worker: str, task_id: str) -> None:
        self.release(self._let_go(worker, task_id))

    def do_bury(self, worker: str, task_id: str) -> None:
        self.dead_letter(self._let_go(worker, task_id))

    def _let_go(self, worker: str, task_id: str, *, keep: bool = False) -> Task:
        task = next(task for task in self.held[worker] if task.id == task_id)
        if not keep:
            self.held[worker].remove(task)
        return task

    # -- what happens to all ---------------------------------------------------------------

    def do_moment_passes(self) -> None:
        self.now += LEASE // 2

    def do_lease_ends(self) -> None:
        self.now += LEASE

    def do_clock_back(self) -> None:
        self.now -= LEASE

    def do_clock_forward(self) -> None:
        self.now += 100 * LEASE

    def do_outage(self) -> None:
        """Nobody reaches Redis for a while, and everybody tries."""
        for worker in WORKERS:
            self.silent.setdefault(worker, self.now)
        self.now += OUTAGE

    def do_flush(self) -> None:
        self.flushed, self.renewed = True, not self.asked_to_pause
        self.client.delete(*self._keys)
        self.forget_everything()

    def do_save(self) -> None:
        self.saved = self._dump(), self._model()

    def do_restart(self) -> None:
        """Redis has lost what it did since it wrote to its disk, or fails over to a replica that is behind."""
        stored, model = self.saved
        self._restore(stored)
        vars(self).update(copy.deepcopy(model))
        self.flushed, self.renewed = True, not self.asked_to_pause
        self.done, self.early = self.done - self.known.keys(), {*self.known}
        for task_id, known in self.known.items():
            begun = known.attempts.deliveries + 1 if known.attempts else 0
            self.begun[task_id] = max(self.begun.get(task_id, 0), begun)


def _in_order(value: Any) -> Any:
    """The same text for the same content; the order of what is dead counts."""
    if isinstance(value, dict):
        return sorted((key, repr(each)) for key, each in value.items())
    return sorted(value) if isinstance(value, set) else value
