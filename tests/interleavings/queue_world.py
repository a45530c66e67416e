"""The queue on a real server, two workers and an operator, who act one at a time in any order."""

import pickle
import re
from collections.abc import Hashable
from typing import Any

import redis

from tests.kit.moves import WORKERS, Move
from tests.kit.queue_model import DAY, SLACK, Machine, Run, Said
from tests.kit.queue_steps import never_sent
from tests.kit.settling import ack
from worker import DelayQueue, Due, Task
from worker.queue.memory import Memory
from worker.queue.replies import Verb

LEASE, LIMIT, OUTAGE, LONG = 20, 4, 3000, 2000
#: What is lost with Redis.
REDIS = (
    *("known", "dead", "paused", "claims", "alone", "sweeper"),
    *("not_before", "seeded", "recurrence"),
)
OWN = (
    *("now", "due", "done", "held", "begun", "asked_to_pause", "flushed"),
    *("is_recurring", "looked", "expected"),
)
#: Of these counts what claims say.
SAID = ("ran", "silent", "spares_until", "ahead", "delayed")
#: Of a lease, and of who claims.
TOKEN = re.compile(r"(?<![0-9a-f])([0-9a-f]{64}|[0-9a-f]{16})(?![0-9a-f])")
#: How a worker puts back what it holds.
PUTS = {
    "retry": Verb.AGAIN,
    "fail": Verb.FAILED,
    "defer": Verb.NOT_DUE,
    "look again": Verb.LATER,
    "reschedule": Verb.NEW,
}


#: When the first recurring run is due: that of the task ``a``.
FIRST_RUN = 10 * DAY + LEASE


def next_run(now: int, offset: int) -> Run:
    """The first after a moment, by a schedule."""
    due = now + LEASE - (now - FIRST_RUN - offset) % LEASE
    return "a" if due == FIRST_RUN else f"run {due - FIRST_RUN}", due


