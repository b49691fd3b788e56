"""Servers that answer as they are told, byte for byte, and a certificate authority for them."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Line:
    """One connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes] | None:
        """The head and body of the next request; None at the end."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        lower = head.lower()
        length = 0
        if b"content-length: " in lower:
            length = int(lower.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        return head, await self.reader.readexactly(length)

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()


class Server:
    def __init__(self) -> None:
        self.port = 0
        self.lines = 0
        self.open = 0
        self.resumed: list[bool] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


Answer = Callable[[Line], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    tasks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        server.lines += 1
        server.open += 1
        if tls is not None:
            server.resumed.append(writer.get_extra_info("ssl_object").session_reused)
        try:
            await answer(Line(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            server.open -= 1
            writer.close()
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                writer.transport.abort()  # whatever is still to be sent

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        for _ in range(3):
            await asyncio.sleep(0)  # the loop lets go of their sockets


def always(answer: bytes) -> Answer:
    """Answers every request on a connection with the same bytes."""

    async def serve(line: Line) -> None:
        while await line.request() is not None:
            await line.send(answer)

    return serve


def once(answer: bytes) -> Answer:
    """Answers one request, and closes."""

    async def serve(line: Line) -> None:
        await line.request()
        await line.send(answer)

    return serve


class Authority:
    """Issues certificates. Its own is in a file that clients may trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
        self.certificate = self._issue(self._name, self._key, None, -1, 10, authority=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def context(
        self, names: list[str] | None, *, common: str = "x", begins: int = -1, ends: int = 10
    ) -> ssl.SSLContext:
        """For a server with a certificate for these names, good between two days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        certificate = self._issue(subject, key, names, begins, ends)
        file = self._folder / f"{id(key)}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _issue(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: list[str] | None,
        begins: int,
        ends: int,
        *,
        authority: bool = False,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=begins))
            .not_valid_after(now + dt.timedelta(days=ends))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            alternatives = [_alternative(name) for name in names]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        return builder.sign(self._key, hashes.SHA256())


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
