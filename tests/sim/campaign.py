"""Simulated worlds in bulk: `scripts/sim [--seeds N] [--minutes M] [--first S] [--seed S] [--machines N]`, and plays.

With the same options, `scripts/sim transactions` runs worlds of transactions (`kbroker/sim/exactly_once.py`),
`scripts/sim replicated` of replicated topics (`kbroker/sim/replicated.py`), `scripts/sim moving` of replicas that move
between log directories and are compacted (`kbroker/sim/moving.py`), `scripts/sim storage` of compaction, conversion
and old clients (`kbroker/sim/storage.py`), `scripts/sim ruled` of access rules that change
(`kbroker/sim/ruled.py`), `scripts/sim groups` of the groups of Kafka 4 (`kbroker/sim/modern_groups.py`),
`scripts/sim observers` of nodes that follow a metadata quorum (`kbroker/sim/observers.py`), and `scripts/sim quorum` of
replicated topics in its cluster (`kbroker/sim/on_quorum.py`).

Runs seeds one after the other, from a random one on unless told, until there were enough or one fails; then prints
what happened last, and the seed that brings it back. `--seed S` runs that one world and shows all of it.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import sys
import time
import traceback
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kbroker.sim.cluster_play import ClusterStage
from kbroker.sim.exactly_once import ExactlyOnce
from kbroker.sim.modern_groups import ModernGroups
from kbroker.sim.moving import Moving
from kbroker.sim.observers import ObserverWorld
from kbroker.sim.on_quorum import QuorumSwarm
from kbroker.sim.play import perform_on
from kbroker.sim.replicated import ReplicatedSwarm
from kbroker.sim.ruled import Ruled
from kbroker.sim.storage import Storage
from kbroker.sim.swarm import Swarm
from kbroker.sim.world import Broken

SHOWN_LINES = 60
DEFAULT_SEEDS = 100
BUDGET = 500  # simulated seconds of a broker a second of this process, so that load on the machine does not count
TOLD_EVERY = 100  # worlds


class Tally(NamedTuple):
    """What a campaign came to. brokers_s: simulated, of each broker. failed: the seed that did, if any."""

    worlds: int
    simulated_s: float
    brokers_s: float
    cpu_s: float
    failed: int | None

    def __str__(self) -> str:
        pace = self.brokers_s / self.cpu_s if self.cpu_s else BUDGET
        verdict = "" if pace >= BUDGET else f", below the budget of {BUDGET}"
        return (
            f"{self.worlds} worlds, {self.simulated_s:.0f} simulated seconds, {self.brokers_s:.0f} of a broker, in "
            f"{self.cpu_s:.0f} of the processor: {pace:.0f} of a broker a second{verdict}"
        )


def campaign(
    seeds: Iterator[int],
    seconds: float = float("inf"),
    *,
    machines: int | None = None,
    show: bool = False,
    kind: str = "swarm",
) -> Tally:
    """Run worlds until there are no more seeds, or time is up, or one fails. kind: see `WORLDS`."""
    logging.disable()
    _collect_seldom()
    begun, worlds, simulated_ms, brokers_ms = time.process_time(), 0, 0, 0

    def tally(failed: int | None = None) -> Tally:
        return Tally(worlds, simulated_ms / 1000, brokers_ms / 1000, time.process_time() - begun, failed)

    for seed in seeds:
        if time.process_time() - begun > seconds:
            break
        lived = run(seed, machines=machines, show=show, kind=kind)
        if lived is None:
            return tally(seed)
        worlds += 1
        simulated_ms += lived.world.now_ms
        brokers_ms += lived.world.now_ms * len(lived.machines)
        if worlds % TOLD_EVERY == 0:
            print(tally(), flush=True)
    return tally()


def _collect_seldom() -> None:
    """A world's objects live as long as it does: looking through them again and again finds nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


Lived: TypeAlias = Swarm | ExactlyOnce | ReplicatedSwarm | ObserverWorld

WORLDS: dict[str, type[Lived]] = {
    "swarm": Swarm,
    "transactions": ExactlyOnce,
    "replicated": ReplicatedSwarm,
    "groups": ModernGroups,
    "moving": Moving,
    "observers": ObserverWorld,
    "quorum": QuorumSwarm,
    "ruled": Ruled,
    "storage": Storage,
}


def run(seed: int, *, machines: int | None = None, show: bool = False, kind: str = "swarm") -> Lived | None:
    """One world, once it has lived; None, and all about it on the screen, if it fails."""
    lived = WORLDS[kind](seed, machines=machines, kept_lines=None if show else SHOWN_LINES)
    try:
        outcome = lived.run()
    except Exception:
        print("\n".join(lived.world.lines))
        traceback.print_exc(file=sys.stdout)
        which = "scripts/sim" if kind == "swarm" else f"scripts/sim {kind}"
        print(f"seed {seed} fails: {which} --seed {seed}{f' --machines {machines}' if machines else ''}")
        return None
    if show:
        print("\n".join(lived.world.lines))
        print(outcome)
    return lived


def play(path: Path, *, rewrite: bool) -> int:
    """One play; 1 if it went otherwise than it says."""
    logging.disable()
    text, stage = path.read_text(), ClusterStage()
    try:
        happened = perform_on(stage, text)
    except Broken as broken:
        print("\n".join(stage.world.lines))
        print(f"{broken}: scripts/sim --play {path}")
        return 1
    print(happened, end="")
    if rewrite:
        path.write_text(happened)
    return 0 if rewrite or happened == text else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sim", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", nargs="?", default="swarm", choices=WORLDS, help="what the worlds are made of")
    parser.add_argument("--seeds", type=int, help=f"how many worlds; {DEFAULT_SEEDS} unless --minutes is given")
    parser.add_argument("--minutes", type=float, help="for how long, of the processor's time")
    parser.add_argument("--first", type=int, help="the first seed; random if not given")
    parser.add_argument("--seed", type=int, help="one world, with all that happens in it")
    parser.add_argument("--machines", type=int, help="how many, in each world; chosen by the seed unless given")
    parser.add_argument(
        "--play",
        type=Path,
        help="a play (kbroker/sim/play.py and its like): show what happens in it",
    )
    parser.add_argument("--rewrite", action="store_true", help="with --play: write it into the file")
    arguments = parser.parse_args()
    if arguments.play is not None:
        try:
            return play(arguments.play, rewrite=arguments.rewrite)
        except (OSError, ValueError) as error:  # not there, or no play
            parser.error(f"{arguments.play}: {error}")
    if arguments.seed is not None:
        return 0 if run(arguments.seed, machines=arguments.machines, show=True, kind=arguments.kind) else 1
    first = random.randrange(1 << 32) if arguments.first is None else arguments.first
    most = arguments.seeds or (None if arguments.minutes else DEFAULT_SEEDS)
    seconds = float("inf") if arguments.minutes is None else arguments.minutes * 60
    print(f"seeds from {first} on", flush=True)
    tally = campaign(islice(count(first), most), seconds, machines=arguments.machines, kind=arguments.kind)
    print(tally)
    return 0 if tally.failed is None else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("broken off: no seed has failed")
