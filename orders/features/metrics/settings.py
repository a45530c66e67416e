"""The environment's settings of this feature: see `orders.config`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    #: Where the API and the worker serve /metrics; None: nowhere.
    metrics_port: Annotated[int | None, Field(ge=1, le=65_535)] = None
    metrics_host: str = "127.0.0.1"
    #: Where the API's processes share their counts; empty: a directory under /tmp, named after the
    #: port.
    metrics_dir: str = ""
