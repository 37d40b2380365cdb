"""An agent that echoes, for tests of what is built on top of threads."""

from perdure.testing import Asked, Reply


def echo(asked: Asked) -> Reply:
    """Answer with the user's last words, or hang in mid-answer if they ask for it."""
    if asked.user_text == "hang":
        return Reply("one two three", chunk_chars=4, hang=True)
    return Reply(f"you said {asked.user_text}")
