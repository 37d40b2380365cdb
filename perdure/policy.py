"""Every timeout and retry policy, each with its reason, and the numbers that bound a thread.

Sources of the figures: measurements on Temporal server 1.32 (see docs/design.md, "Numbers").
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio.common import RetryPolicy

REVISION: Final = 7
"""By which rules a thread's workflow goes. A run keeps those that it was loaded under, so that its history replays: a
change that would issue other commands for the same history gets the next number.

2: a turn that waits for people says so in its status; calls that run go on when the store has refused a batch.
3: an answer counts as something that has happened: a thread that has slept for days rests an hour after it.
4: a turn that waits for a compaction asks now and then whether that still runs, and waits for no other one.
5: a turn that rests on another branch goes on when nothing is lacking, its questions expire, and a result finds its
call on whatever branch.
6: what comes before the first line of a run has run is held to the bounds of what waits, as all else.
7: a turn that is stopped while it waits for a compaction keeps no later one from beginning.
"""

WORKFLOW_TASK_TIMEOUT: Final = timedelta(seconds=3)
"""A local activity that is lost with its worker runs again only after this; the default is 10 s."""

STICKY_TIMEOUT: Final = timedelta(seconds=2)
"""Every thread cached on a dead worker waits this long once; the default is 10 s."""

HEARTBEAT_TIMEOUT: Final = timedelta(seconds=5)
"""A dead worker is noticed after this; live ones beat ten times as often."""

HEARTBEAT_INTERVAL: Final = timedelta(seconds=0.5)
"""How often running activities beat, whatever they wait for."""

HEARTBEAT_THROTTLE: Final = timedelta(seconds=0.2)
"""How often beats really go out. A cancellation reaches an activity with the answer to a beat, so this is the stop
latency; left to itself the SDK waits 80 % of the heartbeat timeout."""

GRACEFUL_SHUTDOWN: Final = timedelta(seconds=10)
"""How long a draining worker gives its activities to hand themselves over."""


@dataclass(frozen=True)
class Policy:
    """How one kind of activity is run. `start_to_close` of None is given per call."""

    start_to_close: timedelta | None
    retry: RetryPolicy
    heartbeat: timedelta | None = None


_PATIENT = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30))

STORED: Final = Policy(timedelta(minutes=2), _PATIENT)
"""`load` and `sync` as regular activities, which is what they become when the local try fails. Retried without end: a
database that is away comes back, and giving up would lose the thread. A regular activity's retries cost no history,
so an outage may last for days; two minutes cover the import of tens of thousands of messages on a slow disk."""

STORED_LOCALLY: Final = Policy(
    timedelta(seconds=10), RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_attempts=3)
)
"""`load` and `sync` as local activities: half the latency and events of regular ones, for as long as the store answers.
A local retry keeps its workflow task open, so there are only a few within a second."""

COMPLETE_ATTEMPTS: Final = 12

COMPLETE: Final = Policy(
    None,
    RetryPolicy(
        initial_interval=timedelta(seconds=0.5),
        maximum_interval=timedelta(seconds=60),
        maximum_attempts=COMPLETE_ATTEMPTS,
    ),
    HEARTBEAT_TIMEOUT,
)
"""One model call. Twelve attempts span about five minutes of a provider's trouble; then the turn settles with the
error and the thread goes on. Its time limit is the agent's."""

DISPATCH: Final = Policy(
    None,
    RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30)),
    HEARTBEAT_TIMEOUT,
)
"""One tool call. A tool's own failure is a result and not retried here; what is retried is the way to it (a dead
worker, a database that is away), so there is no limit but the tool's own time."""

SPAWN: Final = Policy(timedelta(seconds=30), _PATIENT)
"""Making a child thread, stopping children: calls of the store and signals, both idempotent, so retried without end."""

MAIL_PATIENCE: Final = timedelta(seconds=20)
"""How long one try to signal another thread goes on; the activity that sends it is tried again."""

NOTIFY: Final = Policy(timedelta(seconds=15), RetryPolicy(maximum_attempts=1))
"""Telling tool servers that nobody waits: best effort and once, as the protocol says."""

CHOOSE: Final = Policy(
    timedelta(seconds=30),
    RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=5), maximum_attempts=5),
)
"""Handing a person's choice to a tool server: that person waits, so it is given up within half a minute."""

AFTER_TURN: Final = Policy(
    timedelta(minutes=5),
    RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(minutes=1),
        maximum_attempts=10,
    ),
    HEARTBEAT_TIMEOUT,
)
"""What context providers do when a turn is over. It must not be lost to a passing fault of theirs, and must not keep a
thread from resting for ever: ten tries span about four minutes and the time that they take, and then the thread's
problems name what failed."""

HOOKS_PATIENCE: Final = timedelta(seconds=5)
"""How long the next turn waits for the hooks after the last one, so that it is told of what they kept."""

COMPACT: Final = Policy(
    timedelta(minutes=15),
    RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(minutes=1),
        maximum_attempts=6,
    ),
    HEARTBEAT_TIMEOUT,
)
"""A compaction: a few model calls where the conversation does not fit into one. Nobody loses anything if it fails, and
the next long request begins another one, so six tries within about half a minute are enough for a passing fault."""

COMPACTION_PATIENCE: Final = timedelta(minutes=15)
"""How long a turn whose request was too long waits for the compaction that is to make it shorter."""

COMPACTION_ASKED: Final = timedelta(seconds=10)
"""When it first asks whether that still runs; each wait after it is twice as long, so six questions fill the time."""

REMOTE: Final = RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30))
REMOTE_ONCE: Final = RetryPolicy(maximum_attempts=1)
"""A tool that is an activity elsewhere: tried again only if it is declared `retry_safe`."""

REMOTE_RESULT_BYTES: Final = 256 * 1024
"""What such a tool may return; it travels through Temporal, which refuses payloads above 2 MB."""

CONTINUE_AS_NEW_EVENTS: Final = 1_000
CONTINUE_AS_NEW_BYTES: Final = 500_000
"""A wake-up of an evicted thread replays the run: 0.3 ms an event, so 0.3 s at this size."""

IDLE_BEFORE_HIBERNATION: Final = timedelta(hours=1)
"""An idle thread completes its workflow after this and costs nothing; the next input starts it again."""

REMEMBERED_INPUTS: Final = 200
"""Accepted ids that a run keeps in memory; older ones are found by the store."""

REMEMBERED_DECISIONS: Final = 100
"""Decisions for calls to come that hold in a thread: the newest. What older ones were for, people are asked about."""

WAITING_EVENT_BYTES: Final = 500_000
"""Events that may wait in one thread, as JSON: while a call is open they go from run to run in one payload. Above that
more are refused, since a run that cannot hand them on would fill up and take no result either."""

WAITING_INPUTS: Final = 10_000
"""Inputs that may wait in one thread; a run takes no more signals than this anyway."""


class ErrorType:
    """Type strings of the failures that cross Temporal."""

    MODEL = "ModelError"
    STORE = "StoreUnavailable"
    STALE_WRITER = "StaleWriter"
    SEALED = "StepSealed"
    USAGE = "UsageError"
    CLOSED = "ThreadClosed"
    BUSY = "Busy"
    TOO_LONG = "ContextTooLong"
    CONTEXT = "ContextProviderFailed"
    CONFIGURATION = "ConfigurationError"
    WORKER_SHUTDOWN = "WorkerShutdown"
    BUG = "Bug"
