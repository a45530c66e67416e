"""Writes .env with random secrets for docker-compose.yml. Needs nothing but Python."""

import argparse
import hashlib
import os
import secrets
from pathlib import Path

ENV = Path(__file__).resolve().parent.parent / ".env"


def write_env(path: Path) -> None:
    """Write new secrets to ``path``. Raises FileExistsError rather than overwrite existing ones."""
    redis_password = secrets.token_hex(32)
    values = {
        "POSTGRES_PASSWORD": secrets.token_hex(32),
        "REDIS_PASSWORD": redis_password,
        "REDIS_PASSWORD_SHA256": hashlib.sha256(redis_password.encode()).hexdigest(),
    }
    # Readable by its owner only, from the first moment.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in values.items())


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m devtools.make_env", description=__doc__).parse_args()
    try:
        write_env(ENV)
    except FileExistsError:
        raise SystemExit(".env already exists, and was not changed") from None
    print("Wrote .env; .env.example lists other settings for it.")
