"""What docs/tour.md shows is run as it stands there."""

import os
import subprocess
from pathlib import Path

from devtools.postgres import binary
from devtools.processes import ROOT
from tests.kit.pages import TOUR, the_block
from tests.kit.shop import Shop

BY_HAND = the_block("sh", "psql", TOUR)


def test_a_statement_is_run_by_hand_as_it_stands_in_its_file(shop: Shop) -> None:
    order = shop.place()
    shop.expire_in(-1, order)
    folder, url = Path(binary("psql")).parent, shop.engine.url.set(drivername="postgresql")
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "ORDER": order.id}
    given["DATABASE_URL"] = url.render_as_string(hide_password=False)
    done = subprocess.run(
        ["/bin/sh", "-c", BY_HAND], env=given, cwd=ROOT, capture_output=True, check=True
    )
    assert order.id.encode() in done.stdout
    assert shop.service.order(shop.client, order.id).status == "cancelled"
