"""The flow that sends webhooks.

Its tasks only tell whose line to look at. Their ids are those of deliveries that are due, or of
subscriptions that the sweep found behind. They are done at once, many at a time; then the flow's own
threads send, in the order that `Turns` decides.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from orders.bootstrap import Services
from orders.errors import QueueUnavailable, StorageUnavailable
from orders.http.schemas.orders import OrderOut
from orders.http.schemas.types import rfc3339
from orders.log import log
from orders.outages import outages
from orders.queues import WEBHOOK_QUEUE, is_paused
from orders.sql.ids import is_uuid
from orders.watch.traces import NO_TRACES, Traces
from orders.webhooks.domain import Answer, Message
from orders.webhooks.sender import WebhookSender
from orders.webhooks.service import Webhooks
from orders.webhooks.signatures import signed
from orders.webhooks.turns import Turn, Turns
from worker import DeadLetter, DelayQueue, Due, Flow, NotDue, Outcome, Retry, Task
from worker.log import Reminder

#: How many subscriptions the sweep yields at a time.
PAGE_SIZE = 500
#: How often to look whether a subscription that the sweep found is still behind. Until then its task is put off.
BEHIND_MS = 5000
#: How often a process that sends asks whether an operator has paused the queue.
ASK_SECONDS = 1.0
INTERNAL_ERROR = Answer(None, "internal error", None)


def webhook_flow(
    services: Services, sender: WebhookSender | None = None, *, traces: Traces = NO_TRACES
) -> Flow:
    """Send webhooks."""
    settings = services.settings
    sender = sender or WebhookSender(
        settings.webhook_timeout_seconds, allow_private=settings.webhook_allow_private
    )
    ask_if_paused = partial(
        is_paused, DelayQueue(services.redis, WEBHOOK_QUEUE), services.pauses[WEBHOOK_QUEUE]
    )
    deliver = Deliverer(services.webhooks, sender, settings.webhook_threads, ask_if_paused, traces)

    return Flow(
        name=WEBHOOK_QUEUE,
        handler=deliver,
        sweep=deliver.forgotten,
        without_redis="handle",  # several workers may: the lease in each row decides
        probe=outages()(services.orders.check_ready),
        pauses=services.pauses[WEBHOOK_QUEUE],
        finish=deliver.finish,
        threads=1,
        **settings.of_each_flow,
    )


class Deliverer:
    """Sends deliveries and records the outcomes."""

    def __init__(
        self,
        webhooks: Webhooks,
        sender: WebhookSender,
        threads: int,
        is_paused: Callable[[], bool],
        traces: Traces = NO_TRACES,
    ) -> None:
        self._webhooks = webhooks
        self._sender = sender
        self._ask_if_paused = is_paused
        self._traces = traces
        self._turns = Turns(threads)
        self._failure = Reminder()
        self._paused, self._asked_at = False, time.monotonic()

    def __call__(self, tasks: Sequence[Task]) -> Mapping[str, Outcome]:
        """Queue a turn for each subscription that these tasks are about."""
        outcomes: dict[str, Outcome] = {
            task.id: DeadLetter("its id is not a delivery's")
            for task in tasks
            if not is_uuid(task.id)
        }
        with outages():
            lines = self._webhooks.find_lines([t.id for t in tasks if t.id not in outcomes])
        for line in lines:
            if line.due_in_ms > 0:
                outcomes[line.id] = NotDue(line.due_in_ms)
                continue
            self._turns.add(line.client_id, line.subscription_id)
            if line.id == line.subscription_id:
                outcomes[line.id] = Retry(BEHIND_MS)
        self._start()
        return outcomes

    def forgotten(
        self, after_seconds: float | None, before_seconds: float
    ) -> Iterator[Sequence[Due]]:
        """The sweep: subscriptions whose first delivery is late.

        Until then the delivery has a task of its own, or none while it is being sent.
        """
        self._start()  # those that still wait because no thread could be started
        with outages():
            lines = self._webhooks.lines(after_seconds, min(0.0, before_seconds))
        found = [Due(line.id, line.due_in_ms) for line in lines]
        for start in range(0, len(found), PAGE_SIZE):
            yield found[start : start + PAGE_SIZE]

    def finish(self, seconds: float) -> None:
        """Wait for the answers to what is being sent, and send nothing more."""
        self._turns.stop(seconds)

    # -- in threads of its own -------------------------------------------------------------

    def _start(self) -> None:
        """Start a thread for each turn that may be taken now."""
        while (turn := self._turns.take()) is not None:
            thread = threading.Thread(
                target=self._run, args=(turn,), name=f"{WEBHOOK_QUEUE} send", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # out of threads; the sweep finds the subscription again
                self._turns.end(turn)
                return

    def _run(self, turn: Turn) -> None:
        seconds = None
        try:
            if not self._is_paused():
                seconds = self._take(turn)
        except StorageUnavailable as error:
            if self._failure.is_due():
                log.warning("webhook put off", webhook=turn.subscription_id, error=str(error))
        except Exception:
            if self._failure.is_due():
                log.exception("webhook put off", webhook=turn.subscription_id)
        finally:
            self._turns.end(turn, seconds)
            self._start()

    def _is_paused(self) -> bool:
        """Whether an operator has paused the queue. Then turns end, and the sweep finds who waited."""
        now = time.monotonic()
        if now >= self._asked_at + ASK_SECONDS:
            self._asked_at = now
            with suppress(QueueUnavailable, StorageUnavailable):
                self._paused = self._ask_if_paused()
        return self._paused

    def _take(self, turn: Turn) -> float | None:
        """Send the next message of a subscription; return how many seconds the answer took."""
        again = partial(self._turns.add, turn.client_id, turn.subscription_id)
        message, more = self._webhooks.claim(turn.subscription_id, _written)
        if more:
            again()
        if message is None:
            return None
        if more:
            self._start()
        began = time.monotonic()
        answer = self._send(message)
        seconds = time.monotonic() - began
        if self._webhooks.record(message, answer):
            again()
        if not answer.is_success:
            log.info(
                "webhook not delivered",
                delivery=message.id,
                webhook=message.subscription_id,
                order=message.order_id,
                attempt=message.attempts + 1,
                status=answer.status,
                error=answer.error,
                **message.origin.fields(),
            )
        return seconds

    def _send(self, message: Message) -> Answer:
        try:
            if message.body is None or message.claimed_at is None:
                return INTERNAL_ERROR
            body = message.body.encode()
            headers = signed(
                message.id, body, message.secrets, now_seconds=message.claimed_at.timestamp()
            )
            return self._traces.send(
                message, lambda more: self._sender.post(message.url, {**more, **headers}, body)
            )
        except Exception:
            # Counted as an attempt, so that it ends.
            log.exception("webhook failed", delivery=message.id, order=message.order_id)
            return INTERNAL_ERROR


def _written(message: Message) -> str | None:
    """The body of a message; None if that failed, so that it counts as an attempt."""
    try:
        return body_of(message)
    except Exception:
        log.exception("webhook failed", delivery=message.id, order=message.order_id)
        return None


def body_of(message: Message) -> str:
    """What is sent, in each attempt. The order is as GET shows it at this moment."""
    body: dict[str, Any] = {"type": message.type, "timestamp": rfc3339(message.at)}
    if message.order is None:
        body["data"] = {}
    else:
        order = OrderOut.model_validate(message.order).model_dump(mode="json")
        body |= {"sequence": message.sequence, "data": {**message.facts, "order": order}}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))
