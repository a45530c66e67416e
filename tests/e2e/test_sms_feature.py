"""The feature that a page shows how to write: plugged in, as its migration and its name in the list would."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from devtools.processes import ROOT
from devtools.valkey import Valkey
from orders.db.migrate import config
from orders.db.schema import schema_version
from tests.kit.receiver import Received, receiving

#: Cancels three orders, two of them with a telephone number, and works until nothing is left to be sent.
PROGRAM = """
import sys, time
import orders.features
orders.features.NAMES += ("examples.sms_feature",)
from examples.stage import working
from orders.config import Settings
from orders.order.domain import NewOrder
from orders.timeouts import flows
from orders.wiring import bootstrap

database_url, redis_url, sms_url = sys.argv[1:]
services = bootstrap(Settings.of(
    database_url=database_url, redis_url=redis_url, sms_url=sms_url, order_timeout_min_seconds=0.001
))
services.check_ready()
services.clients.create_key("shop", ["orders"])
services.stock.set("tea", on_hand=9, price_minor=250, currency="EUR")
with services.engine.connect() as connection:
    left = lambda: connection.exec_driver_sql(
        "SELECT (SELECT count(*) FROM unpaid_orders) + (SELECT count(*) FROM sms_messages)").scalar_one()
    client = connection.exec_driver_sql("SELECT id FROM api_clients").scalar_one()
    for details in ({"phone": "+1"}, {"phone": "+2"}, None):
        services.orders.place(NewOrder(
            client_id=client, key=str(details), fingerprint="f", quantities={"tea": 1},
            timeout_seconds=0.001, metadata=details))
    with working(redis_url, *flows(services)):
        while left():
            connection.commit()
            time.sleep(0.05)
services.close()
"""
#: Ends the transaction in which a message is sent, before its commit.
CUT_OFF = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND state = 'idle in transaction' AND query LIKE '%metadata%FROM sms_messages%'"
)


@pytest.mark.slow
def test_each_cancellation_is_sent_once_by_its_key_even_if_its_commit_fails(
    database_url: str, valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    below = schema_version()
    text = (ROOT / "examples" / "sms_feature" / "migration.py").read_text()
    (tmp_path / "0007_sms.py").write_text(
        re.sub("(?<=^down_revision = ).+", repr(below), text, flags=re.MULTILINE)
    )
    migrations = config()
    migrations.set_main_option("version_locations", f"{ROOT}/migrations/versions:{tmp_path}")
    command.upgrade(migrations, "head")

    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    cut_off: list[int] = []

    def before(_message: Received) -> None:
        if not cut_off:
            with engine.begin() as connection:
                cut_off.append(connection.execute(sa.text(CUT_OFF)).scalar_one())

    with receiving() as gateway:
        gateway.before = before
        command_line = [sys.executable, "-c", PROGRAM, database_url, valkey.url, gateway.url]
        done = subprocess.run(
            command_line, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert cut_off == [1]
    sent = Counter((each.headers["idempotency-key"], each.json["to"]) for each in gateway.messages)
    assert sorted(sent.values()) == [1, 2], "and the second time with the same key"
    assert {phone for _, phone in sent} == {"+1", "+2"}

    command.downgrade(migrations, below)
    assert "sms_messages" not in sa.inspect(engine).get_table_names()
