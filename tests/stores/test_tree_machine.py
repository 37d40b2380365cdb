"""Random branches through a store and through a bare tree: after every batch they show the same."""

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import Literal

import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from perdure.batch import AppendMessage, ImportedMessage, ImportMessages, Operation
from perdure.errors import UsageError
from perdure.ids import imported_message_id
from perdure.inputs import ROOT
from perdure.messages import Message, Role
from perdure.ports import Store
from perdure.records import ThreadRecord
from perdure.tree import MessageTree
from perdure.tree_export import TreeExport, TreeItem
from tests.perdure.tree_operations import PHASES
from tests.properties import settings
from tests.stores.builders import write
from tests.stores.trees import branches, delete, path, reset, switch

UNKNOWN = "nobody"
Kind = Literal["head", "under", "beside", "answering", "root", "switch", "delete", "move", "reset", "import"]
_threads = count()


@dataclass(frozen=True)
class Step:
    """One operation; the numbers pick messages of those that are there when it is its turn."""

    kind: Kind
    picks: tuple[int, int, int]
    answers: bool


_steps = st.builds(
    Step,
    st.sampled_from(
        [
            "head",
            "head",
            "under",
            "beside",
            "answering",
            "root",
            "switch",
            "switch",
            "delete",
            "move",
            "import",
            "reset",
        ]
    ),
    st.tuples(*[st.integers(0, 40)] * 3),
    st.booleans(),
)
_batches = st.lists(st.lists(_steps, min_size=1, max_size=4), min_size=1, max_size=12)


