"""Everything the engine raises, as one tree. An exception's docstring is its message."""

import threading
from collections.abc import Iterable


def fatal() -> tuple[type[BaseException], ...]:
    """What ends the process when the application's code raises it.

    Everything else is a failure, even if it is no Exception, as asyncio's CancelledError, gevent's Timeout, or a panic
    in an extension written in Rust. Only a process's main thread ends it: signals arrive there, and ``sys.exit()``
    elsewhere is how argparse, for example, reports an error.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return (KeyboardInterrupt, SystemExit, GeneratorExit) if is_main else ()


class WorkerError(Exception):
    """The worker could not do what was asked."""

    def __init__(self, detail: str = "") -> None:
        message = (self.__doc__ or "").strip()
        super().__init__(f"{message} {detail}".strip())


def described(error: BaseException) -> str:
    """An error's type and message, without a SQL statement, even if its ``__str__`` raises."""
    try:
        message = str(error)
    except fatal():
        raise
    except BaseException:  # noqa: BLE001  a library's __str__ may raise anything
        message = "(it has no readable message)"
    return f"{type(error).__name__}: {without_statements(message)}"


def without_statements(text: str) -> str:
    """The text without the SQL statements that SQLAlchemy quotes at the end of its errors' messages.

    One of ours may have 10,000 characters, which hide what went wrong.
    """
    kept = []
    while (start := text.find("\n[SQL: ")) >= 0:
        end = text.find("\n(Background on this error at: ", start)
        if end < 0:
            break
        kept.append(text[:start])
        end = text.find("\n", end + 1)
        text = "" if end < 0 else text[end:]
    return "".join([*kept, text])


class LeaseLost(WorkerError):
    """The lease on these tasks had ended, so nothing was written for them."""

    def __init__(self, ids: Iterable[str]) -> None:
        #: The ids of the tasks, which another worker holds, or which are settled already.
        self.ids = tuple(ids)
        super().__init__(", ".join(self.ids))


class Unavailable(WorkerError):
    """Something the handler needs does not answer."""


class UnsafeServer(WorkerError):
    """This Redis may delete tasks on its own."""


class ConsumerClosed(WorkerError):
    """The consumer is closed."""


class FlowImportFailed(WorkerError):
    """The flows could not be made."""


class FlowNotFound(WorkerError):
    """No flows were found there."""
