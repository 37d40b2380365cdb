"""What a store refuses a late result with: a result of a call that nobody waited for any more."""

from perdure.batch import Refused
from perdure.errors import UsageError


class NoSuchCall(UsageError):
    """Whoever gave a late result has named a message that is not the one of its call."""

    def __init__(self, message_id: str, call_id: str) -> None:
        super().__init__(f"There is no message {message_id!r} with a call {call_id!r} in this thread.")
        self.refused = Refused(input_id=call_id, message_id=message_id, detail=str(self))
