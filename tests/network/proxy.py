"""A proxy in front of PostgreSQL that counts round trips and does what bad networks do, at statements that a test names."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy.engine import URL, make_url

Action = Literal["cut", "cut in the middle", "drop", "swallow", "ignore"]
"""cut: the request never arrives. cut in the middle: half of it does. drop: it is carried out, and the line breaks before the answer.
swallow: it is carried out, and no answer comes, ever. ignore: it never arrives, and no answer comes, ever."""


@dataclass
class Rule:
    """What happens to the next flights that run a statement which begins like `needle`."""

    needle: str
    action: Action | Callable[[Line], None]
    after: bool
    times: int
    hits: int = 0
    met: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Listens on a port of its own and passes everything on to the server of `url`."""

    def __init__(self, url: str) -> None:
        self._target = make_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._rules: list[Rule] = []
        self._guard = threading.Lock()
        self.lines: list[Line] = []
        self.refusing = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def url(self) -> str:
        """The database, reached through here."""
        query = {"sslmode": "disable", "gssencmode": "disable"}
        port = self._listener.getsockname()[1]
        through = URL.create(
            "postgresql+psycopg", self._target.username, self._target.password, "127.0.0.1", port, self._target.database, query
        )
        return through.render_as_string(hide_password=False)

    def next(self, needle: str, action: Action | Callable[[Line], None], *, after: bool = False, times: int = 1) -> Rule:
        """Plan a fault. A function is called before the flight is passed on, or after its answer came."""
        rule = Rule(needle, action, after, times)
        with self._guard:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget all plans."""
        with self._guard:
            self._rules.clear()

    @property
    def flights(self) -> int:
        """How often a client began to speak after the server had spoken, after the connections were made."""
        return sum(line.flights for line in self.lines)

    @property
    def statements(self) -> list[str]:
        """What was executed, in order of arrival on each connection."""
        return [statement for line in self.lines for statement in line.statements]

    def count(self) -> Counter:
        """What happens in a with block."""
        return Counter(self)

    def close(self) -> None:
        """Stop listening and break every line."""
        with contextlib.suppress(OSError):
            # Closing alone would not wake the thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self.lines:
            line.close()

    def take(self, statements: list[str], after: bool) -> Rule | None:
        """The plan that one of these statements meets, used up."""
        with self._guard:
            for rule in self._rules:
                if rule.after is after and any(statement.startswith(rule.needle) for statement in statements):
                    rule.hits += 1
                    rule.times -= 1
                    if rule.times == 0:
                        self._rules.remove(rule)
                    return rule
        return None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                line = Line(self, client, self._connect())
            except OSError:
                client.close()
                continue
            self.lines.append(line)
            threading.Thread(target=line.run, name="proxy line", daemon=True).start()

    def _connect(self) -> socket.socket:
        host = self._target.query.get("host") or self._target.host or "127.0.0.1"
        port = self._target.query.get("port") or self._target.port or 5432
        if str(host).startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
            return server
        return socket.create_connection((str(host), int(str(port))))


class Counter:
    """Flights and statements of a block."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.flights = 0
        self.statements: list[str] = []

    def __enter__(self) -> Counter:
        self._flights, self._seen = self._proxy.flights, len(self._proxy.statements)
        return self

    def __exit__(self, *_: object) -> None:
        self.flights, self.statements = self._proxy.flights - self._flights, self._proxy.statements[self._seen :]


class Line:
    """One connection."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._deaf = False
        self._server_spoke = True
        self._requests, self._answers = Messages(starts=True), Messages(starts=False)
        self._prepared: dict[bytes, str] = {}
        self._bound = ""
        self.ready = False
        self.backend = 0
        self.flights = 0
        self.statements: list[str] = []

    def run(self) -> None:
        """Pass on what comes, in one thread, so that the order of both directions is known."""
        late: Rule | None = None
        with contextlib.suppress(OSError, ValueError):  # a closed socket has no descriptor
            while True:
                for side in select.select([self._client, self._server], [], [])[0]:
                    data = side.recv(1 << 18)
                    if not data:
                        return self.close()
                    if side is self._client:
                        late = self._request(data) or late
                    elif not self._deaf:
                        self._answer(data, late)
                        late = None
        self.close()

    def close(self) -> None:
        """Break the line on both sides."""
        for side in (self._client, self._server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _request(self, data: bytes) -> Rule | None:
        if self.ready and self._server_spoke:
            self.flights += 1
        self._server_spoke = False
        executed = self._executed(data)
        self.statements += executed
        rule = self._proxy.take(executed, after=False)
        if rule is None:
            self._server.sendall(data)
            return self._proxy.take(executed, after=True)
        if callable(rule.action):
            rule.action(self)
            self._server.sendall(data)
        elif rule.action in ("cut", "cut in the middle"):
            if rule.action == "cut in the middle":
                self._server.sendall(data[: len(data) // 2])
            self.close()
        elif rule.action == "ignore":
            self._deaf = True
        else:
            self._server.sendall(data)
            if rule.action == "swallow":
                self._deaf = True
            else:
                self._await_answer()
                self.close()
        rule.met.set()
        return None

    def _answer(self, data: bytes, late: Rule | None) -> None:
        self._server_spoke = True
        if not self.ready:
            for kind, body in self._answers.feed(data):
                if kind == b"K":
                    self.backend = int.from_bytes(body[:4], "big")
                self.ready = self.ready or kind == b"Z"
        if late is not None and callable(late.action):
            late.action(self)
        self._client.sendall(data)
        if late is not None:
            late.met.set()

    def _await_answer(self) -> None:
        """Read until the server is ready for more, which is after it has committed."""
        answers = Messages(starts=False)
        while data := self._server.recv(1 << 16):
            if any(kind == b"Z" for kind, _ in answers.feed(data)):
                return

    def _executed(self, data: bytes) -> list[str]:
        found: list[str] = []
        for kind, body in self._requests.feed(data):
            if kind == b"Q":
                found.append(body.rstrip(b"\0").decode())
            elif kind == b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text.decode()
            elif kind == b"B":
                _, name, _ = body.split(b"\0", 2)
                self._bound = self._prepared.get(name, "")
            elif kind == b"E":
                found.append(self._bound)
        return found


class Messages:
    """Cuts a stream of PostgreSQL's protocol into messages."""

    def __init__(self, *, starts: bool) -> None:
        self._starts, self._rest = starts, b""

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that are complete now: kind and body."""
        self._rest += data
        found: list[tuple[bytes, bytes]] = []
        while True:
            head = 0 if self._starts else 1
            if len(self._rest) < head + 4:
                return found
            size = int.from_bytes(self._rest[head : head + 4], "big")
            if len(self._rest) < head + size:
                return found
            found.append((self._rest[:head], self._rest[head + 4 : head + size]))
            self._rest = self._rest[head + size :]
            self._starts = False
