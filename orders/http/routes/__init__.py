"""The HTTP API: parse, call one method of the service, render. One file for each kind of thing."""

from orders.http import responses  # noqa: F401  before any schema is named
