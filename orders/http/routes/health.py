"""Whether the process runs, and whether it can work."""

from http import HTTPStatus

import structlog
from apiflask import APIBlueprint
from flask.typing import ResponseReturnValue

from orders.errors import StorageUnavailable
from orders.http.auth import services
from orders.http.contract import also
from orders.http.schemas.health import HealthOut, ReadinessOut

log = structlog.get_logger("orders")
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

    Without Redis the service works, degraded.
    """
    redis = "ok" if services().redis_answers() else "unavailable"
    try:
        services().orders.check_ready()
    except StorageUnavailable as error:
        log.warning("not ready", error=str(error))
        # Anybody may ask, so what a driver says of its server is only logged.
        database = "unavailable" if type(error) is StorageUnavailable else str(error)
        report = {"status": "unavailable", "database": database, "redis": redis}
        return report, HTTPStatus.SERVICE_UNAVAILABLE
    status = "ready" if redis == "ok" else "degraded"
    return {"status": status, "database": "ok", "redis": redis}
