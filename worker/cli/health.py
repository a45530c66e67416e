"""``health``"""

import argparse
import os
import sys
from http import HTTPStatus

from ..watch.monitoring import ask
from . import arguments
from .commands import Commands

#: The exit status if the worker does not answer.
NO_ANSWER = 3


def add_to(commands: Commands) -> None:
    health = commands.add(
        "health",
        _health,
        json=False,
        of_queues=False,
        examples="""
health                                    the worker on METRICS_HOST and METRICS_PORT
health http://10.0.0.7:9100/healthz""",
    )
    health.add_argument(
        "url", nargs="?", help="default: that of METRICS_HOST and METRICS_PORT", metavar="URL"
    )


def _health(options: argparse.Namespace) -> int:
    """Ask a worker whether it does its work.

    Exit status: 0 if it does, or waits for an outage to end; 1 if it should be restarted; 3 if it does not
    answer.
    """
    port = os.environ.get("METRICS_PORT")
    if not (options.url or port):
        raise ValueError("name the worker's URL, or set METRICS_PORT as for the worker")
    host = os.environ.get("METRICS_HOST") or arguments.LOCALHOST
    host = f"[{host}]" if ":" in host else host
    url = options.url or f"http://{host}:{arguments.port(port or '')}/healthz"
    try:
        status, body = ask(url)
    except OSError as error:
        reason = getattr(error, "reason", error)
        print(f"worker: {url} does not answer: {reason}", file=sys.stderr)
        return NO_ANSWER
    print(body.strip())
    return 0 if status == HTTPStatus.OK else 1
