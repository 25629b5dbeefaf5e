"""Where daemons listen: a host and a port."""

import pytest

from pillarbox.errors import ConfigError
from pillarbox.settings import HealthSettings
from pillarbox.settings.tables import split_place


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_a_place_to_listen_at_is_a_host_and_a_port(listen: str, place: tuple[str, int]) -> None:
    assert split_place(HealthSettings(listen=listen).listen or "") == place


@pytest.mark.parametrize(
    "listen", ["", "9464", ":9464", "::1:9464", "127.0.0.1:", "127.0.0.1:65536", "host:-1", "[]:1"]
)
def test_no_other_place_is_taken(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"health\.listen: must be HOST:PORT"):
        HealthSettings(listen=listen)
