"""How long until a task that failed is tried again."""

import math

from ..backoff import Backoff
from ..errors import FATAL
from ..flow import MAX_DELAY_MS, Flow, Retry
from ..log import log


def retry_delay_ms(flow: Flow, failures: int, error: BaseException) -> float:
    """Milliseconds to wait after failure number ``failures``: the delay of a `Retry`, otherwise the backoff."""
    if isinstance(error, Retry):
        return max(1.0, error.delay_ms)
    try:
        delay_ms = 1000 * _number(flow.backoff(failures))
    except FATAL:
        raise
    except BaseException:  # the application's code may raise anything
        log.exception("backoff fails", queue=flow.name)
        delay_ms = 1000 * Backoff()(failures)
    return min(max(1.0, delay_ms), MAX_DELAY_MS)


def _number(seconds: float) -> float:
    """The seconds that a backoff returned. Raises TypeError or ValueError if they are not a number, such as NaN."""
    if math.isnan(number := float(seconds)):
        raise ValueError("a backoff returns seconds, not NaN")
    return number
