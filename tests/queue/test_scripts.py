"""How scripts are put together: includes in front, keys by name, line numbers that stay true."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from tests.kit.length import quick_first
from tests.queue.conftest import REAL
from worker import DelayQueue
from worker.queue.keys import Keys
from worker.queue.scripts import INCLUDE, ScriptFile, scripts

FOLDER = Path(str(files("worker"))) / "queue" / "lua"
SCRIPTS = {script.name: script for script in scripts()}
INCLUDES = {path.stem: path for path in (FOLDER / "include").glob("*.lua")}
KEYWORDS = (
    "and|break|do|else|elseif|end|false|for|function|if|in|local|nil|not|or|repeat|return|then|true"
    "|until|while"
)
DECLARE = {"local", "for", "function", ",", "("}
GIVEN = {"ARGV", "KEYS", "ipairs", "math", "redis", "string", "tonumber", "type", "unpack"}
TOKEN = re.compile(
    r"--.*|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|\d[\w.]*|\.\.+|[.:] *[A-Za-z_]\w*|[A-Za-z_]\w*|==|\S"
)

every_script = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)


def test_there_is_a_script_for_each_file_and_it_is_as_long() -> None:
    assert {*SCRIPTS} == {path.stem for path in FOLDER.glob("*.lua")}
    for name, script in SCRIPTS.items():
        file = (FOLDER / f"{name}.lua").read_text().splitlines()
        first, *rest = script.text.splitlines()
        assert first.endswith(file[0])
        assert rest == file[1:]


@every_script
def test_every_key_is_declared_as_the_map_names_it(
    script: ScriptFile,
) -> None:
    text = (FOLDER / f"{script.name}.lua").read_text()
    declared = re.findall(r"^-- KEYS\[(\d+)\] +(\w+)", text, re.MULTILINE)
    assert declared == [(str(n), key) for n, key in enumerate(script.keys, start=1)]
    assert {*script.keys} <= {*vars(Keys("any"))}
    assert script.keys, "a cluster finds a script's node by its keys"
    body = _code(text)
    assert "KEYS" not in body, "keys have names"
    used = {
        *body,
        *(word for each in _included(text) for word in _code(INCLUDES[each].read_text())),
    }
    assert {*script.keys} <= used


@every_script
def test_every_include_is_used(script: ScriptFile) -> None:
    text = (FOLDER / f"{script.name}.lua").read_text()
    included = _included(text)
    assert len({*included}) == len(included)
    for name in included:
        given = {
            *re.findall(r"^local (?:function )?(\w+)", INCLUDES[name].read_text(), re.MULTILINE)
        }
        given |= {"since_now_us"} if name == "clock" else set()
        others = [INCLUDES[each].read_text() for each in included if each != name]
        used = {word for each in (text, *others) for word in _code(each)}
        assert given & used, f"{name} is included for nothing"


def test_every_file_to_include_is_included_somewhere() -> None:
    texts = [(FOLDER / f"{name}.lua").read_text() for name in SCRIPTS]
    assert {name for text in texts for name in _included(text)} == {*INCLUDES}


@every_script
def test_no_script_uses_an_undeclared_global(script: ScriptFile) -> None:
    assert [*_undeclared(script.text)] == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("x = 1", "x"),
        ("local a = b", "b"),
        ("local x = y\nlocal y = 1", "y"),
        ("for i, n in ipairs(list) do end", "list"),
        ("local t = {x = 1, y = z}", "z"),
        ("local t = {}\nt.field, other = 1, 2", "other"),
        ("local function f(a, b) return c end", "c"),
        ("return os.time()", "os"),
    ],
)
def test_an_undeclared_global_is_found(code: str, name: str) -> None:
    assert [*_undeclared(code)] == [name]


@pytest.mark.parametrize("server", quick_first(REAL), indirect=True, scope="session")
@every_script
def test_an_error_names_the_line_of_the_file_it_is_on(
    client: redis.Redis, script: ScriptFile
) -> None:
    file = (FOLDER / f"{script.name}.lua").read_text().splitlines()
    lines = script.text.splitlines()
    line = next(n for n, text in enumerate(file) if text and not text.startswith("--"))
    lines[line] = f"error('on purpose') {lines[line]}"
    with pytest.raises(redis.ResponseError, match="on purpose") as raised:
        client.eval("\n".join(lines), len(script.keys), *script.keys, "", "", "", "", "")
    assert f"user_script:{line + 1}:" in str(raised.value)


@pytest.mark.parametrize("server", quick_first(REAL), indirect=True, scope="session")
def test_an_error_of_a_command_names_its_line_of_the_file(
    client: redis.Redis, queue: DelayQueue
) -> None:
    client.set(queue.keys.leased, "a string")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE") as raised:
        queue.claim(1, 1, now_ms=0)
    found = re.search(r"user_script:\s*(\d+)", str(raised.value))
    assert found
    file = (FOLDER / "claim.lua").read_text().splitlines()
    assert "redis.call('ZRANGE', leased" in file[int(found[1]) - 1]


def _included(text: str) -> list[str]:
    return [name for names in INCLUDE.findall(text) for name in names.split(", ")]


def _code(text: str) -> list[str]:
    """Its words and signs, without comments and strings."""
    return [word for word in TOKEN.findall(text) if not word.startswith(("--", "'", '"'))]


def _undeclared(text: str) -> Iterator[str]:
    """Names that are used before any `local`, parameter or `for` has declared them."""
    known, braces, declares = {*GIVEN, *KEYWORDS.split("|")}, 0, False
    words = _code(text)
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        braces += (word == "{") - (word == "}")
        if word in ("local", "for", "function"):
            declares = True  # the names that follow, the function's own among them
        elif word not in (",", "(") and not (
            declares and before in DECLARE and word.isidentifier()
        ):
            declares = False
        if declares and word.isidentifier():
            known.add(word)
        elif word.isidentifier() and word not in known and not (braces and after == "="):
            yield word
