"""Who counts as another broker: may tell this one what it leads, and ask what only brokers ask (CLUSTER_ACTION).

The authorizer of a broker without access rules. A connection to the listener of `control.plane.listener.name` is a
broker: that listener is there for them alone. Otherwise the address decides: it has to be one of a registered broker; a
broker that is alone, its metadata being in its own file, has no other brokers. Everything else is allowed to all.
With access rules (`acl_authorizer.py`) principals take the place of the addresses.

Registered brokers are those of this one's image of the cluster, and those that the metadata store names, which is asked
about an address that is not known: a broker that has just come may be the controller, and what it says waits for the
store's answer (`undecided`). A broker may be advertised by a name,
which a job looks up; until its end any address might be a broker's, and passes. Behind the store's answer all names are
looked up again, for a broker may be back under its name at another address (as containers are); meanwhile those that
were found before are good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.facts import Touched

if TYPE_CHECKING:
    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.facts import Tell
    from kbroker.broker.jobs import Job, Owner
    from kbroker.broker.session import Session

log = logging.getLogger("kbroker.control")

REGISTERED = "registered brokers"
"""With the number of the question, a key of the purgatory: touched when the store has named them."""

LookUp = Callable[[str], Iterable[str]]
"""The addresses of a host, as text; it may take long. Raises: OSError."""


class HostLookup:
    """A job: what addresses hosts have, one after the other; none if there is no such name.

    hosts: those asked for, of which one that failed unexpectedly, and those behind it, have no entry at all.
    """

    def __init__(self, hosts: Sequence[str], look_up: LookUp) -> None:
        self.addresses: dict[str, frozenset[str]] = {}
        self.hosts = hosts
        self._look_up = look_up

    def run(self) -> None:
        """On any thread."""
        for host in self.hosts:
            try:
                self.addresses[host] = frozenset(self._look_up(host))
            except (OSError, UnicodeError) as error:
                self.addresses[host] = frozenset()
                log.warning("the address of broker host %s is not known: %s", host, error)


class AddressAuthorizer:
    """Decides by where a session comes from. alone: there are no other brokers. control_listener: may be empty."""

    has_rules = False

    def __init__(
        self,
        plane: ControlPlane,
        look_up: LookUp,
        give: Callable[[Job, Owner], None],
        tell: Tell,
        *,
        alone: bool,
        control_listener: str,
    ) -> None:
        self.control_listener = control_listener
        self._plane = plane
        self._registered: frozenset[str] = frozenset()  # hosts that the store named when it was asked last
        self._brokers: object = None  # of which `_hosts` are: each fetch of a follower asks
        self._hosts: frozenset[str] = frozenset()
        self._asked = 0  # how often the store was asked
        self._asking = False  # until its answer is there, and the names in it have been looked up again
        self._again: HostLookup | None = None  # that job
        self._ask_again = False  # a broker has connected meanwhile, which may have registered since
        self._tell = tell
        self._look_up = look_up
        self._give = give
        self._alone = alone
        self._addresses: dict[str, frozenset[str] | None] = {}  # by host; None: being looked up

    def allows(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether a session may do this."""
        if operation is not Operation.CLUSTER_ACTION or resource is not ResourceType.CLUSTER:
            return True
        if self.control_listener and session.listener == self.control_listener:
            return True
        return not self._alone and self._is_broker(session.peer_host)

    def allows_any(self, session: Session, operation: Operation, resource: ResourceType) -> bool:
        """See `allows`."""
        return True

    def _is_broker(self, address: str) -> bool:
        if self._brokers is not self._plane.cache.brokers:
            self._brokers = self._plane.cache.brokers
            self._hosts = frozenset(each.host for broker in self._brokers.values() for each in broker.endpoints)
        if address in self._hosts or address in self._registered:
            return True
        names = self._names()
        new = [name for name in names if name not in self._addresses]
        if new:
            self._addresses.update(dict.fromkeys(new))
            self._give(HostLookup(new, self._look_up), self)
        known = [self._addresses[name] for name in names]
        if None in known or any(address in found for found in known if found is not None):
            return True
        self._ask_store()
        return False

    def _names(self) -> list[str]:
        return [host for host in self._hosts | self._registered if not _is_address(host)]

    def undecided(self, session: Session, operation: Operation, resource: ResourceType, name: str) -> Hashable | None:
        """The answer of the store, where it may know the address: the first that it is asked for from now on."""
        if self._alone or self.allows(session, operation, resource, name):
            return None
        return REGISTERED, self._asked + self._ask_again

    def _ask_store(self) -> None:
        if self._asking:
            self._ask_again = True
            return
        self._asking = True
        self._asked += 1
        self._plane.find_hosts(self._learn, lambda error: self._learn(self._registered))

    def _learn(self, hosts: frozenset[str]) -> None:
        self._registered = hosts
        names = self._names()
        if names:
            self._again = HostLookup(names, self._look_up)
            self._give(self._again, self)
        else:
            self._decide()

    def _decide(self) -> None:
        self._asking = False
        self._tell(Touched([(REGISTERED, self._asked)]))
        if self._ask_again:
            self._ask_again = False
            self._ask_store()

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """Hosts have been looked up; one without an address keeps those it had, or is looked up when asked for."""
        assert isinstance(job, HostLookup), job
        for host in job.hosts:
            if found := job.addresses.get(host):
                self._addresses[host] = found
            elif self._addresses.get(host) is None:
                self._addresses.pop(host, None)
        if job is self._again:
            self._again = None
            self._decide()


def _is_address(host: str) -> bool:
    from ipaddress import ip_address  # a broker that is alone does not pay for loading it

    try:
        ip_address(host)
    except ValueError:
        return False
    return True
