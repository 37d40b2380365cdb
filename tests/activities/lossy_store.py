"""A store whose replies get lost."""

from collections import Counter

from perdure.errors import StoreUnavailable
from perdure.messages import ToolResultPart
from perdure.records import OpenCall
from stores.memory import MemoryStore


class LossyStore(MemoryStore):
    """Loses replies: what is written stays written.

    Attributes:
        lost: how often the next calls of a name are not answered.
    """

    def __init__(self, **lost: int) -> None:
        super().__init__()
        self.lost = Counter(lost)

    async def start_call(self, thread_id: str, call_id: str, owner: str | None = None) -> OpenCall:
        """See the class."""
        call = await super().start_call(thread_id, call_id, owner)
        self._lose("start")
        return call

    async def put_blob(self, thread_id: str, data: bytes, media_type: str = "text/plain") -> str:
        """See the class."""
        blob = await super().put_blob(thread_id, data, media_type)
        self._lose("blob")
        return blob

    async def stage_result(self, thread_id: str, result: ToolResultPart) -> ToolResultPart:
        """See the class."""
        staged = await super().stage_result(thread_id, result)
        self._lose("stage")
        return staged

    def _lose(self, name: str) -> None:
        if self.lost[name] > 0:
            self.lost[name] -= 1
            raise StoreUnavailable("The reply was lost.")
