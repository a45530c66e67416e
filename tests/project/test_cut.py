"""Features come off: copies without any, without each of them, and with each alone work, and say nothing of the others."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from devtools import cut
from devtools.processes import ROOT
from devtools.valkey import Valkey
from orders.db.base import metadata
from orders.feature import Feature, features
from orders.features import NAMES
from tests.kit.length import LONG

#: Wires both processes, has an order paid and another one cancelled, and tells what it was made of.
STORY = """
import json, sys
database_url, redis_url = sys.argv[1:]
from orders.app import commands, create_app
from orders.config import Settings
from orders.timeouts import flows
from worker import Task

app = create_app(Settings.of(database_url=database_url, redis_url=redis_url))
services = app.extensions["orders"]
key = services.clients.create_key("shop", ["orders", "payments", "ops"])
services.stock.set("tea", on_hand=9, price_minor=250, currency="EUR")
http = app.test_client()

def send(path, body, **headers):
    response = http.post(f"/v1/{path}", json=body, headers={"Authorization": f"Bearer {key}", **headers})
    assert response.status_code < 300, response.text
    return response.json

def place(name):
    body = {"items": [{"sku": "tea", "quantity": 1}]}
    return send("orders", body, **{"Idempotency-Key": name})["id"]

paid, late = place("paid"), place("late")
with services.engine.begin() as connection:
    connection.exec_driver_sql(f"UPDATE unpaid_orders SET expires_at = now() WHERE order_id = '{late}'")
send(f"orders/{paid}/payments", {"provider": "bank", "reference": "tx-1", "amount_minor": 250, "currency": "EUR"})
made = flows(services)
made[0].handler([Task(late)])
states = {name: services.orders.order(None, each).status for name, each in (("paid", paid), ("late", late))}
panels = None
if "/ops" in map(str, app.url_map.iter_rules()):
    mine = {"headers": {"Authorization": f"Bearer {key}"}}
    for view in ("overview", "dead", "refunds", "find?text=a", f"order/{paid}", "runbook"):
        assert http.get(f"/ops/view/{view}", **mine).status_code == 200
    from orders.features.ops.routes import Tools
    panels = [*services[Tools].panels]
services.close()
loaded = {name.split(".")[2] for name in sys.modules if name.startswith("orders.features.")}
print(json.dumps({
    "loaded": [*loaded], "states": states, "queues": [flow.name for flow in made],
    "paths": [str(rule) for rule in app.url_map.iter_rules()], "commands": [each.name for each in commands()],
    "panels": panels,
}))
"""


#: Up, as the service checks it, down, and up again; tells which tables there were.
MIGRATE = """
import json, os
from alembic import command
from sqlalchemy import inspect
from orders.config import Settings
from orders.db.database import create_engine
from orders.db.migrate import config
from orders.db.schema import check_ready

