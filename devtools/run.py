"""``make run``: the service to try by hand, its data kept under ``data/``."""

import os
import signal
import sys
import time
from pathlib import Path

from devtools import processes
from devtools.service import Service

SESSION = """
The API is at {url}, with its documentation at {url}/docs.
Its data is under {folder}. Ctrl-C stops everything. Paste this into another terminal:

  export KEY={key}
  curl -X PUT {url}/v1/stock/mug -H "Authorization: Bearer $KEY" \\
    -H 'Content-Type: application/json' -d '{{"on_hand":10,"price_minor":1250,"currency":"EUR"}}'
  curl -i {url}/v1/orders -H "Authorization: Bearer $KEY" -H "Idempotency-Key: $(date +%s)" \\
    -H 'Content-Type: application/json' \\
    -d '{{"items":[{{"sku":"mug","quantity":2}}],"timeout_seconds":15}}'
  curl {url}/v1/orders -H "Authorization: Bearer $KEY"     # again after 15 seconds
  curl {url}/v1/stock/mug -H "Authorization: Bearer $KEY"
"""


def main() -> int:
    port = int(os.environ.get("PORT", "8000"))
    folder = Path(os.environ.get("DATA", processes.ROOT / "data"))
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    try:
        with Service(folder, port, {"WEBHOOK_ALLOW_PRIVATE": "1"}) as service:
            key = processes.create_key(
                service.env, f"run-{time.time_ns()}", "orders", "payments", "ops"
            )
            print(SESSION.format(url=service.base_url, key=key, folder=folder), flush=True)
            service.wait()
            print(f"A process ended on its own; see the logs under {folder}.", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0
    except (RuntimeError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
