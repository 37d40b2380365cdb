"""The token in a callback URL: it lets whoever holds it speak for one call of one thread, and for nothing else.

It follows from the installation's key and the two ids, so nothing is stored, and any gateway can check it at any time,
months later too. It is part of the path since some servers sign the path alone. It is as good
as a password for its call, so it belongs in no log. What it may be used for ends with the call: a result counts once,
an event only while its subscription goes on.
"""

import base64
import hashlib
import hmac
from typing import Final
from urllib.parse import quote

CALLBACK_KEY: Final = "callbacks"
"""The name of the key in the store."""

_PURPOSE: Final = b"perdure.rap.callback"


def callback_token(key: bytes, thread_id: str, call_id: str) -> str:
    """The token of a call: 43 letters, digits, `-` and `_`."""
    # With its length before each id, no two pairs of ids are the same bytes.
    ids = (id.encode("utf-8", "surrogatepass") for id in (thread_id, call_id))
    message = _PURPOSE + b"".join(len(id).to_bytes(8, "big") + id for id in ids)
    return base64.urlsafe_b64encode(hmac.digest(key, message, hashlib.sha256)).rstrip(b"=").decode("ascii")


def verify(key: bytes, thread_id: str, call_id: str, token: str) -> bool:
    """Whether this is the token of the call. How long it takes says nothing about where a wrong one differs."""
    expected = callback_token(key, thread_id, call_id)
    return hmac.compare_digest(expected.encode("ascii"), token.encode("utf-8", "surrogatepass"))


def callback_url(base: str, thread_id: str, call_id: str, token: str) -> str:
    """Where a server posts everything about a call: `{base}/callbacks/{thread_id}/{call_id}/{token}`, ids quoted.

    A thread's id may hold a slash, and web frameworks unquote a path before they take it apart. So the last two
    pieces of the path are the call and the token, and all between is the thread.
    """
    return f"{base.rstrip('/')}/callbacks/{quote(thread_id, safe='')}/{quote(call_id, safe='')}/{token}"
