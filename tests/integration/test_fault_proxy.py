"""Each fault of the proxy does to a connection what its name says, and stops doing so when healed."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from servers.fault_proxy import Direction, FaultProxy

PATIENCE = 20.0
SOON = 0.3
"""How long nothing must come before a test believes that nothing comes."""


class EchoServer:
    """Answers each byte with the same byte, and remembers what it has received and how each connection ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.received = b""
        self.endings: list[str] = []
        self.moved = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_for(self, data: bytes) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: self.received == data, PATIENCE), self.received

    def wait_for_ending(self) -> str:
        with self.moved:
            assert self.moved.wait_for(lambda: bool(self.endings), PATIENCE)
            return self.endings[0]

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:  # the test is over
                return
            threading.Thread(target=self._echo, args=[connection], daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        ending = "closed"
        with connection:
            try:
                while data := connection.recv(65536):
                    with self.moved:
                        self.received += data
                        self.moved.notify_all()
                    connection.sendall(data)
            except ConnectionError:
                ending = "reset"
        with self.moved:
            self.endings.append(ending)
            self.moved.notify_all()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    """A connection that already carries bytes in both directions."""
    with dial(proxy) as connection:
        assert talk(connection, b"hello") == b"hello"
        yield connection


def dial(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def talk(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def receive(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (data := connection.recv(count - len(found))):
        found += data
    return found


def hears_nothing(connection: socket.socket, seconds: float = SOON) -> bool:
    connection.settimeout(seconds)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(PATIENCE)
    return False


def test_without_a_fault_a_megabyte_comes_back_whole(client: socket.socket) -> None:
    data = bytes(range(256)) * 4096
    sender = threading.Thread(target=client.sendall, args=[data])
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()


def test_an_ending_is_passed_on(client: socket.socket, echo: EchoServer) -> None:
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert echo.wait_for_ending() == "closed"


def test_latency_delays_both_directions(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.latency(0.2)
    began = time.monotonic()
    assert talk(client, b"late") == b"late"
    assert time.monotonic() - began >= 0.4


def test_latency_lets_many_messages_travel_at_once(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.latency(0.5)
    began = time.monotonic()
    for message in (b"1", b"2", b"3", b"4", b"5", b"6"):
        client.sendall(message)
        assert hears_nothing(client, seconds=0.02)  # so that each travels alone
    assert receive(client, 6) == b"123456"
    assert time.monotonic() - began < 6 * 0.5


def test_healed_latency_no_longer_delays(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.latency(60)
    client.sendall(b"late")
    proxy.heal()
    assert receive(client, 4) == b"late"


def test_a_slow_connection_takes_its_time(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.slow(bytes_per_second=10_000)
    began = time.monotonic()
    assert len(talk(client, b"x" * 5_000)) == 5_000
    assert time.monotonic() - began >= 0.4


def test_a_cut_closes_connections(client: socket.socket, proxy: FaultProxy, echo: EchoServer) -> None:
    proxy.cut()
    assert client.recv(1) == b""
    assert echo.wait_for_ending() == "closed"
    assert proxy.connections == 0


def test_a_cut_refuses_connections_until_it_is_healed(proxy: FaultProxy) -> None:
    proxy.cut()
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    proxy.heal()
    with dial(proxy) as client:
        assert talk(client, b"again") == b"again"


def test_a_reset_is_one_on_both_sides(client: socket.socket, proxy: FaultProxy, echo: EchoServer) -> None:
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert echo.wait_for_ending() == "reset"


def test_new_connections_are_reset_until_healed(proxy: FaultProxy) -> None:
    proxy.reset()
    with pytest.raises(ConnectionResetError), dial(proxy) as client:
        client.recv(1)
    proxy.heal()
    with dial(proxy) as client:
        assert talk(client, b"again") == b"again"


def test_a_half_open_connection_carries_nothing_until_it_is_healed(
    client: socket.socket, proxy: FaultProxy, echo: EchoServer
) -> None:
    proxy.half_open()
    client.sendall(b" held")
    assert hears_nothing(client)
    assert echo.received == b"hello"
    proxy.heal()
    assert receive(client, 5) == b" held"


def test_a_half_open_proxy_accepts_connections_of_which_the_server_hears_nothing(
    proxy: FaultProxy, echo: EchoServer
) -> None:
    proxy.half_open()
    with dial(proxy) as client:
        client.sendall(b"held")
        assert hears_nothing(client)
        assert echo.received == b""
        proxy.heal()
        assert receive(client, 4) == b"held"


def test_a_half_open_connection_hides_that_the_client_has_gone(
    client: socket.socket, proxy: FaultProxy, echo: EchoServer
) -> None:
    proxy.half_open()
    client.close()
    with echo.moved:
        assert not echo.moved.wait_for(lambda: bool(echo.endings), SOON)
    proxy.heal()
    assert echo.wait_for_ending() == "closed"


def test_held_answers_let_requests_through(client: socket.socket, proxy: FaultProxy, echo: EchoServer) -> None:
    proxy.half_open(Direction.ANSWERS)
    client.sendall(b" request")
    echo.wait_for(b"hello request")
    assert hears_nothing(client)
    proxy.heal()
    assert receive(client, 8) == b" request"


def test_held_requests_let_answers_through(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy.target = server.getsockname()[1]
        with dial(proxy) as client, server.accept()[0] as serving:
            proxy.half_open(Direction.REQUESTS)
            client.sendall(b"request")
            serving.sendall(b"news")
            assert receive(client, 4) == b"news"
            assert hears_nothing(serving)


def test_lost_answers_never_come(client: socket.socket, proxy: FaultProxy, echo: EchoServer) -> None:
    proxy.lose_answers()
    client.sendall(b" request")
    echo.wait_for(b"hello request")
    assert hears_nothing(client)


def test_a_connection_that_lost_answers_is_reset_when_healed(
    client: socket.socket, proxy: FaultProxy, echo: EchoServer
) -> None:
    proxy.lose_answers()
    client.sendall(b" request")
    echo.wait_for(b"hello request")
    assert hears_nothing(client)
    proxy.heal()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_connection_that_lost_nothing_survives_the_healing(client: socket.socket, proxy: FaultProxy) -> None:
    proxy.lose_answers()
    proxy.heal()
    assert talk(client, b"fine") == b"fine"


def test_a_lost_ending_leaves_the_client_waiting(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy.target = server.getsockname()[1]
        with dial(proxy) as client:
            serving = server.accept()[0]
            proxy.lose_answers()
            serving.close()
            assert hears_nothing(client)


def test_a_request_is_broken_off_after_so_many_bytes(
    client: socket.socket, proxy: FaultProxy, echo: EchoServer
) -> None:
    proxy.drop_after(4)
    client.sendall(b" request")
    assert echo.wait_for_ending() == "closed"
    assert echo.received == b"hello req"


def test_an_answer_is_broken_off_after_so_many_bytes(
    client: socket.socket, proxy: FaultProxy, echo: EchoServer
) -> None:
    proxy.drop_after(4, Direction.ANSWERS)
    client.sendall(b" request")
    assert receive(client, 8) == b" req"
    assert echo.received == b"hello request"


def test_new_connections_go_to_the_new_target(client: socket.socket, proxy: FaultProxy, echo: EchoServer) -> None:
    other = EchoServer()
    proxy.target = other.port
    with dial(proxy) as another:
        assert talk(another, b"new") == b"new"
    assert talk(client, b"old") == b"old"
    assert (other.received, echo.received) == (b"new", b"helloold")
    other.close()


def test_a_server_that_is_not_there_looks_like_a_reset(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        proxy.target = nobody.getsockname()[1]
    with pytest.raises(ConnectionResetError), dial(proxy) as client:
        client.recv(1)