engine = create_engine(Settings(database_url=os.environ["DATABASE_URL"], redis_url=""))
command.upgrade(config(), "head")
command.check(config())
check_ready(engine)
up = inspect(engine).get_table_names()
command.downgrade(config(), "base")
down = inspect(engine).get_table_names()
command.upgrade(config(), "head")
print(json.dumps([up, down]))
"""


#: Quick tests of what has marks, of imports, settings and pages. `make test-all` runs them, others are collected.
SOME_TESTS = (
    *(
        "tests/project/test_architecture.py",
        "tests/project/test_compose.py",
        "tests/project/test_deploy.py",
    ),
    *("tests/project/test_tour.py", "tests/e2e/test_readme.py", "tests/service/test_config.py"),
)
SETS = {
    **{f"without {name}": [each for each in NAMES if each != name] for name in NAMES},
    **{f"{name} alone": [name] for name in NAMES},
}
#: One of them by turns is quick, besides none.
TURN = [*SETS][date.today().toordinal() % len(SETS)]  # noqa: DTZ011  any day will do
every_set = pytest.mark.parametrize(
    "keep",
    [
        pytest.param([], id="none"),
        *(
            pytest.param(keep, id=said, marks=() if said == TURN else pytest.mark.slow)
            for said, keep in SETS.items()
        ),
    ],
)


pytestmark = pytest.mark.timeout(1800)


class Copy:
    """The service with some features."""

    def __init__(self, folder: Path, keep: Collection[str]) -> None:
        self.folder = folder
        cut.repository(folder, keep)
        self.kept = [feature for feature in features() if feature.name in keep]
        self.gone = [feature for feature in features() if feature.name not in keep]

    def run(self, *command: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def texts(self) -> dict[Path, str]:
        return {path: path.read_text() for path in cut.texts(self.folder)}


@every_set
def test_a_copy_works_with_some_features(
    database_url: str,
    valkey: Valkey,
    tmp_path: Path,
    keep: list[str],
) -> None:
    copy = Copy(tmp_path / "copy", keep)
    words(copy)
    migrations(copy, database_url)
    story(copy, database_url, valkey.url)
    copy.run("-m", "ruff", "check", ".")
    copy.run("-m", "pytest", "-q", "--collect-only", "--assert=plain")
    if LONG:
        tests = [f"tests/{keep[0]}"] if len(keep) == 1 else SOME_TESTS
        copy.run("-m", "pytest", "-q", "-m", "not slow", *tests)
    if LONG and len(keep) != 1:
        copy.run("-m", "mypy", "--cache-dir", str(tmp_path.parent / "mypy"))


def migrations(copy: Copy, database_url: str) -> None:
    """They make its tables and no others, and can be taken back."""
    up, down = json.loads(copy.run("-c", MIGRATE, DATABASE_URL=database_url).splitlines()[-1])
    others = {
        table.name
        for each in copy.gone
        for table in (vars(each.tables).values() if each.tables else ())
        if isinstance(table, sa.Table)
    }
    core = {name for name in metadata.tables if not name.startswith("sms_")}
    assert {*up} - {"alembic_version"} == core - others
    assert down == ["alembic_version"]


def story(copy: Copy, database_url: str, redis_url: str) -> None:
    """Orders are paid and cancelled; what is brought is there, and nothing of the others."""
    told: dict[str, Any] = json.loads(
        copy.run("-c", STORY, database_url, redis_url).splitlines()[-1]
    )
    assert told["states"] == {"paid": "paid", "late": "cancelled"}
    names = {feature.name for feature in copy.kept}
    shared = {"signing"} if {"webhooks", "providers"} & names else set[str]()
    assert {*told["loaded"]} - {"parts", "operators"} == names | shared
    if "ops" in names:
        assert told["panels"] == [each.name for each in copy.kept if each.panel]
    queues = [queue for each in copy.kept for queue in each.queues]
    assert told["queues"] == ["order-timeout", *queues]
    commands = {command.name for each in copy.kept for command in each.commands}
    assert {*told["commands"]} == {"keys", "stock"} | commands
    gone = {route.name for each in copy.gone for route in each.routes}
    described = copy.folder / "docs" / "openapi.json"
    assert described.exists() == ("openapi" in names)
    paths = [*json.loads(described.read_text())["paths"]] if described.exists() else []
    assert not [path for path in (*told["paths"], *paths) if gone & {*path.split("/")}]


def words(copy: Copy) -> None:
    """Its pages, settings and alerts name no setting, command, metric or page of another feature; and no mark is left."""
    gone = [word for each in copy.gone for word in names_of(each)]
    engine = "".join(
        path.read_text() for path in cut.texts(ROOT / "worker") if path.suffix == ".py"
    )
    kept = {word for each in copy.kept for word in names_of(each)}
    gone = [word for word in gone if word not in kept and not re.search(word, engine)]
    sought = re.compile("|".join([*gone, "<(?:!-- )?/?cut/?(?: --)?>"]))
    assert [
        f"{path.relative_to(copy.folder)}: {found[0]}"
        for path, text in copy.texts().items()
        if path.relative_to(copy.folder).parts[0] != "worker"
        if (found := sought.search(text))
    ] == []


def names_of(feature: Feature) -> list[str]:
    """What users know it by."""
    return [
        rf"features/{feature.name}\b",
        *(f"{each.name.upper()}\\b" for kind in feature.settings for each in fields(kind)),
        *(f"orders {command.name}\\b" for command in feature.commands),
        *(f"{each.name}_total" for each in feature.counters),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("keep", [[], ["webhooks", "ops"]], ids=["none", "some"])
def test_the_demo_plays_in_a_copy_under_another_name(tmp_path: Path, keep: list[str]) -> None:
    folder = tmp_path / "copy"
    cut.repository(folder, keep, "parking-lot")
    copy = object.__new__(Copy)
    copy.folder = folder
    assert not [path for path, text in copy.texts().items() if "order-timeout" in text]
    assert "All as it should be." in copy.run("-m", "examples.demo", "--patience", "5")
    assert (folder / "README.md").read_text().startswith("# Parking lot\n")


def test_with_all_features_only_the_marks_are_gone(tmp_path: Path) -> None:
    cut.repository(tmp_path, NAMES)
    for path in cut.texts(ROOT / "orders"):
        copied = tmp_path / path.relative_to(ROOT)
        if path.suffix in (".py", ".sql") and path.name != "__init__.py":
            assert copied.read_text() == path.read_text()


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("a.md", "one<!-- b -->, two<!-- /b --> three\n", "one three\n"),
        ("a.md", "| a |\n| b <!-- b/ --> |\n| c <!-- c/ --> |\n", "| a |\n| c |\n"),
        ("a.md", "one\n\n<!-- b -->\n\ntwo\n\n<!-- /b -->\n\nthree\n", "one\n\nthree\n"),
        ("a.yml", "a:\n  # <b>\n  b:\n  # </b>\n  # <c>\n  c:\n  # </c>\n", "a:\n  c:\n"),
        ("a.py", "a()\nb()  # <b/>\nc()  # <c/>\nd()  # <b or c/>\n", "a()\nc()\nd()\n"),
        ("a.py", "# <b/>\nb()\n", None),
        ("a.py", "# <c/>\nc()\n", "c()\n"),
        ("a.py", "a()\n# <cut>\nb()\n# </cut>\n", "a()\n"),
    ],
)
def test_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, left: str | None
) -> None:
    monkeypatch.setattr(cut, "NAMES", ("b", "c"))
    path = tmp_path / name
    path.write_text(text)
    cut._take_marked(path, ["b"])
    assert (path.read_text() if path.exists() else None) == left


@pytest.mark.parametrize(
    ("keep", "message"),
    [(["webhook"], "no feature is called webhook, only "), ([], "is not an empty folder")],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, keep: list[str], message: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=message):
        cut.repository(tmp_path, keep)


def test_a_feature_that_the_core_names_cannot_be_taken_away(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "app.py").write_text("\nfrom orders.features.feed import tables\n")
    with pytest.raises(
        ValueError, match=r"feed cannot be taken away: orders/app.py:2 names features.feed"
    ):
        cut._refuse_names(tmp_path, ["feed"])
