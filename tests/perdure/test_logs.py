"""Logs: constant messages with fields, one way for all, in a format for people or for machines."""

import json
import subprocess
import sys
from typing import Any

import pytest

SET_UP = """
import logging, structlog
from temporalio import activity, workflow
from perdure.logs import configure_logs
from perdure.settings import Settings
configure_logs(Settings(log_format={format!r}, log_level={level!r}))
configure_logs(Settings(log_format={format!r}, log_level={level!r}))
"""


def log(code: str, *, log_format: str = "json", level: str = "info") -> str:
    """What a process writes to stderr that sets up logs and runs the code."""
    source = SET_UP.format(format=log_format, level=level) + code
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stderr


def records(code: str, level: str = "info") -> list[dict[str, Any]]:
    """The records that the code makes."""
    return [json.loads(line) for line in log(code, level=level).splitlines()]


def test_a_record_is_a_message_with_fields() -> None:
    """A record of ours is one line of JSON: message, level, logger, time, and its fields."""
    (record,) = records("structlog.get_logger('perdure.worker').info('worker started', task_queue='q', agents=['a'])")
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "worker started",
        "level": "info",
        "logger": "perdure.worker",
        "task_queue": "q",
        "agents": ["a"],
    }


@pytest.mark.parametrize("kind", ["activity", "workflow"])
def test_the_sdks_records_take_the_same_way(kind: str) -> None:
    """A record that the Temporal SDK made carries the ids that one searches for as fields."""
    details = {"workflow_id": "thread:1", "run_id": "r", "attempt": 2, "namespace": "default"}
    (record,) = records(
        f"logging.getLogger('temporalio.{kind}').warning('slow', extra={{'temporal_{kind}': {details}}})"
    )
    assert {name: record[name] for name in ("event", "logger", "workflow_id", "run_id", "attempt")} == {
        "event": "slow",
        "logger": f"temporalio.{kind}",
        "workflow_id": "thread:1",
        "run_id": "r",
        "attempt": 2,
    }
    assert "namespace" not in str(record)


def test_an_exception_is_one_line_too() -> None:
    """A traceback is a field of its record, so that no line is without its context."""
    (record,) = records("try: 1 / 0\nexcept ZeroDivisionError: structlog.get_logger('x').exception('failed')")
    assert record["event"] == "failed"
    assert record["exception"][0]["exc_type"] == "ZeroDivisionError"


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_shows_no_variables(log_format: str) -> None:
    """A failure is logged with its text and its place, but not with the words that were being handled."""
    code = "def fail(words): raise ValueError('the reason')\ntry: fail('private' + ' words')\n"
    written = log(code + "except ValueError: structlog.get_logger('x').exception('failed')", log_format=log_format)
    assert "the reason" in written
    assert "fail" in written
    assert "private words" not in written


@pytest.mark.parametrize(("level", "shown"), [("info", 2), ("warning", 1), ("error", 0)])
def test_the_level_holds_for_all(level: str, shown: int) -> None:
    """Records below the level are left out, whoever makes them."""
    code = "structlog.get_logger('x').info('a')\nlogging.getLogger('y').warning('b')"
    assert len(records(code, level)) == shown


def test_the_console_is_for_people() -> None:
    """On the console a record is a line with its message and fields, without colours when it is not a terminal."""
    written = log("structlog.get_logger('perdure.worker').info('worker started', task_queue='q')", log_format="console")
    assert "worker started" in written
    assert "task_queue=q" in written
    assert "\x1b" not in written


@pytest.mark.parametrize("client", ["httpx", "httpx2"])
def test_addresses_of_requests_stay_out(client: str) -> None:
    """HTTP clients log every URL, and that of a tool server may hold a secret. Their warnings come through."""
    logged = records(
        f"logging.getLogger({client!r}).info('HTTP Request: POST https://tools.example.com/s3cret')\n"
        f"logging.getLogger({client!r}).warning('a warning')"
    )
    assert [record["event"] for record in logged] == ["a warning"]
