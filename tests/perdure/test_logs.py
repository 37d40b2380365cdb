"""Logs: constant messages with fields, one way for all, in a format for people or for machines."""

import asyncio
import json
import subprocess
import sys
import uuid
from typing import Any

import pytest

from perdure.dev.temporal_server import TemporalServer

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


def failures(address: str, log_format: str) -> str:
    """What a worker writes whose activities fail."""
    command = [sys.executable, "-m", "tests.perdure.failing_worker", address, f"logs-{uuid.uuid4()}", log_format]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


async def test_a_foreseen_failure_of_an_activity_is_one_line_and_a_bug_has_its_traceback(
    temporal_server: TemporalServer,
) -> None:
    """The line has the sentence and says which activity, of what workflow, in what attempt."""
    written = await asyncio.to_thread(failures, temporal_server.address, "json")
    logged = [json.loads(line) for line in written.splitlines()]
    assert [(record["activity_type"], record.get("reason"), "exception" in record) for record in logged] == [
        ("foreseen", "m: the provider is unavailable.", False),
        ("store_is_away", "PostgreSQL cannot be reached.", False),
        ("bug", None, True),
        ("unforeseen", None, True),
        ("foreseen", "m: the provider is unavailable.", False),
    ]
    first = logged[0]
    assert (first["event"], first["level"], first["failure"]) == (
        "Completing activity as failed",
        "warning",
        "ModelError",
    )
    assert first["attempt"] == 1
    assert first["workflow_id"].startswith("logs-")
    assert logged[3]["exception"][0]["exc_value"] == "nobody has thought of this"
    assert {frame["name"] for frame in logged[3]["exception"][0]["frames"]} >= {"unforeseen"}


async def test_the_console_shows_it_in_the_same_way(temporal_server: TemporalServer) -> None:
    """Three lines for the failures that were foreseen, and tracebacks for the two bugs alone."""
    written = await asyncio.to_thread(failures, temporal_server.address, "console")
    lines = written.splitlines()
    assert sum("Completing activity as failed" in line for line in lines) == 5
    assert sum("the provider is unavailable." in line for line in lines) == 2
    assert "ConnectionError" not in written
    assert any(line.startswith("LookupError: nobody has thought of this") for line in lines)
    assert any("StoreError: bug: a part too many" in line for line in lines)
