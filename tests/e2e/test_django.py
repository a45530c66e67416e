"""The sweep that docs/writing-a-flow.md writes by hand, in a Django project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from devtools import processes
from devtools.processes import ROOT, wait_until
from devtools.valkey import private_valkey
from tests.kit.pages import FLOWS, the_block

pytestmark = pytest.mark.slow

SETTINGS = """
from sqlalchemy import make_url
import os
url = make_url(os.environ["DATABASE_URL"])
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": url.database,
    "USER": url.username, "HOST": url.host, "PORT": url.port}}
INSTALLED_APPS = ["shop"]
USE_TZ = True
"""
MODELS = """
from django.db import models

class Hold(models.Model):
    status = models.CharField(max_length=10)
    held_until = models.DateTimeField()
"""
CREATE = """
import django
django.setup()
from django.db import connection
from shop.models import Hold
with connection.schema_editor() as editor:
    editor.create_model(Hold)
"""


def test_a_sweep_by_hand_for_djangos_orm(tmp_path: Path, database_url: str) -> None:
    """More holds than a page has are freed, what was paid for is not, nor what is not due; then without Redis, too."""
    pytest.importorskip("django")  # `make test-all` installs it
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "settings.py").write_text(SETTINGS)
    (shop / "models.py").write_text(MODELS)
    (tmp_path / "holds.py").write_text(the_block("python", "django.setup()", FLOWS))
    env = {
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
    }
    subprocess.run([sys.executable, "-c", CREATE], env={**os.environ, **env}, check=True)
    engine = sa.create_engine(database_url)

    def hold(status: str, seconds: int, count: int = 1) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO shop_hold (status, held_until)"
                " SELECT %s, now() + %s * interval '1 s' FROM generate_series(1, %s)",
                (status, seconds, count),
            )

    def statuses() -> dict[str, int]:
        counts = "SELECT status, count(*) FROM shop_hold GROUP BY 1"
        with engine.connect() as connection:
            return {row[0]: row[1] for row in connection.exec_driver_sql(counts)}

    hold("held", -1, 700)
    hold("paid", -1)
    hold("held", 1)
    hold("held", 3600)
    with private_valkey(tmp_path) as valkey:
        command = ["worker", "run", "holds:flows"]
        worker = processes.python(
            command, {**env, "REDIS_URL": valkey.url}, tmp_path / "worker.log"
        )
        try:
            wait_until(lambda: statuses().get("free") == 701, "what is due to be free")
            valkey.kill()
            hold("held", 1, 30)
            wait_until(lambda: statuses().get("free") == 731, "the sweep to go on without Redis")
            assert statuses() == {"free": 731, "paid": 1, "held": 1}
        finally:
            assert worker.stop() == 0
            engine.dispose()
