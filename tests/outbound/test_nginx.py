"""A real proxy that closes connections when it pleases."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.outbound.servers import OK, Authority, always, serving
from tests.support.parts import missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from waystation.outbound import Outbound


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def nginx(folder: Path, upstream: int, certificate: Path) -> Iterator[tuple[int, int]]:
    """Its plain and its TLS port, in front of a server."""
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None:
        missing("nginx", "it is not installed")
    plain, tls = free_port(), free_port()
    settings = folder / "nginx.conf"
    settings.write_text(
        f"""
        daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
        events {{ worker_connections 512; }}
        http {{
          access_log off; keepalive_requests 3; keepalive_timeout 1s;
          client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
          fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
          server {{
            listen 127.0.0.1:{plain}; listen 127.0.0.1:{tls} ssl;
            ssl_certificate {certificate}; ssl_certificate_key {certificate};
            location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
          }}
        }}
        """
    )
    assert program is not None
    process = subprocess.Popen([program, "-c", str(settings), "-e", str(folder / "error.log")])
    try:
        yield plain, tls
    finally:
        process.terminate()
        process.wait()


async def listening(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                await writer.wait_closed()
                return


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_nginx_loses_nothing_of_ours(
    outbound: Outbound, authority: Authority, tmp_path: Path, tls: bool
) -> None:
    authority.context(["localhost"])
    [certificate] = [file for file in tmp_path.glob("*.pem") if file != authority.file]
    async with serving(always(OK)) as server:
        with nginx(tmp_path, server.port, certificate) as ports:
            await listening(ports[0])
            url = f"https://localhost:{ports[1]}/" if tls else f"http://localhost:{ports[0]}/"

            async def several() -> list[int]:
                asked = [await outbound.request("POST", url, body=b"x" * 3000) for _ in range(10)]
                return [reply.status for reply in asked]

            found = await asyncio.gather(*(several() for _ in range(10)))
    assert [status for statuses in found for status in statuses] == [200] * 100
