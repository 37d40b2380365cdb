"""Logging: constant messages with fields, through structlog; records of the Temporal SDK take the same way.

Nothing secret is ever a field, and neither is a transcript: ids, counts and clipped previews are. A failure that an
activity tells in a sentence is one line with that; what nobody has foreseen has its traceback.
"""

import logging
import sys
from typing import TYPE_CHECKING, Final

import structlog
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from perdure.policy import ErrorType
from perdure.settings import Settings

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_CORE: Final = "temporalio.core"
_HTTP_CLIENTS: Final = ("httpx", "httpx2")
"""They write the address of every request, and those of tool servers may hold secrets. What failed is told by us."""


def configure_logs(settings: Settings) -> None:
    """Send all records of this process to stderr, in the format of the settings. Safe to repeat."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _flatten_temporal,
        _tell_in_a_line,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    for name in _HTTP_CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)
    # The SDK would write ids into the message; as fields they can be searched, and the message stays constant.
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False


def temporal_runtime() -> Runtime:
    """A runtime of the Temporal SDK whose own records go the same way. One for each process."""
    return Runtime(
        telemetry=TelemetryConfig(
            logging=LoggingConfig(
                filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
                forwarding=LogForwardingConfig(logger=logging.getLogger(_CORE)),
            )
        )
    )


def _renderers(settings: Settings) -> list["Processor"]:
    # Structlog's own choice shows the variables of every frame: words of users, and a second of work for each failure.
    if settings.log_format == "json":
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        return [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]


def _flatten_temporal(_: "WrappedLogger", __: str, event: "EventDict") -> "EventDict":
    """Lift what the SDK says about an activity or workflow to the fields that one looks for."""
    for source in ("temporal_activity", "temporal_workflow"):
        details: dict[str, object] = event.pop(source, {})
        for name in ("workflow_id", "run_id", "activity_type", "attempt"):
            if name in details:
                event.setdefault(name, details[name])
    for internal in ("temporal_log", "__temporal_error_identifier"):
        event.pop(internal, None)
    return event


def _tell_in_a_line(_: "WrappedLogger", __: str, event: "EventDict") -> "EventDict":
    """Take the traceback from a failure that an activity has foreseen, and put its sentence there instead.

    While a provider or the store is away there is one with every try, always from the same place. The SDK logs a
    failure with whatever was raised; bugs are failures of ours too, and keep their traceback.
    """
    if event.get("logger") != activity.logger.name or not event.get("exc_info"):
        return event
    _, error, _ = event["exc_info"]
    if isinstance(error, ApplicationError) and error.type != ErrorType.BUG:
        del event["exc_info"]
        event.update(failure=error.type, reason=error.message)
    return event
