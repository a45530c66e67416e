"""Where the API's processes on one port count for Prometheus.

Each process counts in files of its own, and the one that is scraped adds them all up. The files
belong in memory, because they are written all the time: in containers /tmp is.
"""

import fcntl
import os
from pathlib import Path

from orders.errors import SettingsInvalid

#: prometheus-client's own variable, which it reads when it is imported. It is set here and not by
#: operators, because a worker that had it would count in the API's files too.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


def prepared(directory: Path) -> Path:
    """Create the directory, and empty it if all processes that used it are gone.

    Each process holds a shared lock until it ends, so a process that gets an exclusive one is the
    first. Raises SettingsInvalid.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_uid != os.geteuid():
            raise SettingsInvalid(f"METRICS_DIR: {directory} belongs to another user.")
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            for file in directory.glob("*.db"):
                file.unlink(missing_ok=True)
        # A process that empties the directory before this line removes nothing of this one's.
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        raise SettingsInvalid(f"METRICS_DIR: {error}") from error
    return directory
