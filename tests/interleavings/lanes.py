"""Real consumers and recurring flows on a real server: each stops before every call, so that anything may happen there."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import redis
from redis.commands.core import Script

from tests.interleavings.queue_world import TOKEN
from tests.kit.engine import shared_by
from tests.kit.moves import Move
from tests.kit.queue_state import state
from tests.kit.queue_steps import numbered
from worker import Consumer, ConsumerClosed, DelayQueue, Flow, Recurring, Task, one_at_a_time
from worker.queue.environment import Environment
from worker.queue.scripted import _answer
from worker.runtime.lane import Lane
from worker.runtime.station import ServerCheck, Station

LEASE_SECONDS, MINUTE, BEGIN_MS = 20, 60_000, 1_800_000_000_000
#: How a process goes on where it has stopped.
WAYS = ("go on", "lose", "miss", "cut", "fail")


class Died(BaseException):
    """The process is gone."""


class Process:
    """A program in a thread, which stops before each call until it is told how to go on."""

    def __init__(self, program: Callable[["Process"], None]) -> None:
        # Locks that one thread acquires and the other releases.
        self._told, self._stopped = threading.Lock(), threading.Lock()
        self._told.acquire()
        self._stopped.acquire()
        #: The call that it is about to make; "" after its end.
        self.at = "begin"
        self._way = ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(program,), daemon=True)
        self._thread.start()
        self._stopped.acquire()

    def _run(self, program: Callable[["Process"], None]) -> None:
        try:
            self.stop("begin", lambda: None)
            program(self)
        except Died:
            pass
        except BaseException as error:  # noqa: BLE001  shown to whoever tells it to go on
            self._error = error
        finally:
            self.at = ""
            self._stopped.release()

    def stop(self, at: str, call: Callable[[], Any]) -> Any:
        """Make a call, once it is told to. Others than the process's own thread need not wait."""
        if threading.current_thread() is not self._thread:
            return call()
        if self._way != "die":
            self.at = at
            self._stopped.release()
            self._told.acquire()
        if self._way == "die":
            raise Died
        if self._way == "miss":
            raise redis.ConnectionError("refused")
        if self._way == "fail":
            raise RuntimeError("its work failed")
        answer = call()
        if self._way == "lose":
            raise redis.TimeoutError("no reply")
        return [*answer[:-1], redis.TimeoutError("no reply")] if self._way == "cut" else answer

    def tell(self, way: str) -> None:
        self._way = way
        self._told.release()
        self._stopped.acquire()
        if self._error is not None:
            raise self._error