class QueueWorld(Machine):
    """Each move is made on the server and on the model, which are compared after it."""

    names = WORKERS

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
        #: When the next claim of a task may come at the earliest.
        self.not_before: dict[str, int] = {}
        #: Whether nobody has swept since Redis lost something.
        self.flushed = False
        #: A worker's claim, or what gives back an earlier one, that it no longer waits for and that Redis has not executed
        #: yet: the script's arguments.
        self.delayed: dict[str, tuple[list[Any], Said]] = {}
        #: Whether the tasks are those of a recurring flow, of which the application has no records.
        self.is_recurring = False
        #: When each worker looked last, and the run that it seeded then.
        self.looked: dict[str, int] = {}
        self.expected: dict[str, Run] = {}
        #: What Redis has written to its disk, and the model of it.
        self.saved = dict[str, bytes](), self._model()

    # -- for the explorer ------------------------------------------------------------------

    def key(self) -> Hashable:
        said = [(self.said(worker), list[Any]()) for worker in WORKERS]
        said += [(said, arguments[2:3]) for arguments, said in self.delayed.values()]
        words = [(each._replace(newest=False), token) for each, token in said]  # no backlog is here
        own = [_in_order(getattr(self, name)) for name in (*REDIS, *OWN)]
        saved = [_in_order(value) for value in _unpacked(self.saved[1]).values()]
        names: dict[str, str] = {}  # each token is new, so it is named after its place
        text = repr((own, words, saved))
        return TOKEN.sub(lambda found: names.setdefault(found[0], f"#{len(names)}"), text)

    def save(self) -> Any:
        memories = [queue.memory for queue in self._queues()]
        own = {name: getattr(self, name) for name in (*REDIS, *OWN, *SAID, "saved")}
        return self._dump(), pickle.dumps((memories, own))

    def load(self, saved: Any) -> None:
        stored, rest = saved
        self._restore(stored)
        memories, own = _unpacked(rest)
        for queue, memory in zip(self._queues(), memories, strict=True):
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

    def _model(self) -> bytes:
        return pickle.dumps({name: getattr(self, name) for name in REDIS})

    def can(self, move: Move) -> bool:
        """A worker settles only what it believes it holds."""
        if move.verb == "late claim":
            return move.actor in self.delayed
        return not (move.actor and move.task) or self._task(move) is not None

    def do(self, move: Move) -> None:
        if move.verb in PUTS:
            self.put_back(move.actor, move.task, PUTS[move.verb])
        else:
            move.make(self)
        self.each_task_is_where_the_model_says_and_nothing_else_is_stored()
        assert not self.paused or self.asked_to_pause, "nobody asked for the pause"
        assert self.flushed or self.due.keys() <= self.known.keys(), "a task is lost"

    def check(self) -> None:
        """With all faults over, everybody goes on, and everything is settled. No pause comes back."""
        self.queue.resume()
        left = set(self.due)
        for round_ in range(12):
            self.time_passes(10 * LEASE)
            records = [Due(task_id, self.due[task_id] - self.now) for task_id in sorted(left)]
            for queue in self._queues() if round_ < 1 else [self.queue]:
                queue.restore(records)
                claim = queue.claim(LIMIT, LEASE)
                ack(queue, claim.tasks)
                left -= {task.id for task in claim.tasks}
                assert not claim.paused, "the pause came back"
            if not claim.tasks and claim.next_in_ms is None:
                break
        else:
            raise AssertionError(f"not settled: {self.queue.stats()}")
        assert left <= {*self.dead}, f"lost: {left}"

    def _queues(self) -> list[DelayQueue]:
        return [self.queue, *self.workers.values()]

    def _task(self, move: Move) -> Task | None:
        return next((task for task in self.held[move.actor] if task.id == move.task), None)

    # -- producers and operators -----------------------------------------------------------

    def do_schedule(self, task_id: str, delay: int = 0) -> None:
        self.schedule(task_id, delay, b"", relative=True)
        if task_id not in self.dead:
            self._planned(task_id, self.now + delay)
            self.done.discard(task_id)

    def _planned(self, task_id: str, at: int) -> None:
        self.not_before[task_id], self.begun[task_id] = at, 0
        if not self.is_recurring:
            self.due[task_id] = at

    def do_schedule_later(self, task_id: str) -> None:
        self.do_schedule(task_id, LEASE)

    def do_record_moves(self, task_id: str) -> None:
        """Redis never hears of it."""
        if task_id in self.due:
            self.due[task_id] = self.now + 2 * SLACK

    def do_cancel(self, task_id: str) -> None:
        self.cancel(task_id)
        if task_id not in self.dead:
            self.due.pop(task_id, None)

    def do_requeue(self, task_id: str) -> None:
        if task_id in self.dead:
            self._planned(task_id, self.now)
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

    def do_claim(self, worker: str, ahead: int = 0) -> None:
        claimed: Any = self.claim(worker, LIMIT, LEASE, ahead)
        if self.is_recurring:
            self.looked[worker] = self.now
        for task in claimed.values:
            self._begin(task.id, task.deliveries, ahead)
            self.held[worker].append(task)

    def do_claim_ahead(self, worker: str) -> None:
        self.do_claim(worker, LEASE)

    def do_lose_claim(self, worker: str) -> None:
        """Redis executes it, and the reply is lost."""
        self.claim_and_lose_the_reply(worker, LIMIT, LEASE)
        self._begin_leased(self.said(worker).lost)

    def do_delay_claim(self, worker: str) -> None:
        """Redis executes it late, if at all."""
        queue, said = self.workers[worker], self.asks(worker)
        with never_sent(queue) as script:
            queue.claim(LIMIT, LEASE)
        self.silent.setdefault(worker, self.ran)
        self.delayed[worker] = script.call_args.kwargs["args"][1:], said

    def do_late_claim(self, worker: str) -> None:
        arguments, said = self.delayed.pop(worker)
        if said.lost:
            self.workers[worker]._run("give_back", None, *arguments)
            self.give_back(said)
            return
        self.workers[worker]._run("claim", None, *arguments)
        for task_id in self.take(said, LIMIT, LEASE, arguments[2]) or ():
            self._begin(task_id, self.known[task_id].tried.deliveries)

    def do_redeliver(self, worker: str) -> None:
        """It dies before it claims what it has put back."""
        self.workers[worker]._run("redeliver", None, LIMIT, LEASE, self.now)
        self.redeliver(LIMIT, LEASE)

    def do_late_redeliver(self, worker: str) -> None:
        """Redis was frozen meanwhile."""
        self.workers[worker]._run("redeliver", None, LIMIT, LEASE, self.now - 1)

    def _begin_leased(self, token: str) -> None:
        for task_id, known in self.known.items():
            if known.attempts and known.attempts.token == token:
                self._begin(task_id, known.attempts.deliveries)

    def _begin(self, task_id: str, deliveries: int, ahead: int = 0) -> None:
        """No more deliveries are counted than a task was claimed before."""
        assert task_id not in self.done, "what was done is claimed again"
        assert self.not_before.pop(task_id, 0) <= self.now + ahead, "early"
        begun = self.begun.get(task_id, 0)
        assert deliveries <= begun, f"{deliveries} deliveries of {begun}"
        self.begun[task_id] = begun + 1

    def do_seed(self, worker: str, offset: int = 0) -> None:
        """What a recurring flow's worker does after its latest claim, perhaps late. No run that began is seeded again."""
        self.is_recurring = True
        looked = self.looked.setdefault(worker, self.now)
        upcoming, missed = next_run(looked, offset), self.expected.pop(worker, None)
        if missed and (missed[1] > looked or missed[0] in {each.id for each in self.held[worker]}):
            missed = None
        seeded = self.seed(f"schedule {offset}", FIRST_RUN - LEASE, upcoming, missed)
        if seeded.in_force:
            self.expected[worker] = upcoming
        for run, due in filter(None, (missed, upcoming)):
            if run in seeded.ids:
                assert not self.begun.get(run), f"{run} is seeded again"
                self._planned(run, due)

    def do_seed_anew(self, worker: str) -> None:
        """By a newer schedule."""
        self.do_seed(worker, LEASE // 2)

    def do_die(self, worker: str) -> None:
        queue = self.workers[worker]
        queue.memory = Memory(queue.environment.token(8))
        self.held[worker] = []
        for facts in (
            self.claims,
            self.silent,
            self.spares_until,
            self.ahead,
            self.looked,
            self.expected,
        ):
            facts.pop(worker, None)

    def do_sweep(self, worker: str) -> None:
        """Restore what the records say, one after the other."""
        for task_id, due in sorted(self.due.items()):
            self.restore([task_id], due - self.now, b"", worker, look_only=False)
            known = self.known.get(task_id)
            if known and (known.place, known.at) == ("scheduled", due):
                self.not_before[task_id] = due
        self.flushed = self.flushed and not self.due.keys() <= self.known.keys()

    def do_look(self, worker: str) -> None:
        """Ask what a sweep would restore."""
        for task_id, due in sorted(self.due.items()):
            self.restore([task_id], due - self.now, b"", worker, look_only=True)

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

    def put_back(self, worker: str, task_id: str, put: Verb, delay: int = LEASE) -> None:
        """A reschedule means that it is done, and due again."""
        place = self._place(task_id)
        self.retry(self._let_go(worker, task_id), delay, put)
        if place != self._place(task_id) == "scheduled":
            self.not_before[task_id] = self.now + delay

    def do_retry_long(self, worker: str, task_id: str) -> None:
        self.put_back(worker, task_id, Verb.AGAIN, LONG)

    def _place(self, task_id: str) -> str:
        return self.known[task_id].place if task_id in self.known else ""

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
        self.time_passes(LEASE // 2)

    def do_lease_ends(self) -> None:
        self.time_passes(LEASE)

    def do_clock_back(self) -> None:
        self.now -= LEASE

    def do_clock_far_back(self) -> None:
        self.now -= LONG

    def do_clock_forward(self) -> None:
        self.now += LONG

    def do_outage(self) -> None:
        """Nobody reaches Redis for a while, and everybody tries."""
        for worker, queue in self.workers.items():
            self.silent.setdefault(worker, self.ran)
            queue.memory.silent_since = self.silent[worker] / 1000
        self.time_passes(OUTAGE)

    def do_flush(self) -> None:
        self.client.delete(*self._keys)
        self.forget_everything()
        self.not_before = {}
        self._lost()

    def _lost(self) -> None:
        """Redis has lost something: what became of tasks that it does not know, and perhaps that they began."""
        self.flushed = True
        self.done = set() if self.is_recurring else self.done - self.known.keys()
        self.begun = {
            task_id: known.attempts.deliveries + 1 if known.attempts else 0
            for task_id, known in self.known.items()
        }

    def do_save(self) -> None:
        self.saved = self._dump(), self._model()

    def do_restart(self) -> None:
        """Redis has lost what it did since it wrote to its disk, or fails over to a replica that is behind."""
        stored, model = self.saved
        self._restore(stored)
        vars(self).update(_unpacked(model))
        self.asked_to_pause = self.paused
        self._lost()


def _in_order(value: Any) -> Any:
    """The same text for the same content, whatever its tokens; the order of what is dead counts."""

    def place(item: tuple[str, Any]) -> str:
        return TOKEN.sub("", repr(item))

    if isinstance(value, dict):
        return sorted(value.items(), key=place)
    return sorted(value) if isinstance(value, set) else value


def _unpacked(saved: bytes) -> Any:
    return pickle.loads(saved)  # noqa: S301  it is our own
