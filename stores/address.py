"""Where a database is, and what its errors become.

Every failure of the driver, the network or the server passes here and leaves as an error of `perdure.errors` that
names the database, never the password. Nothing is tried again here: whether and how long to retry is the caller's
policy.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from perdure.errors import (
    CallNotOpen,
    ConfigurationError,
    ContentConflict,
    PerdureError,
    SpawnPointNotFound,
    StaleWriter,
    StepSealed,
    StoreError,
    StoreUnavailable,
    ThreadNotFound,
    TooManyViews,
)
from stores.late_result import NoSuchCall

CONNECT_TIMEOUT_S = 10

_BUSY = (
    asyncpg.QueryCanceledError,  # by a timeout
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,  # deadlock, serialization
    asyncpg.ReadOnlySQLTransactionError,  # a standby, in the middle of a failover
)
_LOST = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError)  # the latter: shutting down, starting up
_MISCONFIGURED = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)
_NOT_MIGRATED = (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError)


class StepStreams(StoreError):
    """A step was to be committed that is not done; what streamed must be put together first."""


class Address:
    """Where a database is, as far as people may read it.

    Raises:
        ConfigurationError: if the URL cannot be one of a PostgreSQL database.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigurationError(_bad_url("its host or port cannot be read")) from error
        if parts.scheme not in ("postgresql", "postgres"):
            raise ConfigurationError(
                _bad_url(f"it begins with {parts.scheme + '://' if parts.scheme else 'no scheme'}")
            )
        host = parts.hostname or parse_qs(parts.query).get("host", ["localhost"])[0]
        self.url = url
        self.database = unquote(parts.path.lstrip("/")) or "postgres"
        self.host = f"{unquote(host)}:{port}" if port else unquote(host)

    def __str__(self) -> str:
        return f"database {self.database!r} at {self.host}"

    @contextmanager
    def plain_errors(self) -> Generator[None]:
        """Turn what the driver raises into errors of ours."""
        try:
            yield
        except asyncpg.PostgresError as error:
            raise self._plain(error) from error
        except asyncpg.ClientConfigurationError as error:
            raise ConfigurationError(_bad_url(str(error))) from error
        except asyncpg.InterfaceError as error:
            if isinstance(error, ValueError):  # a parameter of the wrong type: a bug of ours, not of the connection
                raise
            raise self._unavailable(error) from error
        except OSError as error:  # TimeoutError is one
            raise self._unavailable(error) from error
        except asyncpg.InternalClientError as error:
            # What the driver says of a connection that the server has ended and whose socket it has not seen closed.
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        reason = str(error) or "no answer in time"
        return StoreUnavailable(f"PostgreSQL ({self}) cannot be reached: {reason}. Is it running?")

    def _plain(self, error: asyncpg.PostgresError) -> PerdureError:
        text = str(error)
        if isinstance(error, _BUSY):
            return StoreUnavailable(f"PostgreSQL ({self}) cannot do it now: {text}. It may be tried again.")
        if isinstance(error, _LOST):
            return self._unavailable(error)
        if isinstance(error, _MISCONFIGURED):
            return ConfigurationError(f"PostgreSQL ({self}) refuses the connection: {text}. Check the database URL.")
        if isinstance(error, _NOT_MIGRATED):
            return ConfigurationError(f"The tables of Perdure are missing in {self}. Run `perdure migrate`.")
        if isinstance(error, asyncpg.ForeignKeyViolationError):
            missing = re.search(r"=\((.*)\) is not present", error.detail or "")
            if missing and (error.constraint_name or "").endswith("thread_id_fkey"):
                return ThreadNotFound(missing[1])
            if missing and error.constraint_name == "threads_spawn_message_id_fkey":
                return SpawnPointNotFound(missing[1])
            return StoreError(f"bug: a row refers to one that is not stored: {error.detail}")
        if isinstance(error, asyncpg.UniqueViolationError):
            return ContentConflict(f"This id is taken already; what is stored stays. {error.detail}")
        if error.sqlstate == "PD008":
            # Its text names the detail too.
            return NoSuchCall(error.args[0], error.detail or "")
        return _of_functions(error.sqlstate or "", text) or StoreError(f"PostgreSQL ({self}) refuses: {text}")


def _of_functions(sqlstate: str, text: str) -> PerdureError | None:
    """The errors that the functions in `migrations/` raise."""
    match sqlstate:
        case "PD001":
            return ThreadNotFound(text)
        case "PD002":
            return stale_writer(text)
        case "PD003":
            return StepSealed(f"This step {text}; its late writes are refused.")
        case "PD004":
            return CallNotOpen(text)
        case "PD005":
            return StoreError(f"bug: {text}")
        case "PD006":
            return StepStreams(text)
        case "PD007":
            return TooManyViews(int(text))
        case _:
            return None


def stale_writer(version: object) -> StaleWriter:
    """The error of a batch that is not the next one."""
    return StaleWriter(f"The thread has been written by somebody else and is at version {version}. Load it again.")


def _bad_url(reason: str) -> str:
    return (
        f"The database URL cannot be used: {reason}. It should look like postgresql://user:password@host:5432/database."
    )
