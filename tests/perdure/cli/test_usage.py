"""The command that tells what was spent, and the status that says it too."""

import json
import uuid

from perdure.messages import Usage
from tests.perdure.cli.desk import Desk

LOST = Usage(requests=1, input_tokens=1_000, output_tokens=20, nano_usd=1_250_000, unpriced=1)
WORDS = "1 model call, 1,000 tokens in, 20 out, $0.0013, 1 call without an exact price"


async def begin(desk: Desk, thread: str, tenant: str) -> None:
    """A thread of a tenant that has spent `LOST`."""
    await desk.client.start(thread, tenant=tenant)
    await desk.client.store.add_usage(thread, 1, 0, 1, LOST)


async def test_what_a_thread_and_its_tree_have_spent(desk: Desk) -> None:
    """A line each, or one of JSON with money in billionths; the status has the thread's too, lost calls included."""
    tenant = f"tenant-{uuid.uuid4()}"
    await begin(desk, desk.thread, tenant)
    assert await desk.does("usage") == f"thread: {WORDS}\ntree: {WORDS}\n"
    (told,) = await desk.lines("usage")
    assert Usage.model_validate(told["thread"]["usage"]) == Usage.model_validate(told["tree"]["usage"]) == LOST
    assert "tenant" not in told
    assert (await desk.does("status")).endswith(f"{WORDS}\n")
    (status,) = await desk.lines("status")
    assert Usage.model_validate(status["usage"]) == LOST


async def test_what_a_tenant_has_spent(desk: Desk) -> None:
    """All its threads together, not those of others. One that has spent nothing is no mistake; an unknown one is."""
    tenant = f"tenant-{uuid.uuid4()}"
    for thread in (desk.thread, f"{desk.thread}-2"):
        await begin(desk, thread, tenant)
    await begin(desk, f"{desk.thread}-3", "another")
    code, output, errors = await desk.perdure("usage", "--tenant", tenant)
    assert (code, errors) == (0, "")
    assert output == (
        f"tenant {tenant}: 2 model calls, 2,000 tokens in, 40 out, $0.0025, 2 calls without an exact price\n"
    )
    code, output, _ = await desk.perdure("usage", "--tenant", tenant, "--json")
    assert Usage.model_validate(json.loads(output)) == LOST + LOST
    await desk.client.start(f"{desk.thread}-4", tenant=f"{tenant}-new")
    output = (await desk.perdure("usage", "--tenant", f"{tenant}-new"))[1]
    assert output == f"tenant {tenant}-new: 0 model calls, 0 tokens in, 0 out\n"
    for json_too in ((), ("--json",)):
        code, output, errors = await desk.perdure("usage", "--tenant", "nobody", *json_too)
        assert (code != 0, output) == (True, "")
        assert "There is no thread of the tenant 'nobody'." in errors


async def test_one_of_a_thread_and_a_tenant_is_asked_for(desk: Desk) -> None:
    """Neither and both are mistakes, and so is a thread that is not there."""
    assert "Give a thread or --tenant" in await desk.fails("usage", "--tenant", "acme")
    assert "Give a thread or --tenant" in (await desk.perdure("usage"))[2]
    assert "There is no thread" in await desk.fails("usage")
