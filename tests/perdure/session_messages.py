"""Messages for tests of sessions."""

from perdure.messages import Message, Role, TextPart


def message(id: str, text: str = "words", role: Role = "user") -> Message:
    """A message with one text."""
    return Message(id=id, thread_id="elsewhere", role=role, parts=(TextPart(text=text),), metadata={"k": [1]})