class LaneWorld:
    """Two processes serve one queue. What cannot be copied is made again, move by move."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        #: The processes' monotonic clocks go with the server's, but never back.
        self.environment = Environment(
            clock=lambda: (self.now + self.back) / 1000, token=numbered()
        )
        self.queue = DelayQueue(client, "lanes", environment=self.environment)
        self.processes: dict[str, Process] = {}
        self._restart()

    def _restart(self) -> None:
        for process in self.processes.values():
            if process.at:
                process.tell("die")
        self.client.delete(*self.queue.keys.stored())
        #: The server's clock, and how far that was set back.
        self.now, self.back = BEGIN_MS, 0
        self.moves: list[Move] = []
        self.stations: dict[str, Station] = {}
        self.consumers: dict[str, Consumer] = {}
        #: How often each task was worked on to the end, and how often something went wrong that may repeat it.
        self.works = Counter[str]()
        self.faults = self.deaths = 0
        #: What a worker's code cannot say, because an exception would be a failure of the task.
        self.wrong: list[str] = []
        self.processes = {name: self._started(name) for name in ("w1", "w2")}

    def _started(self, name: str) -> Process:
        return Process(partial(self.program, name))

    # -- for the explorer ------------------------------------------------------------------

    def key(self) -> Hashable:
        claims: Any = self.client.zrange(self.queue.keys.claims, 0, -1, withscores=True)
        processes = [
            (process.at, process.at and _memory(self.stations.get(name)))
            for name, process in self.processes.items()
        ]
        facts = (self.now, self.back, sorted(self.works.items()), self.faults, self.deaths)
        names: dict[str, str] = {}
        return TOKEN.sub(
            lambda found: names.setdefault(found[0], f"#{len(names)}"),
            repr((state(self.queue), claims, processes, facts)),
        )

    def save(self) -> Any:
        return [*self.moves]

    def load(self, saved: Any) -> None:
        self._restart()
        for move in saved:
            self.do(move)

    def can(self, move: Move) -> bool:
        at = self.processes[move.actor].at if move.actor else ""
        if move.verb == "fail":
            return at == "work"
        if move.verb == "cut":
            return at.startswith("settle, ")
        if move.verb in ("lose", "miss"):
            return at not in ("", "begin", "work", "idle")
        return not move.actor or at != ""

    def do(self, move: Move) -> None:
        self.moves.append(move)
        if move.verb in WAYS:
            self.faults += move.verb != "go on"
            self.processes[move.actor].tell(move.verb)
        else:
            move.make(self)
        assert not self.wrong, self.wrong
        stored = state(self.queue)
        places = [each for name in ("scheduled", "leased", "dead") for each in stored.get(name, ())]
        assert len(places) == len({*places}), "a task is not in one place"

    def check(self) -> None:
        """With all faults over, everybody works until nothing is due."""
        self.queue.resume()
        for _ in range(5):
            self.do_minute_passes()
            for process in [*self.processes.values()] * 2:
                self._until_idle(process)
        self.settled()
        assert not self.wrong, self.wrong

    def _until_idle(self, process: Process) -> None:
        for _ in range(12):
            if process.at:
                process.tell("go on")
            if process.at in ("idle", ""):
                return
        raise AssertionError(f"does not come to rest: {process.at}")

    def settled(self) -> None:
        stats = self.queue.stats(now_ms=self.now)
        assert (stats.leased, stats.due) == (0, 0), f"not settled: {stats}"

    # -- what happens ----------------------------------------------------------------------

    def do_die(self, name: str) -> None:
        """A successor begins, which remembers nothing."""
        self.deaths += 1
        self.faults += 1
        self.processes[name].tell("die")
        self.processes[name] = self._started(name)

    def do_schedule(self, task_id: str) -> None:
        self.queue.schedule(task_id, delay_ms=0, now_ms=self.now)

    def do_pause(self) -> None:
        self.queue.pause()

    def do_resume(self) -> None:
        self.queue.resume()

    def do_flush(self) -> None:
        self.client.delete(*self.queue.keys.stored())

    def do_minute_passes(self, ms: int = MINUTE) -> None:
        """A lease ends if its process stops for so long, or does not tell in time that a claim's reply was lost."""
        at = {process.at for process in self.processes.values()}
        untold = any(each.queue.memory.unanswered for each in self.stations.values())
        if untold or at - {"", "begin", "idle", "claim"}:
            self.deaths += 1
            self.faults += 1
        self.now += ms

    def do_moment_passes(self) -> None:
        """Longer than a worker waits after a claim that failed."""
        self.now += 1000

    def do_clock_back(self) -> None:
        self.now, self.back = self.now - MINUTE, self.back + MINUTE

    def do_renew(self, name: str) -> None:
        with suppress(redis.RedisError, KeyError):
            self.stations[name].renewer.round()

    # -- processes -------------------------------------------------------------------------

    def program(self, name: str, process: Process) -> None:
        raise NotImplementedError

    def _opened(self, name: str, process: Process, station: Station) -> None:
        """Have it stop before each script, which runs at the world's time."""
        queue = station.queue
        station.gate._up, queue.memory.claimer = True, f"{name} {self.deaths}"
        queue.memory.server_ahead_ms = -self.back  # as after its first claim
        self.stations[name] = station

        def run(script: str, call: Script, *, keys: list[str], args: list[Any]) -> Any:
            return process.stop(script, lambda: call(keys, [args[0] or self.now, *args[1:]]))

        scripts = queue._scripts.items()
        vars(queue)["_scripts"] = {
            script: (partial(run, script, call), keys) for script, (call, keys) in scripts
        }

    def _work(self, process: Process, task: Task) -> None:
        process.stop("work", lambda: None)
        self.works[task.id] += 1
        wrong = {
            "early": self.now + self.back < task.due_at_ms,
            f"{task.deliveries} deliveries": self.deaths < task.deliveries,
            f"{task.id} is done again": 1 + self.faults < self.works[task.id],
        }
        self.wrong += [what for what, is_so in wrong.items() if is_so]


