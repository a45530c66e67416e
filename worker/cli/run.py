"""``run`` and ``health``"""

import gc
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from http import HTTPStatus

import click

from ..runtime.worker import Worker
from ..watch.exposure import exposed
from ..watch.logs import configure_logging
from ..watch.monitoring import ask
from ..watch.tracing import configure_tracing, traced
from .options import Chosen, examples, to_run

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: How long the process may take to end after its worker has.
EXIT_SECONDS = 1.0
#: The exit status of `health` if the worker does not answer.
NO_ANSWER = 3
PORT = click.IntRange(0, 65_535)
LOCALHOST = "127.0.0.1"


@click.command(
    epilog=examples("""
        run reminders:flows
        run reminders:flows --threads 4
        run reminders:flows --metrics-port 9100
        run reminders:flows --queue reminders""")
)
@to_run
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    help="threads for each flow that does not set its own number (default: 1)",
)
@click.option(
    "--metrics-port",
    type=PORT,
    metavar="PORT",
    envvar="METRICS_PORT",
    help="serve /metrics and /healthz on this port; default: METRICS_PORT, otherwise they are not served",
)
@click.option(
    "--metrics-host",
    metavar="HOST",
    envvar="METRICS_HOST",
    default=LOCALHOST,
    help=f"the address to listen on; default: METRICS_HOST or {LOCALHOST}",
)
def run(named: Chosen, *, threads: int, metrics_port: int | None, metrics_host: str) -> None:
    """Run the tasks of flows until SIGTERM or SIGINT."""
    configure_logging(os.environ.get("LOG_LEVEL", ""))
    has_traces = configure_tracing(os.environ, "worker")
    flows = named.flows()
    with exposed(
        [traced(flow) for flow in flows] if has_traces else flows,
        named.url(),
        threads=threads,
        host=metrics_host,
        port=metrics_port,
    ) as worker:
        # What is loaded by now stays. Searching it for garbage takes 0.1 s, in which no task begins.
        gc.collect()
        gc.freeze()
        _run_until_stopped(worker)


def _run_until_stopped(worker: Worker) -> None:
    """Run the worker until a signal stops it; its process ends soon afterwards."""

    def stop(*_: object) -> None:
        for again in STOP_SIGNALS:
            signal.signal(again, signal.SIG_DFL)  # a second signal kills at once
        worker.stop()

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    # A child process that a handler forks ends when it is told to. Python forgets what it is told meanwhile.
    os.register_at_fork(
        before=partial(signal.pthread_sigmask, signal.SIG_BLOCK, STOP_SIGNALS),
        after_in_parent=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, STOP_SIGNALS),
        after_in_child=_restore_signals,
    )
    # In a separate thread, so that the main thread, which signals interrupt, never holds a lock that
    # stop() needs.
    with ThreadPoolExecutor(1) as runner:
        end = runner.submit(worker.run)
        # Short waits: a signal that arrives just before a wait is handled only after it.
        while not wait([end], timeout=1.0).done:
            pass
        # Python waits for the threads of a handler's own executor, but the tasks may run elsewhere now.
        leave = threading.Timer(EXIT_SECONDS, os._exit, [int(end.exception() is not None)])
        leave.daemon = True
        leave.start()
        end.result()


def _restore_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@click.command(
    epilog=examples("""
        health                                    the worker on METRICS_HOST and METRICS_PORT
        health http://10.0.0.7:9100/healthz""")
)
@click.argument("url", required=False)
def health(url: str | None) -> int:
    """Ask a worker whether it does its work.

    Exit status: 0 if it does, or waits for an outage to end; 1 if it should be restarted; 3 if it does not
    answer.
    """
    port = os.environ.get("METRICS_PORT", "")
    if not (url or port):
        raise ValueError("name the worker's URL, or set METRICS_PORT as for the worker")
    host = os.environ.get("METRICS_HOST") or LOCALHOST
    host = f"[{host}]" if ":" in host else host
    url = url or f"http://{host}:{PORT(port)}/healthz"
    try:
        status, body = ask(url)
    except OSError as error:
        reason = getattr(error, "reason", error)
        click.echo(f"worker: {url} does not answer: {reason}", err=True)
        return NO_ANSWER
    click.echo(body.strip())
    return 0 if status == HTTPStatus.OK else 1
