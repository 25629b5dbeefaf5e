"""Signatures as Standard Webhooks has them: HMAC-SHA256 over id, time and body, one for each active key. Pure.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hmac
from collections.abc import Iterable

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""Bytes of a key, as the specification asks."""


def read_key(secret: str) -> bytes:
    """Read a key written as `whsec_` and base64. Raises ValueError, which never repeats the secret."""
    encoded = secret.removeprefix(PREFIX)
    if encoded == secret:
        raise ValueError(f"a secret begins with {PREFIX}")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"what follows {PREFIX} must be base64") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise ValueError(f"a key has {SHORTEST} to {LONGEST} bytes, and this one has {len(key)}")
    return key


def sign(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> str:
    """Make the header webhook-signature: a receiver is content if one of the signatures is by a key that it knows."""
    content = b"%b.%d.%b" % (id.encode(), timestamp, body)
    return " ".join(f"v1,{base64.b64encode(hmac.digest(key, content, 'sha256')).decode()}" for key in keys)
