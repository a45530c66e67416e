"""Whether the process runs, and whether it can work."""

from http import HTTPStatus

from apiflask import APIBlueprint
from flask.typing import ResponseReturnValue

from orders.errors import StorageUnavailable
from orders.http.auth import services
from orders.http.contract import also
from orders.http.schemas.health import HealthOut, ReadinessOut

health = APIBlueprint(
    "health", __name__, tag={"name": "Health", "description": "For load balancers and monitoring."}
)


@health.get("/healthz")
@health.output(HealthOut)
def healthz() -> ResponseReturnValue:
    """The process runs.

    Checks nothing else; for a supervisor that restarts processes that hang.
    """
    return {"status": "ok"}


@health.get("/readyz")
@health.output(ReadinessOut)
@health.doc(
    responses=also(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "It cannot work now.",
        {"status": "unavailable", "database": "unavailable"},
    )
)
def readyz() -> ResponseReturnValue:
    """The database has the schema and accepts writes.

    Without Redis the service works, degraded. The answer is up to a second old.
    """
    found = services().readiness.get()
    redis = "ok" if found.redis else "unavailable"
    if found.problem is not None:
        # Anybody may ask, so what a driver says of its server is only logged.
        is_drivers = type(found.problem) is StorageUnavailable
        database = "unavailable" if is_drivers else str(found.problem)
        report = {"status": "unavailable", "database": database, "redis": redis}
        return report, HTTPStatus.SERVICE_UNAVAILABLE
    return {"status": "ready" if found.redis else "degraded", "database": "ok", "redis": redis}
