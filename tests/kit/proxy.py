"""A TCP proxy whose connections can be delayed, stalled, cut and reset."""

import socket
import struct
import threading
import time
from contextlib import suppress
from enum import Enum

CHUNK = 65536


class Mode(Enum):
    """What happens to bytes on their way."""

    PASS = "pass"  # noqa: S105  no password
    #: Nothing more passes, and nobody is told.
    STALL = "stall"
    #: Answers are swallowed; requests pass.
    STALL_ANSWERS = "stall answers"
    #: Answers to scripts are swallowed; everything else passes, so that clients can connect.
    STALL_SCRIPTS = "stall scripts"


class Proxy:
    """Forwards a port of this machine to another, with whatever fault is set."""

    def __init__(self, target_port: int) -> None:
        self.mode = Mode.PASS
        #: Added to each chunk on its way, in either direction.
        self.delay_seconds = 0.0
        #: How many answers to scripts were swallowed.
        self.swallowed = 0
        self._target_port = target_port
        self._refusing = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._forgotten: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and every new one at once, until `heal`."""
        self._refusing = True
        self._close(reset=False)

    def reset(self) -> None:
        """End all connections with RST; new ones are served."""
        self._close(reset=True)

    def forget(self) -> None:
        """Let nothing pass any more on the connections that are open, as a firewall does with idle ones.

        Nobody is told. New connections are served.
        """
        with self._lock:
            self._forgotten.update(end for pair in self._pairs for end in pair)

    def heal(self) -> None:
        """Serve again. What was stalled is closed: those bytes are lost."""
        self.mode, self.delay_seconds, self._refusing = Mode.PASS, 0.0, False
        self._close(reset=False)

    def retarget(self, port: int) -> None:
        """Forward to another port from now on. Connections to the old one are closed."""
        self._target_port = port
        self._close(reset=False)

    def close(self) -> None:
        self._refusing = True
        self._listener.close()
        self._close(reset=False)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._target_port), 5)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.settimeout(None)
            with self._lock:  # from here on somebody else may close them
                self._pairs.append((client, server))
            waits = threading.Event()  # for the answer to a script
            for source, sink, answers in ((client, server, False), (server, client, True)):
                pump = threading.Thread(target=self._pump, args=(source, sink, answers, waits))
                pump.daemon = True
                pump.start()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        answers: bool,  # noqa: FBT001
        waits: threading.Event,
    ) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                if self.delay_seconds:
                    time.sleep(self.delay_seconds)  # the fault itself
                if not answers:
                    (waits.set if b"EVALSHA" in chunk else waits.clear)()
                if source not in self._forgotten and self._passes(
                    answers=answers, to_script=waits.is_set()
                ):
                    sink.sendall(chunk)
        # A stalled peer is not told that the other side has closed.
        if self.mode is Mode.PASS and source not in self._forgotten:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _passes(self, *, answers: bool, to_script: bool) -> bool:
        match self.mode:
            case Mode.STALL:
                return False
            case Mode.STALL_ANSWERS:
                return not answers
            case Mode.STALL_SCRIPTS if answers and to_script:
                self.swallowed += 1
                return False
        return True

    def _close(self, *, reset: bool) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    if reset:  # linger for no time: RST instead of FIN
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        # Who waits in recv holds the socket open, and would leave it silent.
                        end.shutdown(socket.SHUT_RD)
                    else:
                        end.shutdown(socket.SHUT_RDWR)
                    end.close()