class Twin:
    """A bare tree of a thread, to which is done what the store is asked for."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.tree: MessageTree[Role] = MessageTree()
        self.asked: Operation | None = None
        self._names = count()
        self._turns = count(1)

    def take(self, step: Step) -> Operation:
        """Do it; returns the operation that asks a store for it. Raises UsageError as `MessageTree` does."""
        operation, do = self._asked(step)
        self.asked = operation
        do()
        return operation

    def _asked(self, step: Step) -> tuple[Operation, Callable[[], object]]:
        first, second, third = step.picks
        name, other = self._pick(first), self._pick(second)
        input_id = f"i{next(self._names)}"
        match step.kind:
            case "switch":
                return switch(name, input_id), lambda: self.tree.switch(name)
            case "delete":
                return delete(name, None, input_id), lambda: self.tree.delete(name)
            case "move":
                to = None if third % 4 == 0 else other
                return delete(name, to or ROOT, input_id), lambda: self.tree.delete(name, to)
            case "reset":
                below = None if third % 8 == 0 else name
                return reset(below, input_id), lambda: self.tree.reset(below)
            case "import":
                return self._import(step, input_id)
            case _:
                return self._append(step, name, input_id)

    def _pick(self, number: int) -> str:
        names = list(self.tree)
        return names[number % len(names)] if names and number % 20 != 19 else UNKNOWN

    def _append(self, step: Step, name: str, input_id: str) -> tuple[Operation, Callable[[], object]]:
        role: Role = "assistant" if step.answers else "user"
        turn = next(self._turns) if step.answers else 0
        message = Message(id=f"{self.thread_id}-{input_id}", thread_id=self.thread_id, role=role, turn=turn)
        operation = AppendMessage(message=message, digest="d", input_id=input_id)

        def do() -> None:
            parent = self._parent(step.kind, name)
            if step.kind == "beside" and self.tree.get(name).content != role:
                raise UsageError("only words are edited")
            self.tree.add(parent, message.id, role)
            self.tree.switch(message.id)

        match step.kind:
            case "under":
                return operation.with_(message=message.with_(parent_id=name)), do
            case "beside":
                return operation.with_(beside=name), do
            case "answering":
                return operation.with_(answering=name), do
            case "root":
                return operation.with_(at_root=True), do
            case _:
                return operation, do

    def _parent(self, kind: Kind, name: str) -> str | None:
        match kind:
            case "under":
                return self.tree.get(name).id
            case "beside":
                return self.tree.get(name).parent_id
            case "answering":
                found = self.tree.get(name)
                return found.parent_id if found.content == "assistant" else found.id
            case "root":
                return None
            case _:
                return self.tree.head_id

    def _import(self, step: Step, input_id: str) -> tuple[Operation, Callable[[], object]]:
        first, second, third = step.picks
        listed = {
            f"g{first % 5}": f"g{second % 5}",
            f"g{third % 5}": self._pick(first),
            self._pick(second): f"g{first % 5}",
        }
        listed.pop(UNKNOWN, None)
        items = {
            name: None if parent == name or (parent.startswith("g") and parent not in listed) else parent
            for name, parent in listed.items()
        }
        head = None if third % 3 else f"g{first % 5}"
        roles: dict[str, Role] = {
            name: self.tree.get(own).content if own in self.tree else "user"
            for name, own in ((name, self._own(name)) for name in items)
        }
        messages = tuple(
            ImportedMessage(message=Message(id=name, thread_id="", role=roles[name], parent_id=parent))
            for name, parent in items.items()
        )
        operation = ImportMessages(blob="0" * 64, input_id=input_id, digest="d", messages=messages, head_id=head)

        def do() -> None:
            messages: tuple[TreeItem[Role], ...] = tuple(
                TreeItem(self._own(name), parent and self._own(parent), roles[name]) for name, parent in items.items()
            )
            export: TreeExport[Role] = TreeExport(messages, head and self._own(head))
            self.tree.import_messages(export)

        return operation, do

    def _own(self, given: str) -> str:
        return given if given in self.tree else imported_message_id(self.thread_id, given)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], phases=PHASES)
@given(batches=_batches)
async def test_a_store_shows_what_a_bare_tree_shows(store: Store, batches: list[list[Step]]) -> None:
    """Path, branches, order and head, whatever was refused in between; and each batch again does nothing."""
    thread_id = f"thread-{next(_threads)}"
    await store.create_thread(ThreadRecord(thread_id=thread_id, agent="demo"))
    twin, version = Twin(thread_id), 0
    for steps in batches:
        tried = deepcopy(twin.tree)
        operations: list[Operation] = []
        why: UsageError | None = None
        for step in steps:
            try:
                operations.append(twin.take(step))
            except UsageError as error:
                assert twin.asked is not None
                operations.append(twin.asked)
                why = error
                break
        report = await write(store, version + 1, *operations, thread_id=thread_id)
        if why is not None:
            twin.tree = tried
            assert [found.detail is not None for found in report.refused] == [True], (operations, why)
            event("refused")
        else:
            assert report.refused == (), operations
            version += 1
            again = await write(store, version, *operations, thread_id=thread_id)
            assert again == report
        await _compare(store, twin, version)
    event(f"at least {len(twin.tree) // 5 * 5} messages")


async def _compare(store: Store, twin: Twin, version: int) -> None:
    tree, thread_id = twin.tree, twin.thread_id
    found = await branches(store, thread_id)
    assert found.head == tree.head_id
    assert found.children == {name or "": list(tree.children(name)) for name in (None, *tree) if tree.children(name)}
    assert found.opened == {name or "": tree.remembered(name) for name in (None, *tree) if tree.children(name)}
    assert await path(store, thread_id) == list(tree.path())
    thread = await store.get_thread(thread_id)
    assert (thread.head_id, thread.version) == (tree.head_id, version)
    stored = (await store.load_tree(thread_id, parts=False)).messages
    assert {one.message.id: one.message.parent_id for one in stored} == {
        name: tree.get(name).parent_id for name in tree
    }
    assert max((one.place for one in stored), default=0) <= thread.seq


@pytest.mark.parametrize("seed", range(2))
def test_the_steps_reach_all_kinds(seed: int) -> None:
    """The comparison compares something: of a few hundred random steps most are carried out, of each kind some."""
    pick = random.Random(seed)
    twin, done = Twin("t"), set[str]()
    kinds: list[Kind] = ["head", "under", "beside", "answering", "root", "switch", "delete", "move", "import", "reset"]
    refused = 0
    for _ in range(300):
        step = Step(
            pick.choice(kinds), (pick.randint(0, 40), pick.randint(0, 40), pick.randint(0, 40)), pick.random() < 0.5
        )
        try:
            twin.take(step)
            done.add(step.kind)
        except UsageError:
            refused += 1
    assert done == set(kinds)
    assert 0 < refused < 100
