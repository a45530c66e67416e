"""The command line, as far as it goes without a server."""

import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest

from worker import Flow, FlowImportFailed, FlowNotFound, cli, console
from worker.cli.dead import row_of
from worker.cli.options import Chosen
from worker.cli.run import NO_ANSWER
from worker.cli.tasks import moment
from worker.queue.replies import Letter


def flows() -> list[Flow]:
    return [Flow(name="a", handler=lambda _: None)]


def two_flows() -> list[Flow]:
    return [Flow(name=name, handler=lambda _: None) for name in "ab"]


def no_flows() -> list[Flow]:
    return []


def other_things() -> list[str]:
    return ["a"]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def _found(target: str | None) -> list[str]:
    return [flow.name for flow in Chosen(flows_argument=target).flows()]


def test_flows_are_found_by_module_and_factory() -> None:
    assert _found(f"{__name__}:two_flows") == ["a", "b"]


def test_the_factory_is_called_flows_unless_named() -> None:
    assert _found(__name__) == ["a"]


def test_flows_are_named_in_pyproject_toml_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[tool.worker]\nflows = "{__name__}:two_flows"\n')
    assert _found(None) == ["a", "b"]


@pytest.mark.parametrize("content", [None, "", "[tool.worker]\n", "[tool.worker\n"])
def test_without_any_name_the_command_says_how_to_give_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(FlowNotFound, match="MODULE:FUNCTION"):
        _found(None)


def needs_settings() -> list[Flow]:
    raise ValueError("DATABASE_URL is not set")


def test_flows_of_the_project_that_cannot_be_loaded_are_an_error_unless_a_queue_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    target = f"{__name__}:needs_settings"
    (tmp_path / "pyproject.toml").write_text(f'[tool.worker]\nflows = "{target}"\n')
    nowhere = Chosen(redis_url="redis://127.0.0.1:1")
    for each in (nowhere, replace(nowhere, flows_option=target, queue="reminders")):
        with pytest.raises(ValueError, match="DATABASE_URL is not set"):
            each.queues_and_flows()
    [(queue, flow)] = replace(nowhere, queue="reminders", new=True).queues_and_flows()
    assert (queue.name, flow) == ("reminders", None)
    assert "a queue without a flow: DATABASE_URL is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    "target", ["no.such.module:flows", f"{__name__}:nothing", f"{__name__}:no_flows"]
)
def test_flows_that_are_not_there_are_named_in_the_error(target: str) -> None:
    with pytest.raises(FlowNotFound, match=target):
        _found(target)


def test_a_factory_of_other_things_is_refused() -> None:
    with pytest.raises(FlowNotFound):
        _found(f"{__name__}:other_things")


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", ""])
def test_a_number_that_must_be_positive_is_checked(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "m:f", f"--threads={text}"]) == 2
    assert "--threads" in capsys.readouterr().err


def test_without_a_redis_url_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stats", f"{__name__}:flows"]) == 1
    assert capsys.readouterr().err == (
        "worker: REDIS_URL is not set: set it, or pass --redis-url redis://host:6379/0\n"
    )


