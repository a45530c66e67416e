"""An API and flows to which something happens at a named moment.

``FAILPOINT=moment`` kills this process there, with -9; ``moment:stop`` freezes it, until
somebody continues it; ``moment:hang`` goes no further. It happens once.

``SLOW_POLL_SECONDS`` is how long a worker waits that nothing wakes.

``FLOWS`` names features whose flows the worker runs, too.

``CLOCK_OFFSET_SECONDS`` puts this process's clock wrong. Redis's, as the scripts of these processes read
it, is wrong by as many seconds as the key `REDIS_CLOCK_OFFSET` says, at any time.

All of it is put around the real thing from outside, so the service itself has none of it.
"""

import dataclasses
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis
import sqlalchemy as sa
import structlog
from flask import Flask

from orders import app
from orders.config import Settings
from orders.feature import features
from orders.hooks import CheckScheduler
from orders.queues import QUEUE
from orders.timeouts import timeout_flow
from orders.wiring import bootstrap
from worker import DelayQueue, Flow, Outcome, Task
from worker.queue.scripted import _Script
from worker.queue.scripts import scripts
from worker.runtime import lane

#: How often each moment is tried.
REPEAT = int(os.environ.get("REPEAT", "1"))
#: A batch that is handled passes these. ``in_delete`` is when the statement was sent and nothing has
#: come back.
MOMENTS = ("after_claim", "in_delete", "after_commit")
#: An order that is placed passes these before it is answered.
API_MOMENTS = ("before_insert", "after_commit")
#: Before and after each of these methods of the queue there is a moment too: ``before_retry``, ...
METHODS = ("schedule_many", "settle", "restore")

#: By how many seconds Redis's clock is wrong; no key: by none.
REDIS_CLOCK_OFFSET = f"{{{QUEUE}}}:clock_offset"
#: How a script makes milliseconds of the server's time, and how it makes them wrong.
SCRIPT_CLOCK = "time[1] * 1000"
WRONG_CLOCK = f"(time[1] + (redis.call('GET', '{REDIS_CLOCK_OFFSET}') or 0)) * 1000"


def flows() -> list[Flow]:
    """What a worker runs under test."""
    settings = Settings.from_env(os.environ)
    _set_clocks()
    lane.SLOW_POLL_SECONDS = float(os.environ.get("SLOW_POLL_SECONDS", lane.SLOW_POLL_SECONDS))
    services = bootstrap(settings)
    wanted = os.environ.get("FLOWS", "").split()
    # All are asked for: a feature may watch something, too.
    more = [flow for each in features() for flow in each.flows(services) if each.name in wanted]
    flow = timeout_flow(services)

    def handler(tasks: Sequence[Task]) -> Mapping[str, Outcome] | None:
        _pass("after_claim")
        outcomes = flow.handler(tasks)
        _pass("after_commit")
        return outcomes

    _watch(services.engine)
    _between_methods()
    return [dataclasses.replace(flow, handler=handler), *more]


def create_app() -> Flask:
    """The API under test."""
    _set_clocks()
    made = app.create_app()
    services = made.extensions["orders"]
    _watch(services.engine)
    services.orders._scheduler = _Scheduler(services.orders._scheduler)
    _between_methods()
    return made


class _Scheduler:
    def __init__(self, scheduler: CheckScheduler) -> None:
        self._scheduler = scheduler
        self.cancel = scheduler.cancel

    def schedule(self, order_id: str, *, delay_ms: float) -> None:
        _pass("after_commit")
        self._scheduler.schedule(order_id, delay_ms=delay_ms)


def _watch(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "before_cursor_execute")
    def before(
        connection: sa.Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> None:
        if "INSERT INTO orders" in statement:
            _pass("before_insert")
        if "DELETE FROM unpaid_orders" in statement and parameters[0] != "{}":  # the probe's
            driver: Any = connection.connection.driver_connection
            driver.wait = functools.partial(_wait, driver)


def _wait(driver: Any, gen: Any, *args: Any, **kwargs: Any) -> Any:
    """Wait for a statement's end, once; it is sent before the generator says what it waits for."""
    del driver.wait
    first = next(gen)
    _pass("in_delete")

    def rest() -> Any:
        yielded = first
        while True:
            sent = yield yielded
            try:
                yielded = gen.send(sent)
            except StopIteration as end:
                return end.value

    return driver.wait(rest(), *args, **kwargs)


def _between_methods() -> None:
    for name in METHODS:
        setattr(DelayQueue, name, _between(name, getattr(DelayQueue, name)))


def _between(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(queue: DelayQueue, rows: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not rows or kwargs.get("look_only"):  # a sweep that asks for its turn, or looks
            return method(queue, rows, *args, **kwargs)
        _pass(f"before_{name}")
        answer = method(queue, rows, *args, **kwargs)
        _pass(f"after_{name}")
        return answer

    return wrapped


def _pass(moment: str) -> None:
    name, _, action = os.environ.get("FAILPOINT", "").partition(":")
    if name != moment:
        return
    if action == "hang":
        threading.Event().wait()
    del os.environ["FAILPOINT"]
    # To this very thread: sent to the process, it may find this thread a few calls further on.
    number = signal.SIGSTOP if action == "stop" else signal.SIGKILL
    signal.pthread_kill(threading.get_ident(), number)


def _set_clocks() -> None:
    offset = float(os.environ.get("CLOCK_OFFSET_SECONDS", "0"))
    true_time = time.time
    time.time = lambda: true_time() + offset
    structlog.get_logger("worker").info("clock", at=time.time())
    plain_init = DelayQueue.__init__

    def init(queue: DelayQueue, client: redis.Redis, name: str, **more: Any) -> None:
        plain_init(queue, client, name, **more)
        for file in scripts():
            assert ("'TIME'" in file.text) == (SCRIPT_CLOCK in file.text), (
                f"{file.name} reads it otherwise"
            )
            _, keys = queue._scripts[file.name]
            script = _Script(queue._redis, file.text.replace(SCRIPT_CLOCK, WRONG_CLOCK))
            queue._scripts[file.name] = script, keys

    DelayQueue.__init__ = init  # type: ignore[method-assign, assignment]
