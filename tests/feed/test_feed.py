"""A client's events across its orders: in one sequence, complete, and only its own."""

from uuid import uuid4

import pytest
import sqlalchemy as sa

from devtools.processes import ROOT
from orders.db.tables import order_events
from orders.features.feed.service import SQL, Feed, FeedEvent
from orders.features.webhooks.tables import webhook_deliveries  # <webhooks/>
from tests.kit.api import Api
from tests.kit.races import together
from tests.kit.shop import Shop, opened


def read(shop: Shop, client: str = "", after: int = 0) -> list[FeedEvent]:
    return Feed(shop.engine).events(client or shop.client, after_id=after, page_size=100)


# <webhooks>
def test_events_have_the_ids_and_numbers_of_their_webhooks(api: Api) -> None:
    for n in range(2):
        api.send("POST", "/v1/webhooks", {"url": f"https://shop.example/{n}"})
    first = api.place("first").json
    api.place(key="other")
    second = api.place("second", client_reference="A-2").json or {}
    api.pay(second["id"])
    listed = (api.send("GET", "/v1/events").json or {})["data"]
    assert [(each["type"], each["order_id"]) for each in listed] == [
        ("order.created", first and first["id"]),
        ("order.created", second["id"]),
        ("order.paid", second["id"]),
    ]
    assert [each["data"] for each in listed[:2]] == [first, second]
    numbers = [each["sequence"] for each in listed]
    assert numbers == sorted({*numbers})
    with api.services.engine.begin() as connection:
        sent = [(row.event_id, row.id) for row in connection.execute(sa.select(webhook_deliveries))]
    said = [(each["sequence"], message) for each in listed for message in each["webhook_ids"]]
    assert len(sent) == 6
    assert sorted(sent) == sorted(said)
    page = api.send("GET", "/v1/events?limit=2").json or {}
    rest = api.send("GET", f"/v1/events?limit=2&cursor={page['next_cursor']}").json or {}
    assert page["data"] + rest["data"] == listed
    assert rest["next_cursor"] is None
    later = api.send("GET", f"/v1/events?after_sequence={numbers[1]}").json or {}
    assert later["data"] == listed[2:]
    for wrong in ("after_sequence=-1", "after_sequence=x", "cursor=QQ", "after_sequence=1e3"):
        assert api.send("GET", f"/v1/events?{wrong}").status_code == 400


# </webhooks>


def test_an_event_that_commits_late_is_not_passed(shop: Shop) -> None:
    shop.stock("mug")
    before = [shop.place().id]
    with shop.engine.connect() as slow, slow.begin():
        late = shop.inside(slow).place(shop.new(quantities={"mug": 1})).order
        early = shop.place()
        assert [each.order_id for each in read(shop)] == before
    found = read(shop)
    assert [each.order_id for each in found] == [*before, late.id, early.id]
    with shop.engine.connect() as slow, slow.begin() as transaction:
        shop.inside(slow).cancel(shop.client, late.id)
        transaction.rollback()
        paid = shop.pay(early)
    assert [each.type for each in read(shop, after=found[-1].sequence)] == ["order.paid"]
    assert paid.payment.order_id == early.id
    assert read(shop, shop.other) == []


#: In one statement two inserts of events.
TWICE = """
WITH one AS (INSERT INTO order_events (order_id, client_id, type, at, data)
    SELECT order_id, client_id, 'one', at, data FROM order_events LIMIT 1)
INSERT INTO order_events (order_id, client_id, type, at, data)
    SELECT order_id, client_id, 'two', at, data FROM order_events LIMIT 1
"""


@pytest.mark.parametrize("writes", ["two rows", "two inserts"])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("", ""), ("BEFORE INSERT", "AFTER INSERT"), ("PERFORM", "PERFORM 1; RETURN NULL; PERFORM")],
    ids=["as it is", "too late", "not at all"],
)
def test_whatever_writes_events_announces_them_first(
    shop: Shop, writes: str, right: str, wrong: str
) -> None:
    """As the file that makes the trigger says, or with a mistake planted there."""
    announce = (ROOT / "orders" / "features" / "feed" / "announce.sql").read_text()
    assert right in announce
    shop.stock(price_minor=0)  # an order that costs nothing is paid when it is placed
    shop.place()
    later = order_events.c.id > read(shop)[-1].sequence
    with shop.engine.connect() as slow, slow.begin() as transaction:
        slow.exec_driver_sql(announce.replace(right, wrong))
        if writes == "two rows":
            shop.inside(slow).place(shop.new())
        else:
            slow.exec_driver_sql(TWICE)
        first = slow.scalar(sa.select(sa.func.min(order_events.c.id)).filter(later))
        with shop.engine.connect() as reader:
            settled = SQL.get_settled(reader).scalar_one()
        transaction.rollback()
    assert (settled < first) == (right == wrong)


@pytest.mark.slow
def test_whoever_reads_on_sees_each_event_of_many_writers(migrated_url: str) -> None:
    with opened(migrated_url) as shop:
        for n in range(6):
            shop.stock(f"sku-{n}", 10_000)
        seen: list[int] = []
        writing = [True]

        def write(n: int) -> None:
            for _ in range(150):
                shop.service.cancel(shop.client, shop.basket({f"sku-{n}": 1}, key=uuid4().hex).id)

        def read_on() -> None:
            while writing[0]:
                seen.extend(each.sequence for each in read(shop, after=seen[-1] if seen else 0))

        def write_all() -> None:
            together(*(lambda n=n: write(n) for n in range(6)))
            writing[0] = False

        together(read_on, write_all)
        while more := read(shop, after=seen[-1]):
            seen.extend(each.sequence for each in more)
        assert len(seen) == len({*seen}) == 2 * 6 * 150
