"""Secrets in texts: those of URLs, and what stands as `password=…` beside them.

Pure; whoever keeps an error, prints or logs asks here.
"""

import re

HIDDEN = "***"
_SECRET = "pass|pwd|secret|token|key|sig|auth|cred|jaas|pem|sasl|%"  # percent-encoded, it may be any of them
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_FILE = re.compile(r"sqlite(\+\w+)?:///[^:?]*", re.IGNORECASE)
# A database's user without a password is no secret, and the commands that we name must run.
_LOGIN = re.compile(
    r"(postgres(ql)?|mysql|mariadb)(\+\w+)?://[a-z_][a-z0-9_]{0,30}@[^@:]*(:\d+)?(/[^@:]*)?", re.IGNORECASE
)
# Up to the last @, because a password may hold anything; only a user's name before a colon is shown.
_PASSWORD = re.compile(r"""(?s)^([^/@:\s'"]*:(?!@))?.*@""")
# A value ends where the next option begins, or nowhere.
_SECRET_OPTION = re.compile(
    rf"""(?is)(?<![^=?&;\#\s,'"])([^=?&;\#\s,'"]*(?:{_SECRET})[^=?&;\#,'"]*(?:=|["']\s*[=:])).*?(?=[&;][\w.%-]+=|\Z)"""
)
# A user and a password without the @ and the host that should follow; digits alone are a host's port.
_NO_HOST = re.compile(r"""^([^\s/:@?#'"\[]+:)(?!\d*(?:[\s/?#,;)'"]|\Z))[^\s/'"]+""")
# As people write it in YAML and in headers; keys are left alone here, they stand in many a harmless sentence.
_SPOKEN = re.compile(r"(?i)\b([\w.-]*(?:password|passwd|pwd|secret|token|api[_-]?key):\s+|bearer\s+)[^\s,;]+")
# The path of a webhook's endpoint is often what lets you in.
_ENDPOINT = re.compile(r"(?i)^(https?://[^/?#\s]*/)[^?#\s]+")
_WORD = re.compile(r"\S+")
LONGEST_URL = 2000
"""What is longer is hidden whole: taking it apart would take too long."""
# What a foreign error says beside URLs: a name that ends as a secret's does, and its value, quoted or not.
_NAMED = re.compile(
    r"""(?i)((?:passphrase|passw(?:or)?d|pwd|secret|token|api[_-]?key|access[_-]?key|authorization)["')]?\s?"""
    r"""(?:=|:(?!//))\s?(?:(?:bearer|basic|token)\s+)?)("[^"]*"|'[^']*'|\([^)]*\)|\S+)"""
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]+")
# A user, a password and a host, without the scheme before them: drivers say so, people and decorators do not.
_BARE_LOGIN = re.compile(r"""(?<![^\s'"(=])([^\s:/@'"(=]+:)[^\s/@]\S{0,200}@(?=[\w\[])""")
_JWT = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?")


def without_secrets(text: str) -> str:
    """Hide the password and secret options of every URL in a text; rather too much than too little.

    >>> without_secrets("rabbitmq://shop:hunter2@localhost/vhost")
    'rabbitmq://shop:***@localhost/vhost'
    """
    given, text = text, _SPOKEN.sub(rf"\1{HIDDEN}", _SECRET_OPTION.sub(rf"\1{HIDDEN}", text))
    if given.count("@") > text.count("@") and "://" in given:
        # What looks like an option reaches over the end of a password: nobody can tell which is which.
        return f"{without_secrets(given.partition('://')[0])}://{HIDDEN}"
    if _FILE.fullmatch(text) or _LOGIN.fullmatch(text):
        return text
    first, *rest = (_PASSWORD.sub(rf"\1{HIDDEN}@", part) for part in text.split("://", 1))
    shown = "://".join([first, *(part if "@" in part else _NO_HOST.sub(rf"\1{HIDDEN}", part) for part in rest)])
    return _ENDPOINT.sub(rf"\1{HIDDEN}", shown)


def with_quiet_urls(text: str) -> str:
    """Hide the secrets of the URLs in a sentence, and leave the rest of it as it stands.

    >>> with_quiet_urls("paused by ann@desk: postgresql://shop:hunter2@localhost/shop is slow")
    'paused by ann@desk: postgresql://shop:***@localhost/shop is slow'
    >>> with_quiet_urls("https://localhost:8080: it is away")
    'https://localhost:8080: it is away'
    """
    return _WORD.sub(_quiet_word, text) if "://" in text else text


def _quiet_word(found: re.Match[str]) -> str:
    word = found[0]
    if "://" not in word:
        return word
    url = word.rstrip(":;,.")  # what ends a clause does not belong to it
    if len(url) > LONGEST_URL:
        return f"{HIDDEN}{word[len(url) :]}"
    return without_secrets(url) + word[len(url) :] if "://" in url else without_secrets(word)


def quiet(text: str) -> str:
    """Hide what looks like a secret in a sentence, also outside of URLs; rather too much than too little.

    >>> quiet("redis://shop:hunter2@localhost refused; password=hunter2 token: abcd Authorization: Bearer eyJ")
    'redis://shop:***@localhost refused; password=*** token: *** Authorization: Bearer ***'
    """
    text = _NAMED.sub(rf"\1{HIDDEN}", with_quiet_urls(text))
    return _JWT.sub(HIDDEN, _BEARER.sub(rf"\1{HIDDEN}", text))


def quiet_error(text: str) -> str:
    """Hide what may be a secret in the words of an error that is not ours: more than in a sentence, because nobody
    knows how it was put together; an @ that belongs to no login stays.

    >>> quiet_error("cannot open shop:hunter2@localhost: write @inbox.handler('OrderPlaced')")
    "cannot open shop:***@localhost: write @inbox.handler('OrderPlaced')"
    """
    if "://" in text:
        return quiet(without_secrets(text))
    text = _BARE_LOGIN.sub(rf"\1{HIDDEN}@", text)
    return quiet(_SPOKEN.sub(rf"\1{HIDDEN}", _SECRET_OPTION.sub(rf"\1{HIDDEN}", text)))


def is_secret(name: str) -> bool:
    """Say whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None
