"""That the checks see what they are there for: a broker with one fault in it, and the breach that follows."""

from __future__ import annotations

import pytest

from kbroker.broker.control_sender import ControlSender
from kbroker.controller.context import Context
from kbroker.log.jobs import FlushJob
from kbroker.log.producer_state import Producers
from kbroker.metadata.requester import Asked
from kbroker.ports import PeerAnswer, PeerEvent
from kbroker.sim.swarm import Swarm
from kbroker.sim.world import Broken, World
from kbroker.timing import Purgatory


def live_until_broken() -> None:
    """Worlds one after the other, until one has in it what shows the fault."""
    for seed in range(9, 30):
        Swarm(seed, machines=1).run()


def test_a_producer_whose_sequence_is_not_looked_at_writes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "check", lambda *_: None)
    with pytest.raises(Broken, match="was sent 1 times and is at"):
        live_until_broken()


def test_an_answer_that_misses_its_deadline_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Purgatory, "time_is_up", lambda *_: None)
    with pytest.raises(Broken, match="was to be answered by"):
        live_until_broken()


@pytest.mark.slow
def test_a_flush_that_does_nothing_loses_what_was_called_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlushJob, "run", lambda _: None)
    with pytest.raises(Broken, match=r"was promised|should follow"):
        live_until_broken()


def live_together_until_broken() -> None:
    """The same for clusters."""
    for seed in range(1, 20):
        Swarm(seed, machines=3).run()


@pytest.mark.slow
def test_a_controller_that_gives_up_after_one_try_leaves_the_cluster_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really = ControlSender.heard

    def heard(sender: ControlSender, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        if isinstance(event, PeerAnswer):
            really(sender, asked, event, now_ms)

    monkeypatch.setattr(ControlSender, "heard", heard)
    with pytest.raises(
        Broken, match=r"knows of|is not back|takes|was told of|stands at|gets nothing through|no member of"
    ):
        live_together_until_broken()


def test_a_controller_epoch_that_does_not_rise_has_two_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    really = Context.__init__
    monkeypatch.setattr(Context, "__init__", lambda context, epoch=0, version=0: really(context, 1, version))
    with pytest.raises(Broken, match="is controller in the epoch of"):
        live_together_until_broken()


def test_time_that_stands_still_is_seen() -> None:
    world = World(1)

    def again() -> None:
        world.after(0, again)

    again()
    with pytest.raises(Broken, match="time stands still"):
        world.run_until(1)
