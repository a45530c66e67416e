"""Builds the wheel from a copy of the sources, so that no file of an earlier build gets into it."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from devtools.processes import ROOT

SOURCES = ("orders", "worker", "pyproject.toml", "README.md", "LICENSE")


def build_wheel(into: Path) -> Path:
    """Build the wheel and return its path. Raises RuntimeError.

    It needs no network: setuptools is the one installed for this Python.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, Path(folder) / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, folder)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(into)]
        done = subprocess.run(
            [*pip, *options, folder], cwd=folder, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"no wheel was built:\n{done.stdout}{done.stderr}")
    [wheel] = into.glob("*.whl")
    return wheel
