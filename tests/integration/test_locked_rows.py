"""What waits for a change of a subscription or an endpoint sees what that change has written."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa

from orders.order.repository import read_order
from orders.providers.repository import ProviderRepository
from orders.providers.service import Providers
from orders.sql.tables import provider_secrets, webhook_interests, webhook_secrets
from orders.webhooks.repository import WebhookRepository
from orders.webhooks.service import WebhookPolicy, Webhooks
from tests.conftest import Shop
from tests.integration.test_orders_statements import waiting


@pytest.fixture
def webhooks(shop: Shop) -> Webhooks:
    return Webhooks(shop.engine, shop.scheduler, WebhookPolicy(5.0, True, 0.0), read_order)


def forever(shop: Shop, table: sa.Table) -> list[str]:
    """The secrets that never expire."""
    lasting = sa.select(table.c.secret).where(table.c.expires_at.is_(None))
    with shop.engine.connect() as connection:
        return [*connection.scalars(lasting)]


def test_a_subscription_deleted_during_a_change_leaves_nothing(
    shop: Shop, webhooks: Webhooks
) -> None:
    made, *_ = webhooks.subscribe(shop.client, url="https://a.example", events=["order.paid"])
    with waiting(shop, lambda: webhooks.unsubscribe(shop.client, made.id)) as (other, _):
        repository = WebhookRepository(other, read_order)
        types = ["order.created"]
        repository.change(shop.client, made.id, url=None, events=types, types=types)
        repository.rotate(shop.client, made.id, "whsec_other", 1000)
    assert forever(shop, webhook_secrets) == []
    with shop.engine.connect() as connection:
        assert connection.execute(sa.select(webhook_interests)).all() == []
        assert connection.execute(sa.select(webhook_secrets)).all() == []


def test_of_two_rotations_at_once_one_secret_lasts(shop: Shop, webhooks: Webhooks) -> None:
    made, *_ = webhooks.subscribe(shop.client, url="https://a.example", events=None)
    with waiting(shop, lambda: webhooks.rotate_secret(shop.client, made.id)) as (other, found):
        WebhookRepository(other, read_order).rotate(shop.client, made.id, "whsec_other", 1000)
    assert forever(shop, webhook_secrets) == [found[0][1]]


@pytest.mark.parametrize("how", ["rotate", "revoke"])
def test_an_endpoint_keeps_no_secret_of_an_overtaken_rotation(shop: Shop, how: str) -> None:
    providers = Providers(shop.engine)
    endpoint, _ = providers.add("other", "bank")
    ways: dict[str, Callable[[str], object]] = {
        "rotate": lambda one: providers.rotate(one, timedelta(0)),
        "revoke": providers.revoke,
    }
    with waiting(shop, lambda: ways[how](endpoint.id)) as (other, found):
        ProviderRepository(other).rotate(endpoint.id, "whsec_other", 1000)
    assert forever(shop, provider_secrets) == ([found[0]] if how == "rotate" else [])
