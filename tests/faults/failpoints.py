"""Flows that die at a named moment: ``FAILPOINT=moment`` kills this process there, with -9.

The moments are put around the real flow from outside, so the service itself has none.
"""

import dataclasses
import os
import signal
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from orders.bootstrap import bootstrap
from orders.config import Settings
from orders.timeouts import timeout_flow
from worker import Flow, Outcome, Task

MOMENTS = ("after_claim", "before_commit", "after_commit")


def flows() -> list[Flow]:
    """What a worker runs under test."""
    settings = Settings.from_env(os.environ)
    services = bootstrap(settings)
    flow = timeout_flow(services.orders, settings)

    def handler(tasks: Sequence[Task]) -> Mapping[str, Outcome] | None:
        _pass("after_claim")
        outcomes = flow.handler(tasks)
        _pass("after_commit")
        return outcomes

    @sa.event.listens_for(services.engine, "commit")
    def before_commit(_connection: sa.Connection) -> None:
        _pass("before_commit")

    return [dataclasses.replace(flow, handler=handler)]


def _pass(moment: str) -> None:
    if os.environ.get("FAILPOINT") == moment:
        os.kill(os.getpid(), signal.SIGKILL)
