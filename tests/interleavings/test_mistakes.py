"""Each planted mistake is found by a search, or the searches would prove nothing."""

from collections.abc import Callable

import pytest
import redis
from structlog.testing import capture_logs

from tests.interleavings.lanes import ConsumerWorld, LaneWorld, RecurringWorld, WorkerWorld
from tests.interleavings.meetings import search
from tests.interleavings.mistakes import IN_PYTHON, IN_SQL, MISTAKES, Mistake, planted
from tests.interleavings.queue_world import QueueWorld
from tests.interleavings.scenarios import BACKLOGS, CONSUMERS, LARGE, RECURRING, SCENARIOS
from tests.kit.explorer import Violation, explore
from tests.kit.mistakes import PythonMistake, SqlMistake, planted_in_python, planted_in_sql
from tests.kit.shop import Shop

#: On a busy machine, a search of all scenarios takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
#: What can be searched: worlds, and their scenarios.
Searches = list[tuple[Callable[[], QueueWorld | LaneWorld], list[str]]]


def described(mistake: Mistake | PythonMistake | SqlMistake) -> str:
    return mistake.describe()


@pytest.mark.parametrize("mistake", MISTAKES, ids=described)
def test_a_mistake_in_a_script_is_found(server: redis.Redis, mistake: Mistake) -> None:
    # Those that name the script first.
    lines = sorted([*SCENARIOS, *LARGE], key=lambda line: mistake.only not in line)
    for line in lines:
        world = QueueWorld(server)
        with planted(world, mistake):
            try:
                explore(world, line)
            except Violation:
                return
    pytest.fail("not found")


@pytest.mark.parametrize("mistake", IN_PYTHON, ids=described)
def test_a_mistake_in_a_function_is_found(server: redis.Redis, mistake: PythonMistake) -> None:
    searches: Searches = [(lambda: QueueWorld(server), [*SCENARIOS, *LARGE])]
    if mistake.is_in("worker.runtime"):
        searches = [
            (lambda: ConsumerWorld(server), CONSUMERS),
            (lambda: RecurringWorld(server), RECURRING),
            (lambda: WorkerWorld(server), BACKLOGS),
        ]
    with planted_in_python(mistake), capture_logs():
        for make, lines in searches:
            for line in lines:
                try:
                    explore(make(), line)
                except Violation:
                    return
    pytest.fail("not found")


@pytest.mark.parametrize("mistake", IN_SQL, ids=described)
def test_a_mistake_in_a_statement_is_found(patient_shop: Shop, mistake: SqlMistake) -> None:
    begin, gate, *names = mistake.where
    with capture_logs():
        search(patient_shop, begin, gate, [names])
        with planted_in_sql(patient_shop.engine, mistake) as changed, pytest.raises(Exception):  # noqa: B017, PT011  whatever it is
            search(patient_shop, begin, gate, [names])
    assert changed, f"no statement has {mistake.right!r}"
