"""Settings: the environment first, then the stack of this folder, then defaults; wrong ones named in one line."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.errors import ConfigurationError
from perdure.settings import RunningStack, Settings, load_settings, load_temporal_config, without_password

URL = "postgresql://me:secret@db.example:5432/app"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))


def running(pid: int) -> RunningStack:
    """A stack that a process says it runs."""
    return RunningStack(
        pid=pid,
        temporal_address="127.0.0.1:7000",
        database_url="postgresql:///dev",
        gateway_url="http://127.0.0.1:7001",
    )


def ended_pid() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_environment_sets_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field is read from its PERDURE_ variable."""
    for name, value in {
        "DATABASE_URL": URL,
        "TASK_QUEUE": "q",
        "SANDBOX": "true",
        "MAX_CACHED_WORKFLOWS": "7",
        "MAX_CONCURRENT_ACTIVITIES": "8",
        "SEARCH_ATTRIBUTES": "false",
        "GATEWAY_URL": "https://agents.example",
        "GATEWAY_HOST": "0.0.0.0",
        "GATEWAY_PORT": "99",
        "CALLBACK_BYTES": "2048",
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "debug",
    }.items():
        monkeypatch.setenv(f"PERDURE_{name}", value)
    assert load_settings() == Settings(
        database_url=URL,
        task_queue="q",
        sandbox=True,
        max_cached_workflows=7,
        max_concurrent_activities=8,
        search_attributes=False,
        gateway_url="https://agents.example",
        gateway_host="0.0.0.0",
        gateway_port=99,
        callback_bytes=2048,
        log_format="json",
        log_level="debug",
    )


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("MAX_CACHED_WORKFLOWS", "many", "it must be a whole number"),
        ("MAX_CACHED_WORKFLOWS", "-1", "it must be at least 0"),
        ("GATEWAY_PORT", "99999", "it must be at most 65535"),
        ("SANDBOX", "perhaps", "it must be true or false"),
        ("LOG_LEVEL", "loud", "it must be 'debug', 'info', 'warning' or 'error'"),
        ("GATEWAY_URL", "foo", "it should look like https://agents.example.com"),
    ],
)
def test_a_wrong_value_names_its_variable(name: str, value: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that does not fit is a ConfigurationError that names the variable, and what it takes."""
    monkeypatch.setenv(f"PERDURE_{name}", value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert str(caught.value) == f"Wrong setting: PERDURE_{name}: {wanted}."


def test_the_database_url_is_not_shown() -> None:
    """Neither the settings' text nor an error about them holds the database password."""
    assert "secret" not in repr(Settings(database_url=URL))
    with pytest.raises(ConfigurationError) as caught:
        load_settings(database_url=["secret"])
    assert "secret" not in str(caught.value)


def test_a_missing_database_says_what_to_do() -> None:
    """Without a database URL the error names the variable and the command that would give one."""
    with pytest.raises(ConfigurationError, match=r"PERDURE_DATABASE_URL.*perdure dev"):
        load_settings().required_database_url()


def test_the_running_stack_of_the_folder_is_found(tmp_path: Path) -> None:
    """What `perdure dev` left in the folder gives the addresses that the environment does not."""
    running(os.getpid()).write(tmp_path)
    assert load_settings(tmp_path).database_url == "postgresql:///dev"
    assert load_settings(tmp_path).callback_base == "http://127.0.0.1:7001"
    assert load_temporal_config(tmp_path).get("target_host") == "127.0.0.1:7000"


def test_the_environment_wins_over_the_running_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses in the environment are used although a stack runs in the folder."""
    running(os.getpid()).write(tmp_path)
    monkeypatch.setenv("PERDURE_DATABASE_URL", URL)
    monkeypatch.setenv("PERDURE_GATEWAY_URL", "https://agents.example/")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    assert load_settings(tmp_path).database_url == URL
    assert load_settings(tmp_path).callback_base == "https://agents.example"
    assert load_temporal_config(tmp_path).get("target_host") == "temporal.example:7233"


def test_a_stack_whose_process_is_gone_does_not_count(tmp_path: Path) -> None:
    """The addresses that a killed `perdure dev` left behind are not used."""
    running(ended_pid()).write(tmp_path)
    assert load_settings(tmp_path).database_url is None
    assert load_temporal_config(tmp_path).get("target_host") == "localhost:7233"


def test_a_damaged_address_file_is_an_error(tmp_path: Path) -> None:
    """An unreadable address file is named, not taken for no stack."""
    RunningStack.path(tmp_path).write_text("{")
    with pytest.raises(ConfigurationError, match=r"dev\.json .*delete it"):
        load_settings(tmp_path)


def test_the_address_file_is_private(tmp_path: Path) -> None:
    """Only its owner may read the address file, since a database URL may hold a password."""
    running(os.getpid()).write(tmp_path)
    assert stat.S_IMODE(RunningStack.path(tmp_path).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("127.0.0.1", "http://127.0.0.1:8321"),
        ("0.0.0.0", "http://127.0.0.1:8321"),
        ("::", "http://[::1]:8321"),
        ("box.example", "http://box.example:8321"),
    ],
)
def test_callbacks_go_to_where_the_gateway_listens(host: str, base: str) -> None:
    """Without a public URL the base of callback URLs is an address that this machine reaches."""
    assert Settings(gateway_host=host).callback_base == base


@pytest.mark.parametrize("url", ["agents.example", "ftp://agents.example", "https://", "https://a.example/?x=1"])
def test_a_gateway_url_that_no_server_could_call_is_refused(url: str) -> None:
    """What is not an http(s) URL with a host, or has a query that callback paths cannot follow, is named."""
    with pytest.raises(ConfigurationError, match=r"PERDURE_GATEWAY_URL.*https://agents\.example\.com"):
        load_settings(gateway_url=url)


def test_temporals_profile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporal's own configuration file gives address and namespace."""
    file = tmp_path / "temporal.toml"
    file.write_text('[profile.prod]\naddress = "prod.example:7233"\nnamespace = "team"\n')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    monkeypatch.setenv("TEMPORAL_PROFILE", "prod")
    config = load_temporal_config(tmp_path)
    assert (config.get("target_host"), config.get("namespace")) == ("prod.example:7233", "team")


@pytest.mark.parametrize("content", ["x = [", None])
def test_a_wrong_temporal_configuration_is_one_line(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken file, or a profile that is not in it, is a ConfigurationError of one line."""
    file = tmp_path / "temporal.toml"
    file.write_text(content or "")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    monkeypatch.setenv("TEMPORAL_PROFILE", "nowhere")
    with pytest.raises(ConfigurationError, match=r"^Temporal's client configuration is wrong: [^\n]+$"):
        load_temporal_config(tmp_path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "postgresql://me@db.example:5432/app"),
        ("postgresql://me:p%40ss@[::1]:5432/app", "postgresql://me@[::1]:5432/app"),
        ("postgresql:///app?host=/tmp/db&password=secret", "postgresql:///app?host=/tmp/db"),
        ("postgresql://host/app", "postgresql://host/app"),
    ],
)
def test_a_shown_url_has_no_password(url: str, shown: str) -> None:
    """The password is left out wherever a URL may hold it, and the rest stays."""
    assert without_password(url) == shown
