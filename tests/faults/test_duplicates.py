"""The same check as often as you like, in any order: one event for each order."""

import random

import pytest
import sqlalchemy as sa

from orders.db.tables import orders
from tests.kit.failpoints import REPEAT
from tests.kit.site import HURRIED, Build


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(REPEAT))
def test_a_check_pushed_a_hundred_times_cancels_once(build: Build, seed: int) -> None:
    chance = random.Random(seed)
    site = build(**HURRIED)
    workers = [site.start_worker("--threads", "2") for _ in range(2)]
    ids = site.place(20, 0.2, 1)
    with site.services.engine.connect() as connection:
        customer = connection.execute(sa.select(orders.c.client_id).distinct()).scalar_one()

    pushes = ids * 100
    chance.shuffle(pushes)
    for n, order_id in enumerate(pushes):
        site.queue.schedule(order_id, chance.randrange(2**41))  # some day, mostly long ago
        if n == len(pushes) // 2:  # the second half comes after some cancellations
            for cancelled in ids[:5]:
                site.services.orders.cancel(customer, cancelled)
    # The last push of a check may say that it is due in years: the sweep knows better.
    site.wait_until_all_are_cancelled()
    site.queue.schedule_many((order_id, 0, b"") for order_id in ids)
    site.wait_until_drained()

    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    site.assert_the_queue_is_empty()
    for worker in workers:
        assert worker.stop() == 0
        assert "task failed" not in site.log(worker)
