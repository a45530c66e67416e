"""PgBouncer in transaction mode, in front of a PostgreSQL."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from devtools.processes import free_port, wait_until

PGBOUNCER = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
CONFIGURATION = """[databases]
* = host={host} port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
auth_type = any
pool_mode = transaction
default_pool_size = {backends}
max_client_conn = 1000
admin_users = pgbouncer
server_login_retry = 1
unix_socket_dir =
"""


@contextmanager
def pooling(direct: sa.URL, folder: Path, *, backends: int) -> Iterator[int]:
    """The port of a PgBouncer in front of this server. Skips the test where there is none."""
    if not Path(PGBOUNCER).exists():
        pytest.skip("no PgBouncer (Debian's package pgbouncer)")
    port = free_port()
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        CONFIGURATION.format(host=direct.host, port=direct.port, listen=port, backends=backends)
    )
    as_other = ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to run as root
    with subprocess.Popen([PGBOUNCER, "-q", *as_other, str(configuration)]) as bouncer:
        through = direct.set(drivername="postgresql", port=port)
        ask = through.render_as_string(hide_password=False)

        def answers() -> bool:
            psycopg.connect(ask).close()
            return True

        try:
            wait_until(answers, "PgBouncer", ignoring=psycopg.OperationalError)
            yield port
        finally:
            bouncer.terminate()
