"""The order service: what an order is, how it is stored, and its HTTP API."""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("granian") is None:
    _sentence = "The order service needs more than the queue: pip install 'order-timeout[orders]'"
    # The installed command, and python -m, import this package before any code that could catch an error.
    if Path(sys.argv[0]).stem in ("order-timeout-orders", "-m"):
        raise SystemExit(f"Error: {_sentence}")
    raise ModuleNotFoundError(_sentence, name="granian")
