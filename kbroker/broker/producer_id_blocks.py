"""Producer ids, handed out one by one from blocks that belong to this broker alone.

Called by `producer_ids.py`. A block of 1000 is claimed of the cluster; ids left over when the broker stops are lost,
for there are 2**63. The next block is claimed when the last one is nearly used up, so that asking for an id rarely
waits.

On a metadata store it is claimed by writing `/latest_producer_id_block` over the version it was read in
(`ProducerIdBlocks`). Unlike Kafka 3.9, whose brokers ask the controller for blocks (AllocateProducerIds) and whose
controller writes the same node, each broker claims its own: no two can claim the same one. A broker that asks is given
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kbroker.broker.facts import Touched
from kbroker.metadata.steps import Procedure, SessionLostError, Steps
from kbroker.metadata.store import PRODUCER_ID_BLOCK, decode_producer_id_block, encode_producer_id_block
from kbroker.ports import Get, SetData
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.broker.facts import Tell

    Claim: TypeAlias = Callable[[Callable[[range | None], None]], None]
    """Claims a block for this broker, which is given to its argument; None if it failed."""

BLOCK_SIZE = 1000
CLAIM_BELOW = 100  # ids left when the next block is claimed
LAST_ID = 2**63 - 1


class ProducerIds:
    """The ids that this broker may hand out. When there are more again, those who wait under this object are told."""

    def __init__(self, claim: Claim, tell: Tell) -> None:
        self._claim_block = claim
        self._tell = tell
        self._blocks: list[range] = []
        self._is_claiming = False

    def take(self) -> int | None:
        """A producer id that was never given out; None if there is none now: look again when this object is touched."""
        self.prepare()
        if not self._blocks:
            return None
        block = self._blocks[0]
        self._blocks[0] = block[1:]
        return block[0]

    @property
    def are_there(self) -> bool:
        """Whether `take` has one now; if not, look again when this object is touched."""
        self.prepare()
        return bool(self._blocks)

    def prepare(self) -> None:
        """Claim a block if few ids are left: a producer is about to ask for one."""
        while self._blocks and not self._blocks[0]:
            del self._blocks[0]
        if len(self._blocks) < 2 and sum(map(len, self._blocks)) < CLAIM_BELOW:
            self._claim()

    def take_now(self) -> int:
        """A producer id. Raises: KafkaError COORDINATOR_LOAD_IN_PROGRESS, upon which producers ask again."""
        producer_id = self.take()
        if producer_id is None:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the next block of producer ids is on its way")
        return producer_id

    def _claim(self) -> None:
        if not self._is_claiming:
            self._is_claiming = True
            self._claim_block(self._claimed)

    def _claimed(self, block: range | None) -> None:
        self._is_claiming = False
        if block is not None:
            self._blocks.append(block)
        self._tell(Touched([self]))


class ProducerIdBlocks:
    """The blocks of a metadata store, for this broker, or for another one that asks it as the controller."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def claim(self, broker_id: int, done: Callable[[range | None], None]) -> None:
        """Claim a block for a broker. done: gets it, None if it failed."""

        def failed(error: Exception) -> None:
            done(None)
            if not isinstance(error, SessionLostError):
                raise error

        self._steps.start(self._claiming(broker_id), done, failed)

    def _claiming(self, broker_id: int) -> Procedure[range]:
        while True:
            (found,) = yield [Get(PRODUCER_ID_BLOCK)]
            assert found.stat is not None, found
            start = decode_producer_id_block(found.data)[2] + 1
            end = start + BLOCK_SIZE - 1
            assert end <= LAST_ID, "there are no more producer ids"
            content = encode_producer_id_block(broker_id, start, end)
            (written,) = yield [SetData(PRODUCER_ID_BLOCK, content, found.stat.version)]
            if written.fault is None:
                return range(start, end + 1)
