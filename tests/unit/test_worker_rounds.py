"""What flows repeat shares a few threads, and a round that hangs delays no other."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from devtools.processes import wait_until
from worker.runtime.rounds import FEW, Rounds


class Crew:
    """Rounds at work, and their threads."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []
        self.counts: Counter[str] = Counter()
        self.rounds = Rounds(self._start)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=run, name=name, daemon=True))
        self.threads[-1].start()

    def add(
        self, name: str, *, pause: float = 0.001, first: Callable[[], object] = lambda: None
    ) -> None:
        def run() -> float | None:
            self.counts[name] += 1
            if self.counts[name] == 1:
                first()
            return None if self.stopping.is_set() else pause

        self.rounds.add(name, run)

    def run(self) -> None:
        self._start("all", self.rounds.run)


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.stopping.set()
    crew.rounds.hurry()
    for thread in crew.threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_hundred_share_a_few_threads(crew: Crew) -> None:
    for n in range(100):
        crew.add(str(n))
    crew.run()
    wait_until(lambda: len(crew.counts) == 100 and min(crew.counts.values()) >= 5, "five rounds")
    # Not all of them: a busy machine may make a round look as if it hung.
    assert FEW < len(crew.threads) < 50


def test_a_single_one_needs_no_second_thread(crew: Crew) -> None:
    crew.add("only")
    crew.run()
    wait_until(lambda: crew.counts["only"] > 3, "some rounds")
    assert len(crew.threads) == 1


def test_rounds_that_hang_delay_no_other(crew: Crew) -> None:
    on = threading.Event()
    for n in range(20):
        crew.add(f"hangs {n}", first=on.wait)
    crew.add("healthy")
    crew.run()
    wait_until(lambda: crew.counts["healthy"] > 100, "the healthy one to go on")
    assert {crew.counts[f"hangs {n}"] for n in range(20)} == {1}
    hanging = {f"hangs {n}" for n in range(20)}
    assert hanging <= {*crew.rounds.running()} <= {*hanging, "healthy"}
    on.set()


def test_the_last_round_does_not_wait_for_its_time(crew: Crew) -> None:
    crew.add("daily", pause=86_400)
    crew.add("hourly", pause=3600)
    crew.run()
    wait_until(lambda: crew.counts == {"daily": 1, "hourly": 1}, "the first rounds")
    crew.stopping.set()
    crew.rounds.hurry()
    wait_until(lambda: crew.counts == {"daily": 2, "hourly": 2}, "the last ones")
    crew.threads[0].join(60)
    assert not crew.threads[0].is_alive()


def test_rounds_keep_their_pace(crew: Crew) -> None:
    crew.add("slow", pause=3600)
    crew.add("fast", pause=0.001)
    crew.run()
    wait_until(lambda: crew.counts["fast"] > 50, "the fast one")
    assert crew.counts["slow"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_ends_its_thread_and_counts_as_the_last_round(crew: Crew) -> None:
    def fail() -> None:
        raise RuntimeError("bad luck")

    crew.add("fails", first=fail)
    crew.add("healthy")
    crew.run()
    wait_until(lambda: crew.counts["healthy"] > 10, "the healthy one")
    assert crew.counts["fails"] == 1
