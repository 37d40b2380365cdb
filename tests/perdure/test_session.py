"""Sessions: a conversation in memory, saved and restored."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.errors import ContentConflict, UsageError
from perdure.records import ProviderState
from perdure.session import NoSession, Session, UnknownVersion, state_type
from perdure.session_store import MemorySessionStore
from tests.perdure.session_messages import message


@state_type("tests.Place")
class Place(BaseModel):
    """A type of provider state."""

    name: str


class Unknown(BaseModel):
    """A type that is not registered."""

    name: str = ""


async def test_a_session_is_restored_with_everything() -> None:
    """Messages with their numbers, provider state with its versions, registered types, where the service goes on."""
    session = Session("s", tenant="x", service_id="resp_1")
    await session.add_messages_batch([message("1"), message("2", role="assistant")])
    session.set_state("memory", {"place": Place(name="Rome"), "list": [Place(name="Bern")]}, schema_version=3)
    session.set_state("memory", session.provider_states["memory"].values, schema_version=3)
    plain = json.loads(json.dumps(session.to_dict()))
    restored = Session.from_dict(plain)
    assert restored.to_dict() == session.to_dict() == plain
    assert await restored.get_messages() == await session.get_messages()
    assert (restored.id, restored.tenant, restored.service_id) == ("s", "x", "resp_1")
    state = restored.provider_states["memory"]
    assert state == ProviderState(
        values={"place": Place(name="Rome"), "list": [Place(name="Bern")]}, version=2, schema_version=3
    )


async def test_the_numbers_of_messages_go_on_after_a_restore() -> None:
    """As if nothing had been."""
    session = Session("s")
    await session.add_messages_batch([message("1")])
    restored = Session.from_dict(session.to_dict())
    await restored.add_messages_batch([message("2")])
    assert [one.seq for one in await restored.get_messages()] == [1, 2]


async def test_a_batch_with_an_id_that_comes_twice_is_judged_by_content() -> None:
    """In the batch itself too: the same is one message, other content refuses all of it."""
    session = Session("s")
    assert await session.add_messages_batch([message("1"), message("1")]) == 1
    with pytest.raises(ContentConflict, match="'2'"):
        await session.add_messages_batch([message("2"), message("3"), message("2", "other")])
    assert session.get_message_count() == 1
    stored = (await session.get_messages())[0]
    assert await session.add_messages_batch([stored]) == 0, "what came out of the session is the same message"


NOTHING: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (NOTHING, UnknownVersion),
        ({"version": 2}, UnknownVersion),
        ({"version": 1}, NoSession),
        ({"version": 1, "id": "s", "tenant": "d", "service_id": None, "seq": 1, "messages": [NOTHING]}, NoSession),
        ({"version": 1, "id": "s", "tenant": "d", "service_id": None, "seq": 1, "messages": 3}, NoSession),
    ],
)
def test_what_is_no_session_is_refused(values: dict[str, Any], error: type[UsageError]) -> None:
    """A later release's is told from a broken one."""
    with pytest.raises(error):
        Session.from_dict(values)


async def test_state_of_a_type_that_is_gone_or_has_changed_is_refused() -> None:
    """It is not handed to a provider as something else."""
    session = Session("s")
    session.set_state("memory", {"place": Place(name="Rome")})
    plain = session.to_dict()
    plain["provider_states"]["memory"]["values"]["place"]["$type"] = "tests.Gone"
    with pytest.raises(UsageError, match=r"'tests\.Gone', which is not registered"):
        Session.from_dict(plain)
    plain = session.to_dict()
    plain["provider_states"]["memory"]["values"]["place"]["$value"] = {}
    with pytest.raises(UsageError, match="cannot read"):
        Session.from_dict(plain)


@pytest.mark.parametrize("value", [Unknown(), object(), {1: "x"}, float("nan"), [{"deep": Unknown()}], {"$type": "x"}])
def test_state_that_could_not_be_restored_is_not_serialised(value: object) -> None:
    """The sentence names session, provider and type."""
    session = Session("s")
    session.set_state("memory", {"value": value})
    with pytest.raises(UsageError, match="Session 's', state of the provider 'memory'"):
        session.to_dict()


def test_a_name_of_a_type_is_given_once() -> None:
    """What is stored under it must mean one thing; the same type may be registered again."""
    state_type("tests.Place")(Place)
    with pytest.raises(UsageError, match=r"'tests\.Place'"):
        state_type("tests.Place")(Unknown)


async def test_sessions_are_kept_apart_and_as_they_were_saved() -> None:
    """By tenant and id; a change of the object after the save changes nothing, a deletion forgets one of them."""
    store = MemorySessionStore()
    session = Session("s", tenant="x")
    await session.add_messages_batch([message("1")])
    await store.save(session)
    await session.add_messages_batch([message("2")])
    saved = await store.load("s", "x")
    assert saved is not None
    assert saved.get_message_count() == 1
    assert await store.load("s") is None
    await asyncio.gather(store.delete("s"), store.delete("s"))
    assert await store.load("s", "x") is not None
    await store.delete("s", "x")
    assert await store.load("s", "x") is None
