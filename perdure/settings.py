"""Settings: `PERDURE_*` for Perdure's own, Temporal's environment configuration for the way to Temporal.

Each is looked for in the environment first. The addresses then come from the stack that `perdure dev` runs in this
folder, so that every command finds it without being told.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from perdure.contract import DEFAULT_TASK_QUEUE
from perdure.errors import ConfigurationError

DATA_DIR: Final = Path(".perdure")
DEFAULT_TEMPORAL_ADDRESS: Final = "localhost:7233"


def _without_slash(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("it should look like https://agents.example.com")
    return url.rstrip("/")


GatewayUrl = Annotated[str, AfterValidator(_without_slash)]


class Settings(BaseSettings):
    """Settings of a worker, a client or a command.

    Attributes:
        database_url: `postgresql://user:password@host:port/name`.
        task_queue: where the workers of one set of agents meet.
        sandbox: run workflows in Temporal's sandbox, which catches what is not deterministic and costs half as much
            CPU again; tests run with it.
        max_cached_workflows: threads kept in memory, 75 KB each, or 160 KB in the sandbox.
        max_concurrent_activities: model calls and tools that run at once in one worker.
        payload_codec: `module:attribute` of a `temporalio.converter.PayloadCodec`, which encrypts what Temporal stores
            of threads, all but their ids and search attributes; workers, clients and the gateway need the same one.
        search_attributes: keep the threads' search attributes up to date in Temporal; off where the namespace has none.
        gateway_url: where tool servers reach the gateway, such as `https://agents.example.com`; left out, it is where
            the gateway listens.
        gateway_host: the address on which the gateway listens.
        gateway_port: its port.
        callback_bytes: the largest body of a callback.
        log_format: `console` for people, `json` for machines.
        log_level: the least severe records that are shown.
    """

    # Fields are read by name here only, so an unknown PERDURE_ variable is not an error: it may be a later version's.
    model_config = SettingsConfigDict(env_prefix="PERDURE_", frozen=True)

    database_url: str | None = Field(default=None, repr=False)
    task_queue: str = DEFAULT_TASK_QUEUE
    sandbox: bool = False
    max_cached_workflows: int = Field(default=2_000, ge=0)
    max_concurrent_activities: int = Field(default=200, ge=1)
    payload_codec: str | None = None
    search_attributes: bool = True
    gateway_url: GatewayUrl | None = None
    gateway_host: str = "127.0.0.1"
    gateway_port: int = Field(default=8321, ge=1, le=65_535)
    callback_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def required_database_url(self) -> str:
        """The database URL.

        Raises:
            ConfigurationError: if there is none.
        """
        if not self.database_url:
            raise ConfigurationError(
                "No database is known: set PERDURE_DATABASE_URL, or run `perdure dev` in this folder."
            )
        return self.database_url

    @property
    def callback_base(self) -> str:
        """The URL under which tool servers reach the gateway, without a slash at its end."""
        return self.gateway_url or gateway_address(self.gateway_host, self.gateway_port)


class RunningStack(BaseModel):
    """The addresses of a stack that `perdure dev` runs, as it leaves them in `.perdure/dev.json`."""

    pid: int
    temporal_address: str
    ui_url: str | None = None
    database_url: str
    gateway_url: str | None = None

    def write(self, data_dir: Path = DATA_DIR) -> None:
        """Leave the addresses for other commands, readable by this user only: a URL may hold a password."""
        path = self.path(data_dir)
        path.touch(mode=0o600)
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, data_dir: Path = DATA_DIR) -> Self | None:
        """The stack that runs in this folder, None if none does; what a killed one left behind does not count."""
        try:
            stack = cls.model_validate_json(cls.path(data_dir).read_bytes())
        except FileNotFoundError:
            return None
        except (ValidationError, OSError) as error:
            raise ConfigurationError(
                f"{cls.path(data_dir)} is not readable as the addresses of a stack: delete it."
            ) from error
        return stack if _is_alive(stack.pid) else None

    @staticmethod
    def path(data_dir: Path = DATA_DIR) -> Path:
        """Where the addresses are left."""
        return data_dir / "dev.json"


def load_environment(**values: Any) -> Settings:
    """What the environment says, with `values` before it.

    Raises:
        ConfigurationError: if one does not fit; it names the variable.
    """
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigurationError(f"Wrong setting: {_first(error)}.") from error


def load_settings(data_dir: Path = DATA_DIR, **values: Any) -> Settings:
    """The settings of this process: `values`, the environment, and for the addresses this folder's stack.

    Raises:
        ConfigurationError: if one does not fit.
    """
    settings = load_environment(**values)
    missing = [name for name in ("database_url", "gateway_url") if getattr(settings, name) is None]
    if missing and (stack := RunningStack.read(data_dir)) is not None:
        return settings.model_copy(update={name: getattr(stack, name) for name in missing})
    return settings


def load_temporal_environment() -> ClientConnectConfig:
    """What TEMPORAL_ADDRESS, TEMPORAL_PROFILE and their like, and Temporal's configuration file say.

    Raises:
        ConfigurationError: if the file or the profile is wrong.
    """
    try:
        return ClientConfig.load_client_connect_config()
    except Exception as error:  # the SDK's ConfigError is private to it, and an unreadable file is an OSError
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"Temporal's client configuration is wrong: {reason}.") from error


def load_temporal_config(data_dir: Path = DATA_DIR) -> ClientConnectConfig:
    """How to reach Temporal, with `target_host` always given: the environment, this folder's stack, the default port.

    Raises:
        ConfigurationError: if the configuration file or the profile is wrong.
    """
    config = load_temporal_environment()
    if "target_host" not in config:
        stack = RunningStack.read(data_dir)
        config["target_host"] = stack.temporal_address if stack else DEFAULT_TEMPORAL_ADDRESS
    return config


def without_password(url: str) -> str:
    """A database URL that may be shown: its password, in the address or among the parameters, is left out."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = urlencode([pair for pair in parse_qsl(parts.query) if "password" not in pair[0].lower()], safe="/")
    # Not `geturl`, which drops the slashes of an empty address.
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{host}{parts.path}{query and '?'}{query}"


def gateway_address(host: str, port: int) -> str:
    """The URL of a gateway that listens there, for whoever is on the same machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"PERDURE_{'_'.join(map(str, first['loc'])).upper()}: {_wanted(first)}"


def _wanted(error: ErrorDetails) -> str:
    """What a value should be instead, in words for who sets it."""
    bounds = error.get("ctx", {})
    match error["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "it must be a whole number"
        case "bool_parsing" | "bool_type":
            return "it must be true or false"
        case "greater_than_equal":
            return f"it must be at least {bounds['ge']}"
        case "less_than_equal":
            return f"it must be at most {bounds['le']}"
        case "literal_error":
            return f"it must be {bounds['expected']}"
        case _:
            return error["msg"].removeprefix("Value error, ")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, under another user
        return True
    return True
