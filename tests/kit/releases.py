"""The release before this one, from git: what an upgrade begins with, and a rollback ends with; and the next one's schema."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.config import Config

from devtools.processes import ROOT, Code
from orders.db.migrate import config
from orders.db.schema import schema_version
from tests.kit.pages import UPGRADING, the_block

#: Upgrades start here. Until it is tagged, the code that last changed the schema stands for the release before.
FIRST = (0, 2, 0)
LOCK = "requirements/service.lock"
#: The migration that a page shows, and its way back.
MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0999_later", "{schema_version()}"

{the_block("python", "postgresql_concurrently", UPGRADING)}

def downgrade():
    op.drop_column("orders", "channel")
"""


def release_before(folder: Path) -> Code:
    """The newest release before this commit, in ``folder``. Skips the test where git does not have it.

    It runs in the environment of these tests, or in one of its own if it needs other packages.
    """
    commit = _commit()
    archive, checkout = folder / "release.tar", folder / "release"
    _git("archive", "--output", str(archive), commit)
    shutil.unpack_archive(archive, checkout, filter="data")  # a zip would lose its links
    same = (checkout / LOCK).read_text() == (ROOT / LOCK).read_text()
    code = Code(checkout, sys.executable if same else _environment(folder / "venv", checkout))
    look = [code.python, "-c", "import orders, worker; print(orders.__file__, worker.__file__)"]
    found = subprocess.check_output(look, cwd=checkout, text=True).split()
    assert [Path(each).parent.parent for each in found] == [checkout, checkout]
    return code


def schema_after(folder: Path, url: str) -> Config:
    """For a database at this URL: our migrations and one more, in ``folder``."""
    folder.mkdir()
    (folder / "0999_later.py").write_text(MIGRATION)
    made = config()
    made.set_main_option("version_locations", f"{ROOT / 'migrations' / 'versions'}:{folder}")
    made.attributes["engine"] = sa.create_engine(url, poolclass=sa.NullPool)
    return made


def _commit() -> str:
    try:
        shallow = _git("rev-parse", "--is-shallow-repository")
        tags = _git("tag", "--list", "v*", "--no-contains", "HEAD", "--sort=v:refname").split()
        releases = [tag for tag in tags if _version(tag) >= FIRST]
        if releases:
            return releases[-1]
        changed = _git("log", "-1", "--format=%H", "--", "migrations/versions")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no history of git here: {error}")
    if shallow == "true" or not changed:
        pytest.skip("this clone of the repository has no history")
    return changed


def _version(tag: str) -> tuple[int, ...]:
    """Of a release, not of a candidate."""
    exact = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)", tag)
    return tuple(map(int, exact.groups())) if exact else ()


def _environment(venv: Path, checkout: Path) -> str:
    """Another environment, with what that release needs."""
    python = str(venv / "bin" / "python")
    install = [python, "-m", "pip", "--quiet", "install", "--require-hashes", "-r", LOCK]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run(install, cwd=checkout, check=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the packages of the release before cannot be had: {error}")
    return python


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.check_output(command, cwd=ROOT, stderr=subprocess.PIPE, text=True).strip()
