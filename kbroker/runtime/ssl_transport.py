"""The transport of TLS: OpenSSL between two buffers in memory, and the socket behind them.

OpenSSL never touches the socket, so that readiness means what it says: how much was taken by the socket is known, and
many records come in by one `recv` and leave by one `send` (an SSLSocket makes a call for each of at most 16 KB). On the
way out bytes are enciphered into OpenSSL's buffer, taken out of it and sent; on the way in it is the other way round.

A handshake is made of what `recv_into` and `send` find to do: nothing waits for it, and `server.py` ends one that takes
too long. It ends with `shaken`, which may refuse the peer by an OSError. Tickets make the next handshake short.

A peer may send records that hold nothing for us (new keys, which we have to answer), as many as it likes, and each
costs more to read than to make. So no call looks more than twice at what has come; no more is taken in at once than the
peer has already sent that was of use, and a little; and who sends nothing else is hung up on.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.runtime.platform import MSG_MORE
from kbroker.runtime.transport import WantReadError, WantWriteError

if TYPE_CHECKING:
    import socket

    from kbroker.ports import Buffer

RECORD_BYTES = 16 << 10  # of plain text in one record
CHUNK_BYTES = 64 << 10  # enciphered at a time: what OpenSSL's buffer grows to for each connection
SCRATCH_BYTES = 128 << 10  # received at a time: five requests of a producer with batches of 16 KB
PORTION_BYTES = 256 << 10  # taken by one call: then others get their turn
LOOKS = 2  # at what has come, by one call
FIRST_BYTES = 4 << 10  # received at a time from a peer that has sent no data yet
USELESS_BYTES = 2 * RECORD_BYTES  # that may come without data: a record that is not whole, or some 1,400 times new keys
SAID_BACK_BYTES = 64 << 10  # that may wait for a peer which does not read

MakeObject = Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]


class SslTransport:
    """See above. Source of the rules: transport.py.

    make: an SSLObject over two buffers, what comes in and what goes out. shaken: takes it after the handshake. scratch:
    SCRATCH_BYTES of memory to receive into, of the loop's. ended: takes it when the transport is closed after that.
    """

    sends_files = False
    buffers_input = True

    __slots__ = ("_ended", "_incoming", "_is_dry", "_object", "_outgoing", "_scratch", "_shaken", "_socket", "_taken",
                 "_unsent", "_useful", "_useless", "is_shaken")  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        make: MakeObject,
        shaken: Callable[[ssl.SSLObject], object],
        scratch: memoryview,
        ended: Callable[[ssl.SSLObject], object] | None = None,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = make(self._incoming, self._outgoing)
        self._shaken = shaken
        self._scratch = scratch
        self._ended = ended
        self._unsent = memoryview(b"")  # enciphered
        self._taken = 0  # bytes of the owner's that stand for the end of that, and are offered again
        self._is_dry = False  # nothing can be made of what has come before more does
        self._useful = 0  # bytes of data that have come
        self._useless = 0  # bytes in which there was none, since then
        self.is_shaken = False

    def fileno(self) -> int:
        """Of the socket."""
        return self._socket.fileno()

    # -- in

    def has_bytes_buffered(self) -> bool:
        """Whether something has come that was not looked at; a part of a record that was is nothing yet."""
        return not self._is_dry and (self._incoming.pending > 0 or self._object.pending() > 0)

    def recv_into(self, buffer: memoryview, /) -> int:
        """As much as is there, of as many records as fit."""
        if self._outgoing.pending > SAID_BACK_BYTES and not self._flushed():
            raise WantWriteError
        if not self.is_shaken:
            if not self._shake(WantWriteError):
                return 0
        elif not self.has_bytes_buffered() and not self._hear():
            return 0
        for look in range(LOOKS):
            if look and not self._hear():
                return 0
            before = self._incoming.pending
            size = self._decipher(buffer)
            if self._outgoing.pending and not self._unsent:  # new keys, said back
                self._flushed()
            if size is not None:
                self._useful += size
                self._useless = max(self._useless - size, 0)
                return size
            self._useless += before - self._incoming.pending  # a part of a record, or nothing for us in it
            if self._useless > USELESS_BYTES:
                raise TlsError("it sends records of TLS without data")
        raise BlockingIOError

    def _decipher(self, buffer: memoryview) -> int | None:
        """What can be read now; 0 for the end, None if more has to come first."""
        read, size, room = self._object.read, 0, len(buffer)
        try:
            while size < room:
                got = read(room - size, buffer[size:] if size else buffer)
                if not got:
                    break
                size += got  # type: ignore[operator]
                if not self._incoming.pending and not self._object.pending():
                    break
        except ssl.SSLWantReadError:
            self._is_dry = True
            return size or None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return size
        except ssl.SSLError as error:
            if size:
                return size
            raise self._broken(error) from None
        return size

    def _hear(self) -> bool:
        """Take in what the socket has; false at its end. Raises: BlockingIOError if that is nothing."""
        scratch = self._scratch
        most = FIRST_BYTES + self._useful
        size = self._socket.recv_into(scratch if most >= SCRATCH_BYTES else scratch[:most])
        if size:
            self._incoming.write(scratch[:size])
            self._is_dry = False
        return size > 0

    # -- out

    def send(self, data: Buffer, /, flags: int = 0) -> int:
        """Encipher and send."""
        if self._unsent and not self._flushed():
            raise BlockingIOError
        taken, self._taken = self._taken, 0
        if not self.is_shaken and not self._shake(BlockingIOError):
            raise ConnectionResetError(errno.ECONNRESET, "the connection ended during the TLS handshake")
        view = memoryview(data)
        most = min(len(view), PORTION_BYTES)
        while taken < most:
            size = self._encipher(view[taken : min(taken + CHUNK_BYTES, most)])
            if not size:
                break
            if not self._flushed(flags):
                self._taken = size
                break
            taken += size
        if not taken:
            raise BlockingIOError if self._unsent else WantReadError
        return taken

    def _encipher(self, data: memoryview) -> int:
        """How much went into OpenSSL's buffer: at a time one record."""
        write, done = self._object.write, 0
        try:
            while done < len(data):
                done += write(data[done:] if done else data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise self._broken(error) from None
        return done

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()], flags: int, /) -> int:
        """The same; small ones share a record."""
        return send_pieces(buffers, flags, self.send)

    def send_file(self, fd: int, position: int, size: int) -> int:
        """Never called."""
        raise AssertionError("bytes of a file have to be enciphered")

    def _flushed(self, flags: int = 0) -> bool:
        """Whether all that was enciphered is with the socket now."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return True
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = self._socket.send(self._unsent, flags)
            except (BlockingIOError, InterruptedError):
                return False
            self._unsent = self._unsent[sent:]

    # -- the handshake

    def _shake(self, full: type[BlockingIOError]) -> bool:
        """Go on with the handshake, up to its end; false if the connection ends in it.

        Raises: BlockingIOError, or `full` where the socket takes no more; an OSError if the peer is refused.
        """
        while True:
            try:
                self._object.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                is_done = False
            except ssl.SSLError as error:
                raise self._broken(error) from None
            if not self._flushed():
                raise full
            if is_done:
                self._shaken(self._object)
                self.is_shaken = True
                return True
            try:
                if not self._hear():
                    return False
            except BlockingIOError:
                raise (WantReadError if full is BlockingIOError else BlockingIOError) from None

    def _broken(self, error: ssl.SSLError) -> OSError:
        """Tell the peer, and say why."""
        with suppress(OSError):
            self._flushed()
        return TlsError(error)

    def close(self) -> None:
        """Hang up, with the word of TLS for it."""
        if self.is_shaken and self._socket.fileno() >= 0:
            if self._ended is not None:
                self._ended(self._object)
            if not self._unsent:
                with suppress(OSError):
                    self._object.unwrap()
                with suppress(OSError):
                    self._flushed()
        self._socket.close()


def pieces_of(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """One portion of them: small ones joined, for the head of a record costs more than a copy."""
    small: list[Buffer] = []
    size = 0
    for each in buffers:
        size += len(each)
        if len(each) < RECORD_BYTES:
            small.append(each)
        else:
            if small:
                yield b"".join(small)
                small = []
            yield each
        if size >= PORTION_BYTES:
            break
    if small:
        yield small[0] if len(small) == 1 else b"".join(small)


def send_pieces(buffers: Iterable[Buffer], flags: int, send: Callable[[Buffer, int], int]) -> int:
    """Send one portion of them. Returns: how many bytes were taken.

    send: takes one piece, with these flags, and MSG_MORE where another piece follows.
    """
    total = 0
    pieces = list(pieces_of(buffers))
    for number, piece in enumerate(pieces, 1):
        try:
            sent = send(piece, flags if number == len(pieces) else flags | MSG_MORE)
        except BlockingIOError:
            if not total:
                raise
            break
        total += sent
        if sent < len(piece):
            break
    return total


NO_TLS, VERSION, CIPHER, CERTIFICATE, NAME, PEER, OTHER = (
    "no_tls", "version", "cipher", "certificate", "name", "peer", "other"
)  # fmt: skip
"""Kinds of failures, for those who count them. NAME: no rule gives the client one. PEER: it ended TLS by itself."""
REASONS = {
    "HTTP_REQUEST": (NO_TLS, "it speaks HTTP, no TLS"),
    "HTTPS_PROXY_REQUEST": (NO_TLS, "it speaks HTTP, no TLS"),
    "WRONG_VERSION_NUMBER": (NO_TLS, "it speaks no TLS: its security.protocol may be PLAINTEXT"),
    "UNSUPPORTED_PROTOCOL": (VERSION, "its version of TLS is none of ssl.enabled.protocols"),
    "NO_SHARED_CIPHER": (CIPHER, "it has none of our cipher suites"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (CERTIFICATE, "it shows no certificate, and ssl.client.auth=required"),
}


class TlsError(ConnectionAbortedError):
    """TLS with a peer has failed, or it is refused for who it is. kind: NO_TLS and its like."""

    def __init__(self, why: ssl.SSLError | str) -> None:
        self.kind, text = (NAME, why) if isinstance(why, str) else _kind_and_words(why)
        super().__init__(errno.ECONNABORTED, text)


def why_no_tls(error: ssl.SSLError) -> str:
    """Why a handshake failed, or a connection after it, for a person."""
    return _kind_and_words(error)[1]


def _kind_and_words(error: ssl.SSLError) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        return CERTIFICATE, f"its certificate is not taken: {error.verify_message}"
    reason = error.reason or ""
    if reason in REASONS:
        return REASONS[reason]
    if "ALERT" in reason:
        return PEER, f"it ended TLS: {reason.split('ALERT_')[-1].replace('_', ' ').lower()}"
    return OTHER, f"TLS failed: {(reason or str(error)).replace('_', ' ').lower()}"
