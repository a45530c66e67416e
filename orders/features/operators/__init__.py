# <freezes or ops or providers or retention or webhooks or why/>
"""What routes and commands for operators share: ids, who did it, and queues that may not answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import redis
from flask import g

from orders.db.ids import UUID
from orders.errors import NotAvailable, StorageUnavailable
from orders.http.auth import current_client
from orders.log import log
from worker import Unavailable


def id_in(_context: object, _parameter: object, text: str) -> str:
    """The id of an order or a message, or of an endpoint, whose path may have been pasted whole."""
    if not (found := UUID.search(text.lower())):
        raise click.BadParameter(f"{text!r} is not an id: lists and searches show them")
    return found[0]


def calling_key() -> str:
    """The key that came with the request, as it is noted with what it changed."""
    return f"key {g.key_id}"


def log_key(action: str, **facts: Any) -> None:
    """Log who changed something, with which key."""
    log.info("operator", action=action, client=current_client().name, key=g.key_id, **facts)


class QueueUnavailable(NotAvailable):
    """Redis does not answer."""


@contextmanager
def answering() -> Iterator[None]:
    """Raises QueueUnavailable when Redis does not answer, StorageUnavailable when pauses cannot be read."""
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable from error
    except StorageUnavailable:
        raise
    except Unavailable as error:
        raise StorageUnavailable from error
