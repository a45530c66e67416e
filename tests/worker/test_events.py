"""What the engine tells, and those that it tells."""

import asyncio
import dataclasses

import pytest
from structlog.testing import capture_logs

from tests.kit.engine import EVENT_KINDS
from worker import events

EVENT = events.Restored("a", 3)


def test_every_listener_is_told_of_each_event_in_turn() -> None:
    told: list[tuple[str, events.Event]] = []
    listeners = events.Listeners(
        [lambda event: told.append(("first", event)), lambda event: told.append(("second", event))]
    )
    listeners(EVENT)
    assert told == [("first", EVENT), ("second", EVENT)]


def test_a_listener_that_raises_harms_nobody_and_is_logged_once() -> None:
    class Broken:
        def __call__(self, _event: events.Event) -> None:
            raise ValueError("a bug")

        def __repr__(self) -> str:
            raise ValueError("another")

    def broken_too(_event: events.Event) -> None:
        raise asyncio.CancelledError

    told: list[events.Event] = []
    listeners = events.Listeners([Broken(), told.append, broken_too])
    with capture_logs() as logged:
        for _ in range(3):
            listeners(EVENT)
    assert told == [EVENT] * 3
    assert [line["event"] for line in logged] == ["listener fails"] * 2
    assert all(line["exception"].startswith("Traceback") for line in logged)
    assert [
        name in line["listener"]
        for name, line in zip(("Broken", "broken_too"), logged, strict=True)
    ] == [True, True]


def test_a_listener_that_exits_is_not_kept_from_it() -> None:
    def exits(_event: events.Event) -> None:
        raise SystemExit("bad luck")

    with pytest.raises(SystemExit):
        events.Listeners([exits])(EVENT)


@pytest.mark.parametrize("kind", EVENT_KINDS, ids=lambda kind: kind.__name__)
def test_an_event_cannot_be_changed_by_a_listener(kind: type[events.Event]) -> None:
    fields = [field.name for field in dataclasses.fields(kind)]
    event = kind(**dict.fromkeys(fields))  # type: ignore[arg-type]
    assert fields[0] == "queue"
    for name in fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, name, None)
