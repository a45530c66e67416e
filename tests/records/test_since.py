"""A record that is due so long after a time that its row has."""

import pytest
import sqlalchemy as sa

from worker import DelayQueue, connect
from worker.records import Records

visits = sa.Table(
    "visits",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("begins_at", sa.TIMESTAMP(timezone=True), nullable=False),
    sa.Column("remind_at", sa.TIMESTAMP(timezone=True)),
)


@pytest.mark.parametrize("seconds", [0.0, 90.25, -86_400.0])
def test_a_due_time_counts_from_a_column(records_url: str, seconds: float) -> None:
    engine = sa.create_engine(records_url)
    visits.create(engine)
    records = Records(
        engine,
        id=visits.c.id,
        due=visits.c.remind_at,
        pending=sa.true(),
        handle=lambda *_: None,
        queue=DelayQueue(connect("redis://127.0.0.1:1"), "visits"),
    )
    with engine.begin() as connection:
        connection.execute(visits.insert().values(id=1, begins_at=records.after(3600)))
        remind_at = records.after(seconds, since=visits.c.begins_at)
        connection.execute(visits.update().values(remind_at=remind_at))
        visit = connection.execute(visits.select()).one()
    engine.dispose()
    assert (visit.remind_at - visit.begins_at).total_seconds() == pytest.approx(seconds, abs=0.002)
