"""The order service: what an order is, how it is kept, and how it is reached."""

from importlib.util import find_spec

if find_spec("apiflask") is None:
    raise ModuleNotFoundError(
        "The order service needs more than the queue: pip install 'order-timeout[orders]'",
        name="apiflask",
    )
