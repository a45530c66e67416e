"""The flow that sends webhooks.

A task only says whose line to look at: its id is a subscription's. It is scheduled, always due at once, when something is
written for that line, and when an attempt has failed. A look puts it off until the first delivery is due, or briefly if
that is due already; once nothing waits it is done. Many are handled at a time; then the flow's own threads send, in the
order that `Turns` decides.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from orders.caches import SharedRead
from orders.db.ids import is_uuid
from orders.errors import StorageUnavailable
from orders.features.operators import QueueUnavailable, answering
from orders.features.signing.sender import Answer, HttpSender
from orders.features.signing.settings import SendingSettings
from orders.features.signing.signatures import signed
from orders.features.webhooks.domain import WEBHOOK_QUEUE, Message
from orders.features.webhooks.sending import Sending
from orders.features.webhooks.settings import WebhookSettings
from orders.features.webhooks.turns import Turn, Turns
from orders.hooks import Hooks
from orders.http.schemas.orders import OrderOut
from orders.http.schemas.types import rfc3339
from orders.log import log
from orders.origin import Origin
from orders.wiring import Services
from worker import DeadLetter, DelayQueue, Due, Flow, NotDue, Outcome, Retry, Task
from worker.log import Reminder
from worker.runtime import pauses

#: How many subscriptions the sweep yields at a time.
PAGE_SIZE = 500
#: How often to look again at a line that is behind.
BEHIND_MS = 500
#: A line that has been due for so long and has no task was lost by Redis. A task that is put off comes back sooner, so the
#: sweep never brings one forward.
LATE_MS = 2 * BEHIND_MS
#: How often a process that sends asks whether an operator has paused the queue.
ASK_SECONDS = 1.0
#: How often each worker deletes old deliveries.
PRUNE_SECONDS = 3600.0
INTERNAL_ERROR = Answer(None, "internal error", None)


def webhook_flow(services: Services, sender: HttpSender | None = None) -> Flow:
    """Send webhooks."""
    own, sending = services.settings[WebhookSettings], services.settings[SendingSettings]
    sender = sender or HttpSender(
        sending.webhook_timeout_seconds, allow_private=sending.webhook_allow_private
    )
    queue, kept = DelayQueue(services.redis, WEBHOOK_QUEUE), services.pauses_of(WEBHOOK_QUEUE)

    def ask_if_paused() -> bool:
        with suppress(QueueUnavailable, StorageUnavailable), answering():
            return pauses.find(queue, kept) is not None
        return False  # SQL keeps it, and without SQL nothing is sent

    paused = SharedRead(ask_if_paused, ASK_SECONDS)
    deliver = Deliverer(services[Sending], sender, own.webhook_threads, paused.get, services.hooks)

    return Flow(
        name=WEBHOOK_QUEUE,
        handler=deliver,
        sweep=deliver.forgotten,
        without_redis="handle",  # several workers may: the lease in each row decides
        probe=services.check_ready,
        pauses=kept,
        tick=deliver.prune,
        finish=deliver.finish,
        threads=1,
        **services.settings.of_each_flow,
    )


class Deliverer:
    """Sends deliveries and records the outcomes."""

    def __init__(
        self,
        sending: Sending,
        sender: HttpSender,
        threads: int,
        is_paused: Callable[[], bool],
        hooks: Hooks | None = None,
    ) -> None:
        self._sending = sending
        self._sender = sender
        self._is_paused = is_paused
        self._hooks = hooks or Hooks()
        self._turns = Turns(threads)
        self._failure = Reminder()
        self._has_offered = False
        self._prune_at = time.monotonic()

    def __call__(self, tasks: Sequence[Task]) -> Mapping[str, Outcome]:
        """Queue a turn for each of these subscriptions with a delivery that is due."""
        outcomes: dict[str, Outcome] = {
            task.id: DeadLetter("its id is not a subscription's")
            for task in tasks
            if not is_uuid(task.id)
        }
        for line in self._sending.lines([t.id for t in tasks if t.id not in outcomes]):
            if line.due_in_ms > 0:
                outcomes[line.id] = NotDue(line.due_in_ms)
            else:
                self._turns.add(line.client_id, line.id)
                outcomes[line.id] = Retry(BEHIND_MS)
        self._start()
        return outcomes

    def forgotten(
        self, after_seconds: float | None, before_seconds: float
    ) -> Iterator[Sequence[Due]]:
        """The sweep: subscriptions whose first delivery is late. Until then, Redis may not have been told."""
        self._start()  # those that still wait because no thread could be started
        if not self._has_offered:
            self._sending.offer_reminders()
            self._has_offered = True
        after_ms = None if after_seconds is None else round(1000 * after_seconds)
        before_ms = min(-LATE_MS, round(1000 * before_seconds))
        lines = self._sending.lines(after_ms=after_ms, before_ms=before_ms)
        found = [Due(line.id, line.due_in_ms) for line in lines]
        for start in range(0, len(found), PAGE_SIZE):
            yield found[start : start + PAGE_SIZE]

    def finish(self, seconds: float) -> None:
        """Wait for the answers to what is being sent, and send nothing more."""
        self._turns.stop(seconds)

    def prune(self) -> None:
        """Once an hour, delete what is old, a part a second."""
        now = time.monotonic()
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_SECONDS  # even if it fails
            if self._sending.prune():
                self._prune_at = now

    # -- in threads of its own -------------------------------------------------------------

    def _start(self) -> None:
        """Start a thread for each turn that may be taken now."""
        while (turn := self._turns.take()) is not None:
            thread = threading.Thread(
                target=self._run, args=(turn,), name=f"{WEBHOOK_QUEUE} send", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # out of threads; its task finds the subscription again
                self._turns.end(turn)
                return

    def _run(self, turn: Turn) -> None:
        seconds = None
        try:
            if not self._is_paused():  # otherwise its task finds who waits
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

    def _take(self, turn: Turn) -> float | None:
        """Send the next message of a subscription; return how many seconds the answer took."""
        again = partial(self._turns.add, turn.client_id, turn.subscription_id)
        message, more = self._sending.claim(turn.subscription_id, _written)
        if more:
            again()
        if message is None:
            return None
        if more:
            self._start()
        began = time.monotonic()
        answer = self._send(message)
        seconds = time.monotonic() - began
        if self._sending.record(message, answer):
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
                **Origin.parse(message.origin).fields(),
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
            answer: Answer = self._hooks.send(
                message, lambda more: self._sender.post(message.url, {**more, **headers}, body)
            )
            return answer
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
