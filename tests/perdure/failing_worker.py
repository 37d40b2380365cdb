"""A worker whose activities fail, as a process: what it writes is what is logged of them."""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.store_call import store_call
from perdure.cli.ending import leave
from perdure.connection import connect_temporal
from perdure.errors import StoreError, StoreUnavailable
from perdure.logs import configure_logs
from perdure.policy import ErrorType
from perdure.settings import Settings


@activity.defn
async def foreseen() -> None:
    """Fail as a model call does whose provider is away."""
    try:
        raise ConnectionError("reset")
    except ConnectionError as error:
        raise ApplicationError("m: the provider is unavailable.", type=ErrorType.MODEL) from error


@activity.defn
async def store_is_away() -> None:
    """Fail as every activity does without its store."""

    async def read() -> None:
        raise StoreUnavailable("PostgreSQL cannot be reached.")

    await store_call(read())


@activity.defn
async def bug() -> None:
    """Fail as an activity does that knows of a bug."""

    async def write() -> None:
        raise StoreError("bug: a part too many")

    await store_call(write())


@activity.defn
async def unforeseen() -> None:
    """Fail as nobody has thought of."""
    raise LookupError("nobody has thought of this")


ACTIVITIES = (foreseen, store_is_away, bug, unforeseen)


@workflow.defn(sandboxed=False)
class Failing:
    """Runs one activity after the other, the first one locally too."""

    @workflow.run
    async def run(self) -> None:
        """Take every failure for what it is."""
        limit, once = timedelta(seconds=30), RetryPolicy(maximum_attempts=1)
        for one in ACTIVITIES:
            try:
                await workflow.execute_activity(one, start_to_close_timeout=limit, retry_policy=once)
            except ActivityError:
                continue
        try:
            await workflow.execute_local_activity(foreseen, start_to_close_timeout=limit, retry_policy=once)
        except (ActivityError, ApplicationError):
            return


async def main(address: str, task_queue: str, log_format: str) -> None:
    """Let each fail once."""
    configure_logs(Settings.model_validate({"log_format": log_format, "log_level": "warning"}))
    client = await connect_temporal({"target_host": address})
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=[Failing],
        activities=ACTIVITIES,
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await client.execute_workflow(Failing.run, id=task_queue, task_queue=task_queue)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
    leave()