class ConsumerWorld(LaneWorld):
    """Each takes one task after the other."""

    def program(self, name: str, process: Process) -> None:
        consumer = Consumer(
            self.client,
            self.queue.name,
            lease_seconds=LEASE_SECONDS,
            environment=self.environment,
        )
        consumer._begun = True  # no threads: the world says when leases are extended
        self.consumers[name] = consumer
        self._opened(name, process, consumer._lane.stations[0])
        with suppress(ConsumerClosed):
            while True:
                with suppress(RuntimeError), consumer.take(timeout_seconds=0) as task:
                    if task is not None:
                        self._work(process, task)
                process.stop("idle", lambda: None)

    def do_close(self, name: str) -> None:
        self.deaths += 1  # what a lost claim leased is nobody's then
        self.faults += 1
        with suppress(KeyError):
            self.consumers[name].close()

    def settled(self) -> None:
        if any(process.at for process in self.processes.values()):
            super().settled()


class RecurringWorld(LaneWorld):
    """Each runs what a cron expression says, every minute."""

    def program(self, name: str, process: Process) -> None:
        flow = Recurring(
            self.queue.name,
            cron="* * * * *",
            timezone="UTC",
            handler=lambda task: self._work(process, task),
            lease_seconds=LEASE_SECONDS,
        )
        lane = Lane(shared_by(self.environment))
        lane.add(flow, self.client, ServerCheck(self.queue))
        self._opened(name, process, lane.stations[0])
        while True:
            if (batch := lane.next(until=self.environment.clock())) is not None:
                lane._handle(batch)
            process.stop("idle", lambda: None)

    def do_flush(self) -> None:
        """A worker that has not looked since a run was due does not know that it began."""
        recurrences = [station._recurrence for station in self.stations.values()]
        known = [each._expected for each in recurrences if each and each._expected]
        self.faults += any(each.due_at_ms <= self.now for each in known)
        super().do_flush()

    def do_extra_run(self) -> None:
        flow: Any = next(iter(self.stations.values())).flow
        self.queue.schedule(*flow.extra_run(self.now), now_ms=self.now)

    def settled(self) -> None:
        """What was due in the last minutes has run, and the next run waits."""
        super().settled()
        for minutes in range(1, 4):
            ran = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(self.now // 1000 - 60 * minutes))
            assert any(each.startswith(ran) for each in self.works), f"{ran} did not run"
        waiting = state(self.queue)["scheduled"]
        assert len(waiting) == 1, f"{waiting} are scheduled at {self.now}"


class WorkerWorld(LaneWorld):
    """Each works through a backlog, one task at a time: what is settled leaves with the next claim."""

    def program(self, name: str, process: Process) -> None:
        handler = one_at_a_time(lambda task: self._work(process, task))
        flow = Flow(name=self.queue.name, handler=handler, lease_seconds=LEASE_SECONDS)
        lane = Lane(shared_by(self.environment))
        lane.add(flow, self.client, ServerCheck(self.queue))
        queue = lane.stations[0].queue
        scripts = queue._scripts

        def run(*calls: Any) -> list[Any]:
            return [
                scripts[script][0](scripts[script][1], [now or self.now, *args])
                for script, now, *args in calls
            ]

        def together(*calls: Any) -> list[Callable[[], Any]]:
            try:
                replies = process.stop(", ".join(name for name, *_ in calls), partial(run, *calls))
            except redis.RedisError as error:
                replies = [error] * len(calls)
            return [partial(_answer, reply) for reply in replies]

        self._opened(name, process, lane.stations[0])
        vars(queue)["_together"], queue.line.is_open = together, True
        while True:
            batch = lane.next(until=self.environment.clock())
            while batch is not None:
                batch = lane._handle(batch)
            process.stop("idle", lambda: None)


def _memory(station: Station | None) -> Any:
    if station is None:
        return None
    settler = station.settler
    held = [(held.leased_at, held.tasks()) for held in station.renewer.held()]
    recurrence = station._recurrence and {
        name: value
        for name, value in vars(station._recurrence).items()
        if name[1:] in ("started_at_ms", "expected")
    }
    return (
        replace(station.queue.memory, claimer=""),
        (station._failed_claims, station._claim_at, [*settler._unconfirmed], held, recurrence),
    )
