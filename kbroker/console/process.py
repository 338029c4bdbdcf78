"""The process of a broker's console: serves browsers until its broker ends it, or is gone.

Started by `beside.py` with two descriptors: a socket to the broker and the one that browsers come to. It runs below the
broker's priority. Ctrl-C at the terminal is the broker's business, who then ends it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress

import uvicorn

from kbroker.console.app import Console, Options
from kbroker.console.beside import LISTEN_FD, TALK_FD
from kbroker.console.inside import Inside
from kbroker.console.screens import SCREENS
from kbroker.console.serve import hosts_for, security_of, serve
from kbroker.console.wire import WIRE

NICENESS = 19  # at 5, a search had a producer beside it wait two milliseconds more, one time in a hundred
LOOK_S = 1.0
log = logging.getLogger("kbroker.console")


def main() -> None:
    """Serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with suppress(OSError):
        os.nice(NICENESS)
    inside = Inside(socket.socket(fileno=TALK_FD))
    listening = socket.socket(fileno=LISTEN_FD)
    given = inside.options()
    try:
        security = security_of(given["settings"], users_log_in=True)
    except ValueError as error:
        log.error("console.client.config: %s", error)
        sys.exit(2)
    options = Options(
        bootstrap=[(host, port) for host, port in given["bootstrap"]],
        security=security,
        hosts=hosts_for(given["host"], given["names"]),
        read_only=given["read_only"],
        registry=given["registry"],
        gives_way=True,
    )
    console = Console(options, inside, (*SCREENS, *WIRE))

    def begun(server: uvicorn.Server) -> None:
        threading.Thread(target=_end_with, args=(inside,), daemon=True).start()

    serve(console, listening, begun)


def _end_with(inside: Inside) -> None:
    """End when the broker has ended, however it did."""
    pause = threading.Event()
    while not inside.ended():
        pause.wait(LOOK_S)
    os._exit(0)
