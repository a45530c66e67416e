"""What the services use from outside: somebody who schedules, and somebody who counts."""

from typing import Protocol


class CheckScheduler(Protocol):
    """Schedules and cancels the checks of one queue, of deadlines for example. Its methods neither raise nor wait."""

    def schedule(
        self, order_id: str, /, *, delay_ms: float, even_if_dead: bool = False
    ) -> None: ...

    def cancel(self, order_id: str, /) -> None: ...


class Observer(Protocol):
    """Counts events by type, after their commit. Neither raises nor waits."""

    def __call__(self, event: str, reason: str = "", count: int = 1, /) -> None: ...


def nobody(_event: str, _reason: str = "", _count: int = 1, /) -> None:
    """An observer that counts nothing."""
