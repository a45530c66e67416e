"""The flow that sends webhooks."""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import structlog

from orders.bootstrap import Services
from orders.errors import StorageUnavailable
from orders.http.schemas.orders import OrderOut
from orders.http.schemas.types import rfc3339
from orders.outages import outages
from orders.queues import WEBHOOK_QUEUE
from orders.sql.ids import is_uuid
from orders.watch.traces import NO_TRACES, Traces
from orders.webhooks.domain import Answer, Message
from orders.webhooks.sender import WebhookSender
from orders.webhooks.service import Webhooks
from orders.webhooks.signatures import signed
from orders.webhooks.turns import Turns
from worker import DeadLetter, Due, Flow, NotDue, Outcome, Task

log = structlog.get_logger("orders")

#: Deliveries in one page of the sweep: while Redis does not answer, one page is sent at a time.
PAGE_SIZE = 64
#: A slow endpoint may have one thread in this many at a time.
SLOW_SHARE = 4
#: How often a process deletes the old deliveries of a subscription that gets new ones.
PRUNE_SECONDS = 60.0


def webhook_flow(
    services: Services, sender: WebhookSender | None = None, *, traces: Traces = NO_TRACES
) -> Flow:
    """Send webhooks, one at a time in each thread."""
    settings, webhooks = services.settings, services.webhooks
    threads = settings.webhook_threads
    deliver = Deliverer(
        webhooks,
        sender
        or WebhookSender(
            settings.webhook_timeout_seconds, allow_private=settings.webhook_allow_private
        ),
        threads,
        traces,
    )

    def waiting(after_seconds: float | None, before_seconds: float) -> Iterator[list[Due]]:
        with outages():
            for page in webhooks.upcoming(after_seconds, before_seconds, PAGE_SIZE):
                yield [Due(each.id, each.due_in_ms) for each in page]

    def probe() -> None:
        with outages():
            services.orders.check_ready()

    return Flow(
        name=WEBHOOK_QUEUE,
        handler=deliver,
        sweep=waiting,
        without_redis="handle",  # several workers may: the lease in each row decides
        probe=probe,
        threads=threads,
        batch_size=1,
        lease_seconds=settings.lease_seconds,
        max_deliveries=settings.max_deliveries,
        sweep_seconds=settings.sweep_seconds,
        lookahead_seconds=settings.lookahead_seconds,
    )


class Deliverer:
    """Sends deliveries and records the outcomes."""

    def __init__(
        self, webhooks: Webhooks, sender: WebhookSender, threads: int, traces: Traces = NO_TRACES
    ) -> None:
        self._webhooks = webhooks
        self._sender = sender
        self._threads = threads
        self._traces = traces
        self._turns = Turns(max(1, threads // SLOW_SHARE))
        #: By subscription, on the monotonic clock.
        self._pruned_at: dict[str, float] = {}

    def __call__(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        """A claim brings one task. While Redis does not answer, the sweep brings a page."""
        if len(tasks) == 1:
            outcomes = [self._deliver(tasks[0])]
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                outcomes = [*pool.map(self._deliver, tasks)]
        pairs = zip(tasks, outcomes, strict=True)
        return {task.id: outcome for task, outcome in pairs if outcome is not None}

    def _deliver(self, task: Task) -> Outcome | None:
        if not is_uuid(task.id):
            return DeadLetter("its id is not a delivery's")
        with outages():
            claimed = self._webhooks.claim(task.id)
        if not isinstance(claimed, Message):
            return None if claimed is None else NotDue(claimed)
        wait_ms = self._turns.begin(claimed.subscription_id)
        if wait_ms:
            with outages():
                self._webhooks.put_off(claimed, wait_ms)
            return NotDue(wait_ms)
        began = time.monotonic()
        try:
            answer = self._send(claimed)
        finally:
            self._turns.end(claimed.subscription_id, time.monotonic() - began)
        with outages():
            again = self._webhooks.record(claimed, answer)
        if not answer.is_success:
            log.info(
                "webhook not delivered",
                delivery=claimed.id,
                webhook=claimed.subscription_id,
                order=claimed.order.id,
                attempt=claimed.attempts + 1,
                status=answer.status,
                error=answer.error,
                **claimed.origin.fields(),
            )
        self._prune(claimed.subscription_id, time.monotonic())
        return None if again is None else NotDue(again)

    def _prune(self, subscription_id: str, now: float) -> None:
        """Delete the subscription's old deliveries, if that was not done recently."""
        if now >= self._pruned_at.get(subscription_id, -PRUNE_SECONDS) + PRUNE_SECONDS:
            self._pruned_at[subscription_id] = now
            with suppress(StorageUnavailable):  # best effort: the message was sent
                self._webhooks.prune(subscription_id)

    def _send(self, message: Message) -> Answer:
        try:
            body = body_of(message)
            headers = signed(message.id, body, message.secrets, now_seconds=time.time())
            return self._traces.send(
                message, lambda more: self._sender.post(message.url, {**more, **headers}, body)
            )
        except Exception:
            # Counted as an attempt, so that SQL and not Redis decides when to give up.
            log.exception("webhook failed", delivery=message.id, order=message.order.id)
            return Answer(None, "internal error", None)


def body_of(message: Message) -> bytes:
    """What is sent. The order is as GET shows it at this moment."""
    order: dict[str, Any] = OrderOut.model_validate(message.order).model_dump(mode="json")
    body = {
        "type": message.type,
        "timestamp": rfc3339(message.at),
        "sequence": message.sequence,
        "data": {**message.facts, "order": order},
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
