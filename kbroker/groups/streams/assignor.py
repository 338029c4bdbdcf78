"""The sticky task assignor of Streams groups: who shall have which task, as Apache Kafka's "sticky" decides it.

Active tasks go to the member that had them, as long as it has no more than its share; then to one that had a standby
task of it, or state of it on disk; the rest to the process with the fewest tasks a member. Standby tasks go likewise,
never to a process that has the task already. The same members, tasks and history give the same result as Apache's
class; so where loads are equal its hash tables decide, whose order is that of `java_order`.

Pure. Called by membership.py for each target assignment. Source: KIP-1071, "Assignment".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from kbroker.coordinator import java_hash
from kbroker.groups.streams.tasks import NOTHING, Task, Tasks
from protocol.namedtuple import NamedTuple

T = TypeVar("T")


_NOTHING_ON_DISK: Mapping[Task, int] = MappingProxyType({})


class Member(NamedTuple):
    """What the assignor knows of a member. before: its last target. offsets: of state that it says it has, by task."""

    member_id: str
    process_id: str
    before: Tasks = NOTHING
    offsets: Mapping[Task, int] = _NOTHING_ON_DISK


class SubtopologyTasks(NamedTuple):
    """A subtopology: how many tasks, and whether they have state, and so standby tasks."""

    subtopology_id: str
    tasks: int
    is_stateful: bool


def assign(members: Sequence[Member], parts: Sequence[SubtopologyTasks], standby_replicas: int) -> dict[str, Tasks]:
    """The target assignment of each member. Some standby tasks are left out where there are too few processes."""
    if not members:
        return {}
    work = _Assignment(members, parts, standby_replicas)
    work.assign_active([(part.subtopology_id, at) for part in parts for at in range(part.tasks)])
    if standby_replicas > 0:
        work.assign_standby(
            [(part.subtopology_id, at) for part in parts if part.is_stateful for at in range(part.tasks)]
        )
    return {
        member.member_id: Tasks(frozenset(work.active[member.member_id]), frozenset(work.standby[member.member_id]))
        for member in members
    }


class _Process:
    """counts: tasks by member. by_load: its members, least loaded first; None while that is not known."""

    __slots__ = ("by_load", "counts", "held", "total")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.total = 0
        self.held: set[Task] = set()
        self.by_load: _Queue[list[Any]] | None = None

    @property
    def load(self) -> float:
        """Tasks a member."""
        return self.total / len(self.counts)


class _Share:
    """How many tasks a member may have, so that all have about as many: it changes as members reach it."""

    __slots__ = ("members", "most", "tasks")

    def __init__(self, tasks: int, members: int) -> None:
        self.tasks, self.members = tasks, members
        self.most = -(-tasks // members)

    def reached(self, count: int) -> None:
        """A member has so many now."""
        if count == self.most:
            self.members -= 1
            self.tasks -= count
            self.most = -(-self.tasks // self.members) if self.members else 0


class _Assignment:
    """One assignment under way."""

    def __init__(self, members: Sequence[Member], parts: Sequence[SubtopologyTasks], standby_replicas: int) -> None:
        self.active: dict[str, list[Task]] = {member.member_id: [] for member in members}
        self.standby: dict[str, list[Task]] = {member.member_id: [] for member in members}
        self._replicas = standby_replicas
        count = sum(part.tasks for part in parts)
        copies = sum(part.tasks for part in parts if part.is_stateful) * standby_replicas
        self._active_share = _Share(count, len(members))
        self._share = _Share(count + copies, len(members))
        self._processes: dict[str, _Process] = {}
        self._had_active: dict[Task, Member] = {}
        candidates: dict[Task, list[tuple[int, int, Member]]] = {}  # (rank, -offset, member); sorted as it stands
        for member in members:
            process = self._processes.get(member.process_id)
            if process is None:
                process = self._processes[member.process_id] = _Process()
            process.counts[member.member_id] = 0
            self._had_active.update(dict.fromkeys(member.before.active, member))
            for task in member.before.standby:
                candidates.setdefault(task, []).append((0, -member.offsets.get(task, 0), member))
            for task, offset in member.offsets.items():
                if task not in member.before.standby:
                    candidates.setdefault(task, []).append((1, -offset, member))
        self._had_copy = {
            task: [member for *_, member in sorted(found, key=lambda each: each[:2])]
            for task, found in candidates.items()
        }
        ordered = java_order_of_computed((member.process_id for member in members), len(members))
        self._in_order = [self._processes[process_id] for process_id in ordered]

    # -- active tasks

    def assign_active(self, tasks: list[Task]) -> None:
        """Give each task to a member."""
        tasks.sort(key=lambda task: (task[1], _utf16(task[0])))
        tasks = [task for task in tasks if not self._gives_back(task, self._had_active.get(task))]
        tasks = [task for task in tasks if not self._gives_back(task, self._least_loaded(self._had_copy.get(task, ())))]
        tasks.sort(key=lambda task: (_utf16(task[0]), task[1]))
        queue = _Queue(self._in_order, lambda process: process.load)
        for task in tasks:
            process = queue.pop()
            count = self._give_to_least_loaded(process, task, self.active)
            self._active_share.reached(count)
            self._share.reached(count)
            queue.push(process)

    def _gives_back(self, task: Task, member: Member | None) -> bool:
        """Whether a member that knows the task gets it."""
        if member is None:
            return False
        process = self._processes[member.process_id]
        if process.counts[member.member_id] >= self._active_share.most:
            return False
        count = self._give(process, member.member_id, task, self.active)
        self._active_share.reached(count)
        self._share.reached(count)
        return True

    # -- standby tasks

    def assign_standby(self, tasks: list[Task]) -> None:
        """Give each task to as many more processes as there shall be, as far as there are."""
        tasks.sort(key=lambda task: (task[1], _utf16(task[0])), reverse=True)
        left: list[tuple[Task, int]] = []
        for task in tasks:
            for replica in range(self._replicas):
                if not self._keeps_copy(task):
                    left.append((task, self._replicas - replica))
                    break
        left.sort(key=lambda each: (_utf16(each[0][0]), each[0][1]), reverse=True)
        queue = _Queue(self._in_order, lambda process: process.load)
        for task, replicas in left:
            for _ in range(replicas):
                if not self._give_copy(queue, task):
                    break

    def _keeps_copy(self, task: Task) -> bool:
        """Whether a member that knows the task gets a standby task of it."""
        for member in (self._had_active.get(task), self._least_loaded(self._had_copy.get(task, ()), task)):
            if member is None:
                continue
            process = self._processes[member.process_id]
            if task not in process.held and process.counts[member.member_id] < self._share.most:
                self._share.reached(self._give(process, member.member_id, task, self.standby))
                return True
        return False

    def _give_copy(self, queue: _Queue[_Process], task: Task) -> bool:
        """Whether a process without the task was found, and has it now; those with fewer tasks are asked first."""
        passed = []
        found = False
        while queue:
            process = queue.pop()
            passed.append(process)
            if task not in process.held:
                self._share.reached(self._give_to_least_loaded(process, task, self.standby))
                found = True
                break
        for process in reversed(passed):
            queue.push(process)
        return found

    # -- a member, and a task more

    def _least_loaded(self, members: Iterable[Member], task: Task | None = None) -> Member | None:
        """The first of them, unless a later one is less loaded and its process, too. task: which it must not have."""
        chosen, process_load, member_load = None, 0.0, 0
        for member in members:
            process = self._processes[member.process_id]
            if task is not None and task in process.held:
                continue
            count = process.counts[member.member_id]
            if chosen is None or (process.load < process_load and count < member_load):
                chosen, process_load, member_load = member, process.load, count
        return chosen

    def _give(self, process: _Process, member_id: str, task: Task, role: Mapping[str, list[Task]]) -> int:
        """Returns: how many tasks the member has now."""
        process.by_load = None
        return self._add(process, member_id, task, role)

    def _add(self, process: _Process, member_id: str, task: Task, role: Mapping[str, list[Task]]) -> int:
        process.held.add(task)
        role[member_id].append(task)
        process.total += 1
        process.counts[member_id] += 1
        return process.counts[member_id]

    def _give_to_least_loaded(self, process: _Process, task: Task, role: Mapping[str, list[Task]]) -> int:
        if process.by_load is None:
            members = java_order(process.counts)
            entries: list[list[Any]] = [[process.counts[member_id], member_id] for member_id in members]
            process.by_load = _Queue(entries, lambda entry: entry[0])
        entry = process.by_load.pop()
        count = self._add(process, entry[1], task, role)
        entry[0] = count
        process.by_load.push(entry)
        return count


# -- what Java's collections do


class _Queue(Generic[T]):
    """A priority queue that takes equal elements out in the order of java.util.PriorityQueue, which heapq does not."""

    __slots__ = ("_heap", "_key")

    def __init__(self, items: Iterable[T], key: Callable[[T], float]) -> None:
        self._heap: list[T] = []
        self._key = key
        for item in items:
            self.push(item)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: T) -> None:
        """Put an element in."""
        heap, key = self._heap, self._key(item)
        at = len(heap)
        heap.append(item)
        while at:
            parent = (at - 1) >> 1
            if key >= self._key(heap[parent]):
                break
            heap[at] = heap[parent]
            at = parent
        heap[at] = item

    def pop(self) -> T:
        """Take the least element out."""
        heap = self._heap
        least, last = heap[0], heap.pop()
        if heap:
            self._sift_down(last)
        return least

    def _sift_down(self, item: T) -> None:
        heap, key, at = self._heap, self._key(item), 0
        while (child := 2 * at + 1) < len(heap):
            right = child + 1
            if right < len(heap) and self._key(heap[child]) > self._key(heap[right]):
                child = right
            if key <= self._key(heap[child]):
                break
            heap[at] = heap[child]
            at = child
        heap[at] = item


def java_order(keys: Iterable[str]) -> list[str]:
    """Strings in the order in which a java.util.HashMap goes through them that they were put into.

    Equal to Java's unless nine of them share a bucket.
    """
    keys = list(keys)
    size = 16
    while len(keys) > size * 0.75:
        size *= 2
    return sorted(keys, key=lambda key: _bucket(key) & (size - 1))


def java_order_of_computed(keys: Iterable[str], capacity: int) -> list[str]:
    """As java_order, for a table made for `capacity` keys whose values computeIfAbsent puts there, key by key.

    That grows the table one key later than put does, and puts a key before those of its bucket. keys: in the order of
    the calls; any may come again.
    """
    size = 1
    while size < capacity:
        size *= 2
    found: dict[str, None] = {}
    for key in keys:
        if len(found) > int(size * 0.75):
            size *= 2
        found[key] = None
    newest_first = list(reversed(found))
    return sorted(newest_first, key=lambda key: _bucket(key) & (size - 1))


def _bucket(key: str) -> int:
    value = java_hash(key) & 0xFFFFFFFF
    return value ^ value >> 16


def _utf16(text: str) -> bytes:
    """By what Java compares strings."""
    return text.encode("utf-16-be", "surrogatepass")
