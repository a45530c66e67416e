"""Whether this code works on a database's schema: its own revision, or one of a later version that only added to it."""

from functools import cache
from importlib.resources import files

import structlog

from orders.errors import SchemaOutdated
from orders.models import SCHEMA_VERSION
from orders.repository import Repository
from orders.transient import MIGRATE

log = structlog.get_logger("orders")


@cache
def known_revisions() -> frozenset[str]:
    """The revisions that this code has migrations for; each file has its revision's name."""
    folder = files(__package__) / "migrations" / "versions"
    return frozenset(
        file.name.removesuffix(".py") for file in folder.iterdir() if file.name.endswith(".py")
    )


def check_schema(repository: Repository, revision: str) -> None:
    """Raises SchemaOutdated, unless this code works on the schema of this revision.

    A revision that this code does not know belongs to a later version. It is accepted if the tables
    have every column of the models, and require no other. Only then is the catalog read.
    """
    if revision == SCHEMA_VERSION:
        return
    if not revision or revision in known_revisions():
        raise SchemaOutdated(f"It has {revision or 'none'}, not {SCHEMA_VERSION}: {MIGRATE}.")
    if misfits := repository.misfits():
        listed = ", ".join(misfits[:5]) + (", ..." if len(misfits) > 5 else "")  # noqa: PLR2004
        raise SchemaOutdated(f"It has {revision}, of a later version: {listed}. Upgrade the code.")


@cache
def warn_if_later(revision: str) -> None:
    """Log, once in a process, that the schema of this revision belongs to a later version."""
    if revision != SCHEMA_VERSION:
        log.warning("schema of a later version", revision=revision, known=SCHEMA_VERSION)
