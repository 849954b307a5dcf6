"""From the host's loopback into the cluster's network: for kubectl, helm, curl and OpenAI clients.

One process. A socket belongs to the namespace in which it was made, so it listens outside and
connects inside. Run as a script; `address_of` asks the running one for another local port.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from localcluster.paths import API_ADDRESS, API_PORT, NETWORK_NAMESPACE, STATE

NAME = "forwarder"
CONTROL = STATE / "forwarder.sock"
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


class ForwardError(Exception):
    """The address cannot be reached from the host; the text says why."""


def command(api_port: int) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), str(api_port)]


def free_port(wanted: int) -> int:
    """`wanted`, or any other if that is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ForwardError("no free port on 127.0.0.1")


def address_of(target: str) -> str:
    """The address on the host's loopback that leads to `target`, an IP:PORT in the cluster."""
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(10)
        try:
            control.connect(str(CONTROL))
        except OSError as error:
            raise ForwardError("no cluster runs here: start one with `cluster.py up`") from error
        control.sendall(f"{target}\n".encode())
        answer = control.makefile().readline().strip()
    if not answer.startswith("127."):
        raise ForwardError(answer)
    return answer


class _Forwarder:
    def __init__(self) -> None:
        self._outside = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._inside = os.open(NETWORK_NAMESPACE, os.O_RDONLY)
        self._ports: dict[tuple[str, int], int] = {}
        self._servers: list[asyncio.Server] = []

    async def listen(self, target: tuple[str, int], *, port: int = 0) -> int:
        """The same local port whenever the same target is asked for."""
        if target not in self._ports:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._carry(target, reader, writer)

            server = await asyncio.start_server(accept, "127.0.0.1", port)
            self._servers.append(server)
            self._ports[target] = int(server.sockets[0].getsockname()[1])
        return self._ports[target]

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readline()).decode().strip()
        host, _, port = target.rpartition(":")
        try:
            socket.inet_aton(host)
            answer = f"127.0.0.1:{await self.listen((host, int(port)))}"
        except (OSError, ValueError):
            answer = f"{target!r} is not an address of the cluster: use IP:PORT"
        writer.write(f"{answer}\n".encode())
        await writer.drain()
        writer.close()

    async def _carry(
        self,
        target: tuple[str, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            inner_reader, inner_writer = await self._connect(target)
        except OSError as error:
            print(f"cannot reach {target[0]}:{target[1]}: {error}", flush=True)
            writer.transport.abort()  # the client sees a reset, as from a closed port
            return
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
        inner_writer.close()
        writer.close()

    async def _connect(
        self, target: tuple[str, int]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with self._in_cluster():  # no `await` here: the namespace is the thread's
            inner = socket.socket()
        try:
            inner.setblocking(False)  # noqa: FBT003
            await asyncio.get_running_loop().sock_connect(inner, target)
        except OSError:
            inner.close()
            raise
        return await asyncio.open_connection(sock=inner)

    @contextlib.contextmanager
    def _in_cluster(self) -> Iterator[None]:
        _enter(self._inside)
        try:
            yield
        finally:
            _enter(self._outside)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction. The end of a stream is passed on; a broken one takes the other side along."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


async def _serve(api_port: int) -> None:
    forwarder = _Forwarder()
    await forwarder.listen((API_ADDRESS, API_PORT), port=api_port)
    CONTROL.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(forwarder.control, str(CONTROL))
    own = CONTROL.stat().st_ino
    # Whoever loses the records of this process can still end it, by removing its socket.
    while CONTROL.exists() and CONTROL.stat().st_ino == own:  # noqa: ASYNC110 (files send no events)
        await asyncio.sleep(2)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
