"""Whether the process runs, and whether it can work."""

from typing import Any

from orders.db.errors import MIGRATE
from orders.errors import SchemaOutdated, StorageUnavailable
from orders.http.auth import services
from orders.http.routing import Routes
from orders.http.schemas.health import HealthOut, ReadinessOut

health = Routes("health", "Health", "For load balancers and monitoring.", prefix="")


@health.get("/healthz", returns=HealthOut)
def healthz() -> Any:
    """The process runs.

    Checks nothing else; for a supervisor that restarts processes that hang.
    """
    return {"status": "ok"}


@health.get("/readyz", returns=ReadinessOut, also={503: "It cannot work now."})
def readyz() -> Any:
    """The database has the schema and accepts writes.

    Without Redis the service works, degraded. The answer is up to a second old.
    """
    found = services().readiness.get()
    redis = "ok" if found.redis else "unavailable"
    if found.problem is not None:
        report = {"status": "unavailable", "database": _said(found.problem), "redis": redis}
        return report, {}, 503
    return {"status": "ready" if found.redis else "degraded", "database": "ok", "redis": redis}


def _said(problem: StorageUnavailable) -> str:
    """What anybody may know of it: what a driver says of its server is only logged."""
    if problem.__cause__ is None:
        return str(problem)
    return f"{problem.__doc__} {MIGRATE}" if isinstance(problem, SchemaOutdated) else "unavailable"