def test_a_redis_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stats", "--redis-url", "redis://127.0.0.1:1", f"{__name__}:flows"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("worker: Redis: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the ids, or pass --all or a filter"),
        (["x", "--all"], "name the ids, or pass --all or a filter"),
        (["x", "--matching", "E"], "name the ids, or pass --all or a filter"),
        (["--all", "--queue", "c"], "no queue 'c': the flows have a, b"),
    ],
)
@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_what_to_put_back_or_delete_must_be_said_exactly(
    verb: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["dead", verb, "--flows", f"{__name__}:two_flows", *arguments]
    assert cli.main([*command, "--redis-url", "redis://127.0.0.1:1"]) == 1
    assert message in capsys.readouterr().err


def test_what_others_wrote_cannot_move_the_terminals_cursor() -> None:
    assert console.shown("\x1b[31m\r\n\x00\udcff") == r"\x1b[31m\r\n\x00\udcff"
    assert [console.shown(value) for value in (None, 5, True, "plain")] == [
        "-",
        "5",
        "True",
        "plain",
    ]


def test_a_letters_row_shows_its_story_and_its_payloads_start() -> None:
    letter = Letter("a", b"\xff" + b"x" * 5000, {"reason": "bad", "failures": 3})
    assert row_of("q", letter) == {
        "queue": "q",
        "id": "a",
        "reason": "bad",
        "failures": 3,
        "payload": r"\xff" + "x" * 999,
    }


@pytest.mark.parametrize(
    ("code", "line", "kind"),
    [
        ("import worker\nimport no_such_module", 2, "ModuleNotFoundError"),
        ("\n\nfrom worker import no_such_name", 3, "ImportError"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("x = 1\nif x", 2, "SyntaxError"),
    ],
)
def test_a_module_that_fails_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, line: int, kind: str
) -> None:
    name = f"broken_{kind.lower()}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FlowImportFailed, match=rf"{name}\.py, line {line}: {kind}: "):
        _found(name)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90s", 90_000), ("1d12h", 129_600_000), ("0s", 0), ("1.5m", 90_000), ("90", 90_000)],
)
def test_a_duration_is_numbers_with_units_or_seconds(text: str, ms: int) -> None:
    assert console.DURATION(text) == ms


@pytest.mark.parametrize("text", ["", "1.5", "h", "-1h", "1h-", "1 h", "1w", "1h30", "\u0669s"])
def test_any_other_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="such as 90s"):
        console.DURATION(text)


@pytest.mark.parametrize("text", ["2026-11-22T02:00:00", "1900000000", "tomorrow", ""])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time with a time zone, such as"):
        moment(None, None, text)


def test_a_pattern_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dead", "list", f"{__name__}:flows", "--matching", "(a"]) == 2
    assert "is not a regular expression" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["stats"],
        ["workers"],
        ["doctor"],
        ["dead", "list"],
        ["dead", "show"],
        ["dead", "requeue"],
        ["dead", "purge"],
        ["schedule"],
        ["run-now"],
        ["cancel"],
        ["pause"],
        ["resume"],
    ],
    ids=" ".join,
)
def test_every_command_names_flows_alike_and_has_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--flows MODULE:FUNCTION", "--queue NAME", "--redis-url URL"):
        assert option in text
    assert ("--json" in text) == (command != ["run"])
    assert f"  {' '.join(command)}" in text.partition("examples:")[2]


def test_the_help_says_what_each_exit_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    found = [line.split()[0] for line in text.partition("exit status:")[2].splitlines()[1:]]
    assert found == ["0", "1", "or", "2", "130", "doctor:", "health:"]


def test_only_the_queue_that_is_named_is_run() -> None:
    named = Chosen(flows_option=f"{__name__}:two_flows", queue="b")
    assert [flow.name for flow in named.flows()] == ["b"]
    with pytest.raises(ValueError, match="the flows have a, b"):
        replace(named, queue="c").flows()


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (12_345, "12 s"),
        (600_000, "10 min"),
        (9_000_000, "2.5 h"),
        (259_200_000, "3.0 d"),
    ],
)
def test_a_duration_is_shown_in_a_unit_that_fits(ms: float, shown: str) -> None:
    assert console.duration(ms) == shown


def test_ctrl_c_has_an_exit_status_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_named: Chosen) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Chosen, "queues_and_flows", interrupted)
    assert cli.main(["stats"]) == 130


def test_health_at_what_is_no_port(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRICS_PORT", "http")
    assert cli.main(["health"]) == 2
    assert "'http' is not a valid integer range" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "asked"), [("", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("::1", "[::1]")]
)
def test_health_is_asked_where_a_worker_listens(
    host: str, asked: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRICS_HOST", host)
    monkeypatch.setenv("METRICS_PORT", "1")  # nobody listens
    assert cli.main(["health"]) == NO_ANSWER
    assert capsys.readouterr().err.startswith(f"worker: http://{asked}:1/healthz does not answer")
