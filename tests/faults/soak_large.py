"""The same nemesis against an installation of several machines.

    python -m tests.faults.soak_large [--minutes 10] [--seed N] [--customers 24]

The queues are on a Redis Cluster of three primaries and their replicas; PostgreSQL has a synchronous
standby, and PgBouncer in front of it. Nodes are killed, frozen and flushed, the
standby is promoted, and PgBouncer loses its connections. Needs Debian's package pgbouncer.
"""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psycopg
import sqlalchemy as sa

from devtools.postgres import Postgres
from devtools.valkey import Valkey
from orders.config import Settings
from orders.sql.database import session_settings
from tests.conftest import upgrade
from tests.faults.site import Site
from tests.faults.soak import SETTINGS, Soak, main
from tests.faults.test_redis_topologies import Servers, cluster, run
from tests.pooler import pooling

#: Fewer than the processes may ask for at once.
BACKENDS = 20


class LargeSoak(Soak):
    """One run."""

    def build(self, folder: Path) -> tuple[Site, Mapping[str, str]]:
        folder.chmod(0o755)  # PgBouncer reads its settings again as another user
        upgrade(self.postgres.url("soak"))
        self.standby = self._standby()
        servers: Servers = []
        self.closing.callback(lambda: [server.kill() for server in servers])
        self.nodes = cluster(folder, servers)
        for node in self.nodes:
            run(node, "CONFIG SET", "cluster-require-full-coverage", "no")
        direct = sa.make_url(self.postgres.url("soak"))
        plain = Settings(database_url=str(direct), redis_url="redis://nowhere")
        session = "; ".join(
            f"SET {name} = ''{value}''" for name, value in session_settings(plain).items()
        )
        pooler = pooling(direct, folder, backends=BACKENDS, session=session)
        self.configuration = folder / "pgbouncer.ini"
        self.pooler_port = self.closing.enter_context(pooler)
        url = direct.set(port=self.pooler_port).render_as_string(hide_password=False)
        settings = {
            **SETTINGS,
            "REDIS_URL": f"redis+cluster://127.0.0.1:{self.nodes[0].port}",
            "DATABASE_POOLER": "true",
        }
        return Site(folder, url, settings), {}

    def _standby(self) -> Postgres:
        standby = self.postgres.start_standby()
        self.closing.callback(standby.remove)
        return standby

    def of_servers(self) -> Sequence[Callable[[], None]]:
        return (
            self.node_killed,
            self.node_frozen,
            self.node_flushed,
            self.sql_restarted,
            self.sql_promoted,
            self.backend_frozen,
            self.backends_terminated,
            self.pooler_reconnected,
        )

    def _node(self) -> Valkey:
        return self.chance.choice(self.nodes)

    def node_killed(self) -> None:
        node = self._node()
        node.kill()
        self.pause(0.5, 10)
        node.start()

    def node_frozen(self) -> None:
        node = self._node()
        assert node.process is not None
        node.process.signal(signal.SIGSTOP)
        self.pause(0.5, 4)
        node.process.signal(signal.SIGCONT)

    def node_flushed(self) -> None:
        for node in self.nodes:
            if run(node, "ROLE")[0] == "master":
                run(node, "FLUSHALL")
                return

    def sql_promoted(self) -> None:
        """The primary dies, its standby takes over and gets a standby of its own."""
        dead, self.postgres = self.postgres, self.standby
        dead.kill()
        self.postgres.execute("SELECT pg_promote()")
        moved = self.configuration.read_text().replace(
            f" port={dead.port} ", f" port={self.postgres.port} "
        )
        self.configuration.write_text(moved)
        self._tell_pooler("RELOAD")
        self.standby = self._standby()

    def pooler_reconnected(self) -> None:
        self._tell_pooler("RECONNECT")

    def _tell_pooler(self, command: str) -> None:
        with psycopg.connect(
            host="127.0.0.1",
            port=self.pooler_port,
            dbname="pgbouncer",
            user="pgbouncer",
            autocommit=True,
        ) as console:
            console.execute(command.encode(), prepare=False)


if __name__ == "__main__":
    sys.exit(main(LargeSoak, __doc__ or ""))
