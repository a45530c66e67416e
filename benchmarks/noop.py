"""A flow whose handler only records how late it is called."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from worker import Flow, Task

QUEUE = "noop"


def flows() -> list[Flow]:
    record = Path(os.environ["LATENESS_RECORD"]).open("a", buffering=1)  # noqa: SIM115  till the end

    def note(tasks: Sequence[Task]) -> None:
        now_ms = time.time() * 1000
        record.write(json.dumps([round(now_ms - task.due_at_ms, 3) for task in tasks]) + "\n")

    return [Flow(name=QUEUE, handler=note)]
