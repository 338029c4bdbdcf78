"""A broker that has a process to itself: signals, limits of the process, the collector, and a node on its loop.

Called by `kbroker start`, with the collector off until it serves, or has waited for long. It chooses what the node runs
on (real disk, real clock, SQLite) and says when it ends; what a broker is put together from is `node.py`'s business.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kbroker.config import Given
from kbroker.ports import Disk
from kbroker.runtime.clock import SystemClock, SystemRandom
from kbroker.runtime.descriptors import Shares, raise_limit
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.loading import Show
from kbroker.runtime.loop import Loop
from kbroker.runtime.memory import Housekeeping, OutsideArenas, trim
from kbroker.runtime.node import Host, MakeCore, Node
from kbroker.runtime.platform import resident_bytes

if TYPE_CHECKING:
    from kbroker.log.cleaner.compaction import Compacting, Plan
    from kbroker.runtime.compaction_beside import Beside

log = logging.getLogger("kbroker")


class Closing(Protocol):
    """What is beside a broker."""

    def close(self) -> None:
        """It ends before the broker does."""
        ...


UNCOLLECTED_S = 30.0  # at a start: one that waits for others may have to for days


def run_process(
    static: dict[str, Given],
    started: Callable[[Node], None],
    make_core: MakeCore,
    show_loading: Show | None = None,
    disk: Disk | None = None,
    begin_console: Callable[[Loop, Node], Closing] | None = None,
) -> int:
    """Start a broker, call `started` once clients are served, serve until SIGTERM, SIGINT or SIGHUP, stop cleanly.

    Where a listener speaks TLS and the process has no terminal, SIGHUP has its certificates read again instead.

    static, make_core, show_loading: as `Node` and `Host` have them. disk: None for the machine's own. begin_console:
    begins what is beside the broker once it serves, and is closed before it stops.
    Returns: the exit code.
    Raises: ConfigError, StartupError.
    """
    loop = Loop()
    try:
        shares = Shares.of(raise_limit())
        beside: list[Beside] = []

        def begin_compaction(disk: Disk, plan: Plan) -> Compacting:
            from kbroker.runtime.compaction_beside import Beside  # many brokers compact nothing large

            if not beside:
                beside.append(Beside())
            return beside[0](disk, plan)

        host = Host(
            disk or SystemDisk(),
            SystemClock(),
            SystemRandom(),
            shares,
            make_core=make_core,
            show_loading=show_loading,
            begin_compaction=None if disk else begin_compaction,  # the other process would have the machine's disk
        )
        # Our parent may have it ignored, which is inherited: then it is unknown how a child ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        node = Node(static, loop, host)
        signals: list[int] = []
        loop.on_end(lambda number: _reload(node) if _is_for_tls(number, node) else signals.append(number))
        if not node.open(given_up=lambda: signals):
            return 0
        consoles: list[Closing] = []

        def serves(node: Node) -> None:
            started(node)
            if begin_console is not None:
                consoles.append(begin_console(loop, node))

        try:
            _serve(loop, node, serves, signals)
        finally:
            for each in (*beside, *consoles):
                each.close()
            node.stop()
        log.info("broker %d has stopped", node.node_id)
        return 1 if node.fatal else 0
    finally:
        loop.close()


def _is_for_tls(number: int, node: Node) -> bool:
    """Whether a signal asks for certificates to be read again: SIGHUP, where no terminal can have closed."""
    return number == signal.SIGHUP and node.speaks_tls and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _reload(node: Node) -> None:
    if node.serves:  # else it reads them now
        log.info("SIGHUP: the certificates of TLS are read again")
        node.reload_tls()


def _keep_house(loop: Loop, node: Node) -> Housekeeping:
    effects = node.core.effects
    outside = node.broker.scheduler.context = OutsideArenas()
    house = Housekeeping(loop, lambda: effects.is_busy, resident_bytes, gc.collect, trim, outside)
    house.start()
    return house


def _serve(loop: Loop, node: Node, started: Callable[[Node], None], signals: list[int]) -> None:
    collector = loop.timer(gc.enable)
    collector.set(UNCOLLECTED_S)
    loop.run_until(lambda: node.ready or node.serves or node.fatal or signals)
    collector.cancel()
    gc.freeze()  # what is here now stays: later collections need not look at it. Collecting what does not, a
    gc.enable()  # few hundred objects, would cost a twentieth of the start
    loop.run_until(lambda: node.ready or node.fatal or signals)
    if node.ready:
        node.serve()
        house = _keep_house(loop, node)
        gc.freeze()
        started(node)
        loop.run_until(lambda: signals or node.fatal)
        house.stop()
        node.leave()
        loop.run_until(lambda: node.has_left or len(signals) > 1)
    if node.fatal:
        log.error("%s", node.fatal)
