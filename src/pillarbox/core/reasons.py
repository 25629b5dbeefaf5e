"""Reasons: which words of an outage are news, so that a log has a line for each reason and no flood of them."""

import re

MANY = 10
"""An outage that finds so many reasons has been told of."""
_VARIES = re.compile(r"[\w.:-]*\d[\w.:-]*")
"""What is another one each time, and no other reason: addresses, ports, ids, seconds."""


class Reasons:
    """What was told of one outage."""

    def __init__(self) -> None:
        self._told = set[str]()

    def is_news(self, words: str) -> bool:
        """Say whether this reason was not told yet, and take it for told.

        >>> reasons = Reasons()
        >>> [reasons.is_news(words) for words in ("10.0.0.1:6379 refuses", "10.0.0.2:6379 refuses", "no password")]
        [True, False, True]
        """
        kind = _VARIES.sub("#", words)
        if kind in self._told or len(self._told) == MANY:
            return False
        self._told.add(kind)
        return True

    def forget(self) -> None:
        """Begin anew: the outage is over."""
        self._told.clear()
