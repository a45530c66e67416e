"""A delay queue in Redis: one method for each script in ``lua/``.

A task is in exactly one of scheduled, leased and dead::

                     schedule                 claim
                  ------------> scheduled ------------> leased ------> gone
                                  ^  ^                  | |  settle    (extend: leased for longer)
                                  |  '----- settle -----' |
                                  |                       | settle
                                  '------ requeue ------ dead ------> gone
                                                                purge

Time is the server's: scripts read it with TIME unless a test passes ``now_ms``. It is rounded
down to milliseconds and due times are rounded up, so nothing is ever early.
"""

from .operator_side import OperatorSide
from .producer_side import ProducerSide
from .worker_side import WorkerSide


class DelayQueue(ProducerSide, WorkerSide, OperatorSide):
    """The queue ``name`` on ``client``, for any number of threads and processes::

        queue = DelayQueue(connect("redis://localhost:6379/0"), "reminders")
        queue.schedule("visit-7", delay_ms=86_400_000, payload=b"ada@example.org")
        queue.cancel("visit-7")

    Every method raises `redis.RedisError` when the server does not do what was asked. The constructor
    raises ValueError for a client that decodes responses.
    """
