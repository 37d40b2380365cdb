"""A session: a conversation in memory, with what providers keep of it. For stateless use, and for tests.

Threads do not need it: theirs is in the store. A session is for programs that keep a conversation themselves, in a
request, a cookie or a file (`perdure.session_store`). Messages are known by their ids, never by their place.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self, TypeVar, cast

from pydantic import BaseModel, ValidationError

from perdure.codec import dumps, is_json, loads
from perdure.errors import ContentConflict, UsageError
from perdure.messages import Message, Role
from perdure.records import ProviderState

VERSION: Final = 1
"""Of what `to_dict` returns."""

_TYPE, _VALUE = "$type", "$value"
_types: dict[str, type[BaseModel]] = {}

Model = TypeVar("Model", bound=type[BaseModel])


def state_type(name: str) -> Callable[[Model], Model]:
    """Let objects of a pydantic model be values in provider state; `name` is what they are stored under for ever."""

    def register(model: Model) -> Model:
        if _types.setdefault(name, model) is not model:
            raise UsageError(f"Two types of provider state are named {name!r}; rename one.")
        return model

    return register


class Session:
    """A conversation.

    Nothing here awaits in the middle, so each method is atomic among the tasks of an event loop. Messages that come out
    are copies.

    Attributes:
        id: what it is saved under, within its tenant.
        tenant: whose it is.
        service_id: where the model's own server goes on, if that keeps the conversation.
        provider_states: what context providers keep of it, by their names.
    """

    def __init__(self, id: str, *, tenant: str = "default", service_id: str | None = None) -> None:
        self.id = id
        self.tenant = tenant
        self.service_id = service_id
        self.provider_states: dict[str, ProviderState] = {}
        self._messages: dict[str, Message] = {}
        self._seq = 0

    async def get_messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        return tuple(message.model_copy(deep=True) for message in self._messages.values())

    def get_message_count(self, role: Role | None = None) -> int:
        """How many messages there are now, in all or of a role; counted, not remembered."""
        return sum(role in (None, message.role) for message in self._messages.values())

    async def add_messages_batch(self, messages: Iterable[Message]) -> int:
        """Add messages at the end, all or none; returns how many were new. Safe to repeat.

        A message whose id is there with the same content is left out.

        Raises:
            ContentConflict: if an id is there, or comes twice, with other content. Nothing is added then.
        """
        fresh: dict[str, Message] = {}
        for given in messages:
            message = given.model_copy(update={"thread_id": self.id, "seq": 0}, deep=True)
            known = fresh.get(message.id) or self._messages.get(message.id)
            if known is None:
                fresh[message.id] = message
            elif known.with_(seq=0) != message:
                raise ContentConflict(f"The message {message.id!r} is in the session with other content.")
        for message in fresh.values():
            self._seq += 1
            self._messages[message.id] = message.with_(seq=self._seq)
        return len(fresh)

    async def clear(self) -> None:
        """Remove all messages. The next one goes on with the sequence, so no number stands for two."""
        self._messages.clear()

    def set_state(self, provider: str, values: dict[str, Any], schema_version: int = 1) -> None:
        """Keep a provider's state, under the next version."""
        before = self.provider_states.get(provider, ProviderState())
        self.provider_states[provider] = ProviderState(
            values=values, version=before.version + 1, schema_version=schema_version
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values, shared with nobody.

        Raises:
            UsageError: if a provider keeps something that is neither JSON nor of a registered type (`state_type`).
        """
        states = {name: self._encoded(name, state) for name, state in self.provider_states.items()}
        plain: dict[str, Any] = loads(
            dumps(
                {
                    "version": VERSION,
                    "id": self.id,
                    "tenant": self.tenant,
                    "service_id": self.service_id,
                    "seq": self._seq,
                    "messages": list(self._messages.values()),
                    "provider_states": states,
                }
            )
        )
        return plain

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The session that `to_dict` was called on, by this release or an earlier one.

        Raises:
            UnknownVersion: if a later release has written it.
            NoSession: if it is none.
            UsageError: if it holds provider state of a type that is not registered, or that has changed.
        """
        check_version(values)
        try:
            session = cls(str(values["id"]), tenant=str(values["tenant"]), service_id=values["service_id"])
            read = [Message.model_validate(value) for value in cast("Sequence[object]", values["messages"])]
            session._messages = {message.id: message for message in read}
            session._seq = int(values["seq"])
            states = {name: ProviderState.model_validate(state) for name, state in values["provider_states"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise NoSession(f"This is no session: {type(error).__name__}: {error}.") from error
        session.provider_states = {name: state.with_(values=_decoded(state.values)) for name, state in states.items()}
        return session

    def _encoded(self, provider: str, state: ProviderState) -> ProviderState:
        try:
            return state.with_(values={key: _plain(value) for key, value in state.values.items()})
        except TypeError as error:
            raise UsageError(
                f"Session {self.id!r}, state of the provider {provider!r}: {error}. Keep plain JSON, or register the "
                "type with `perdure.session.state_type`."
            ) from error


class UnknownVersion(UsageError):
    """A session was written by a release that this one does not understand."""

    def __init__(self, version: object) -> None:
        super().__init__(
            f"This session has the version {version!r}, and this release reads {VERSION}. Use the release that has "
            "written it, or a later one."
        )


class NoSession(UsageError):
    """What was read is no session: something is missing, or broken."""


def check_version(values: dict[str, Any]) -> None:
    """Raises UnknownVersion if this release does not understand what `Session.to_dict` returned."""
    if (version := values.get("version")) != VERSION:
        raise UnknownVersion(version)


def _plain(value: object) -> object:
    match value:
        case BaseModel():
            name = next((name for name, model in _types.items() if model is type(value)), None)
            if name is None:
                raise TypeError(f"{type(value).__name__} is not registered")
            return {_TYPE: name, _VALUE: value.model_dump(mode="json")}
        case dict():
            items = cast("dict[object, object]", value)
            if _TYPE in items:
                raise TypeError(f"the key {_TYPE!r} is reserved")
            return {_key(key): _plain(item) for key, item in items.items()}
        case list():
            return [_plain(item) for item in cast("list[object]", value)]
        case _ if is_json(value):
            return value
        case _:
            raise TypeError(f"{type(value).__name__} is not JSON")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the key {key!r} is no text")
    return key


def _decoded(value: Any) -> Any:
    match value:
        case {"$type": str(name), "$value": content}:
            if name not in _types:
                raise UsageError(f"This session holds provider state of the type {name!r}, which is not registered.")
            try:
                return _types[name].model_validate(content)
            except ValidationError as error:
                raise UsageError(f"This session holds a {name!r} that this release cannot read: {error}.") from error
        case dict():
            return {key: _decoded(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_decoded(item) for item in cast("list[object]", value)]
        case _:
            return value
