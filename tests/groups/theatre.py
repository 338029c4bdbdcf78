"""Plays: stories of groups as plain text, each step followed by what it caused.

A line at the left margin is a step, a line with four blanks in front is something it caused; `#` begins a comment.
`REWRITE_PLAYS=1 pytest tests/test_plays.py` writes what really happened into the files, to be looked at in the diff.

    config KEY=VALUE ...                before anything else
    NAME join [GROUP] [instance=I] [protocols=range,sticky] [topics=t,u] [session=MS] [rebalance=MS] [version=N] [as=ID]
    NAME sync [MEMBER=ASSIGNMENT ...]   the leader's with assignments, a follower's without
    NAME heartbeat | NAME leave
    NAME commit TOPIC-PARTITION=OFFSET ... [metadata=TEXT] [generation=N] [retention=MS]
    topics TOPIC=PARTITIONS ...         0: it is gone
    NAME subscribe [GROUP] [topics=t,u] [regex=R] [instance=I] [assignor=A] [rebalance=MS]   to a consumer group
    NAME beat [topics=t] [epoch=N] | NAME own   a heartbeat; `own` says that the member has what it may own alone
    NAME quit [for-a-while]
    describe-consumers GROUP | set GROUP KEY=VALUE ...
    leave GROUP instance=I ...          by an admin client
    commit GROUP TOPIC-PARTITION=OFFSET ...   from outside the group
    fetch GROUP [stable] [TOPIC-PARTITION ...]
    describe GROUP | list [STATE ...] | delete GROUP ... | delete-offsets GROUP TOPIC-PARTITION ...
    topic-deleted TOPIC PARTITION ...
    wait MS | sleep MS | hold appends | commit appends | refuse appends CODE | accept appends
    resign | load begins | load ends | restart   sleep: the machine does, and the clock for deadlines with it

A client remembers its group, member id and generation from the answers, as real ones do; `forget` makes it a newcomer.
Member ids are shown as NAME/1, NAME/2, ... in the order in which they were handed out.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from kbroker.coordinator import Caller
from protocol.errors import ErrorCode
from protocol.message import DecodeError, Message
from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from protocol.messages.consumer_groups import Member as DescribedConsumer
from protocol.messages.embedded import ConsumerProtocolAssignment, TopicPartition
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from protocol.messages.stored import decode_versioned, encode_versioned
from tests.groups.world import World, config_of

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def subscription(topics: list[str]) -> bytes:
    """What a consumer says under each protocol."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


@dataclass
class Client:
    name: str
    group: str = "g"
    member_id: str = ""
    generation: int = -1
    protocol: str | None = None
    may_own: dict[str, list[int]] | None = None  # as a member of a consumer group
    said: dict[str, str] = field(default_factory=dict)  # of its last join, repeated by the next


class Stage:
    """Runs the steps of one play."""

    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.clients: dict[str, Client] = {}
        self.waiting: dict[object, tuple[str, Client | None]] = {}
        self.aliases: dict[str, str] = {}
        self.shown_lines = 0

    @cached_property
    def world(self) -> World:
        """Made by the first step that is no `config`."""
        return World(config_of(**{key.replace(".", "_"): value for key, value in self.config.items()}))

    def step(self, line: str) -> list[str]:
        """Do a step: what it caused, in words."""
        first, *rest = line.split()
        if first == "config":
            assert "world" not in vars(self), "config comes first"
            self.config |= dict(word.split("=", 1) for word in rest)
            return []
        if hasattr(self, f"do_{first.replace('-', '_')}"):
            out = getattr(self, f"do_{first.replace('-', '_')}")(*rest) or []
        else:
            client = self.clients.setdefault(first, Client(first))
            verb, *words = rest
            getattr(self, f"client_{verb}")(client, words)
            out = []
        lines = [f"- {line}" for line in self.world.lines[self.shown_lines :]]
        self.shown_lines = len(self.world.lines)
        answers = []
        for call, (what, client) in list(self.waiting.items()):
            if call in self.world.replies:
                del self.waiting[call]
                answers.append(self.answer(what, client, self.world.replies[call]))
        return [self.short(each) for each in out + lines + answers]

    def short(self, text: str) -> str:
        return UUID.sub(lambda match: self.aliases.setdefault(match[0], f"/{len(self.aliases) + 1}"), text).replace(
            "-/", "/"
        )

    def send(self, what: str, client: Client | None, effects: list, caller: Caller) -> None:  # type: ignore[type-arg]
        self.waiting[caller.call] = (what, client)
        self.world.run(effects)

    # --- clients

    def client_join(self, client: Client, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words if "=" in word)
        for word in words:
            if "=" not in word:
                client.group = word
        client.said |= {key: value for key, value in given.items() if key != "as"}
        said = client.said
        metadata = subscription(said.get("topics", "t").split(","))
        caller = self.world.call(int(said.get("version", "9")), client.name)
        request = JoinGroupRequest(
            group_id=client.group,
            session_timeout_ms=int(said.get("session", "10000")),
            rebalance_timeout_ms=int(said.get("rebalance", "20000")),
            member_id=self.member_id(given["as"]) if "as" in given else client.member_id,
            group_instance_id=said.get("instance"),
            protocol_type=said.get("type", "consumer"),
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name in filter(None, said.get("protocols", "range").split(","))
            ],
        )
        self.send("join", client, self.world.groups.join(request, caller, self.world.now_ms), caller)

    def client_sync(self, client: Client, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words)
        caller = self.world.call(int(client.said.get("sync-version", "5")), client.name)
        request = SyncGroupRequest(
            group_id=client.group,
            generation_id=int(given.pop("generation", client.generation)),
            member_id=client.member_id,
            group_instance_id=client.said.get("instance"),
            protocol_type=given.pop("type", client.said.get("type", "consumer")),
            protocol_name=given.pop("protocol", client.protocol or "range"),
            assignments=[
                SyncGroupRequestAssignment(member_id=self.member_id(name), assignment=assignment(value))
                for name, value in given.items()
            ],
        )
        self.send("sync", client, self.world.groups.sync(request, caller, self.world.now_ms), caller)

    # --- members of consumer groups

    def client_subscribe(self, client: Client, words: list[str]) -> None:
        for word in words:
            if "=" not in word:
                client.group = word
        client.said |= dict(word.split("=", 1) for word in words if "=" in word)
        if not client.member_id:
            client.member_id = f"{client.name}-{uuid.UUID(bytes=self.world.rng.token(16))}"
        client.may_own = {}
        said = client.said
        topics = said.get("topics", "" if "regex" in said else "t")
        self.consumer_beat(
            client,
            epoch=0,
            rebalance_timeout_ms=int(said.get("rebalance", "20000")),
            instance_id=said.get("instance"),
            subscribed_topic_names=topics.split(",") if topics else None,
            subscribed_topic_regex=said.get("regex"),
            server_assignor=said.get("assignor"),
            topic_partitions=[],
        )

    def client_beat(self, client: Client, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words)
        topics = given.get("topics")
        self.consumer_beat(
            client,
            epoch=int(given.get("epoch", client.generation)),
            subscribed_topic_names=None if topics is None else topics.split(","),
            instance_id=client.said.get("instance"),
        )

    def client_own(self, client: Client, _words: list[str]) -> None:
        owned = [
            TopicPartitions(topic_id=self.world.image.topic_id(topic), partitions=parts)
            for topic, parts in (client.may_own or {}).items()
        ]
        instance_id = client.said.get("instance")
        self.consumer_beat(client, epoch=client.generation, topic_partitions=owned, instance_id=instance_id)

    def client_quit(self, client: Client, words: list[str]) -> None:
        self.consumer_beat(client, epoch=-2 if words else -1, instance_id=client.said.get("instance"))

    def consumer_beat(self, client: Client, epoch: int, **more: object) -> None:
        caller = self.world.call(1, client.name)
        request = ConsumerGroupHeartbeatRequest(
            group_id=client.group,
            member_id=client.member_id,
            member_epoch=epoch,
            **more,  # type: ignore[arg-type]
        )
        effects = self.world.groups.consumer_group_heartbeat(request, caller, self.world.now_ms)
        self.send("beat", client, effects, caller)

    def client_heartbeat(self, client: Client, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words)
        caller = self.world.call(4, client.name)
        request = HeartbeatRequest(
            group_id=client.group,
            generation_id=int(given.get("generation", client.generation)),
            member_id=client.member_id,
            group_instance_id=client.said.get("instance"),
        )
        self.send("heartbeat", client, self.world.groups.heartbeat(request, caller, self.world.now_ms), caller)

    def client_leave(self, client: Client, _words: list[str]) -> None:
        caller = self.world.call(5, client.name)
        who = MemberIdentity(member_id=client.member_id, group_instance_id=client.said.get("instance"))
        request = LeaveGroupRequest(group_id=client.group, members=[who])
        self.send("leave", client, self.world.groups.leave(request, caller, self.world.now_ms), caller)

    def client_forget(self, client: Client, _words: list[str]) -> None:
        client.member_id, client.generation = "", -1

    def client_commit(self, client: Client, words: list[str]) -> None:
        self.commit(client, client.group, words)

    def commit(self, client: Client | None, group_id: str, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words)
        metadata = given.pop("metadata", "")
        generation = int(given.pop("generation", client.generation if client else -1))
        retention_ms = int(given.pop("retention", "-1"))
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for where, offset in given.items():
            topic, partition = where.rsplit("-", 1)
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=int(partition), committed_offset=int(offset), committed_metadata=metadata
                )
            )
        caller = self.world.call(8 if client is None or client.may_own is None else 9)
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=client.member_id if client else "",
            group_instance_id=client.said.get("instance") if client else None,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        self.send("commit", client, self.world.groups.commit_offsets(request, caller, self.world.now_ms), caller)

    def member_id(self, name: str) -> str:
        """The member id of a client, or the one shown as NAME/N."""
        if "/" not in name:
            return self.clients[name].member_id
        prefix, number = name.split("/")
        return next(f"{prefix}-{uuid}" for uuid, alias in self.aliases.items() if alias == f"/{number}")

    # --- others

    def do_topics(self, *words: str) -> None:
        self.world.topics(**{name: int(count) for name, count in (word.split("=") for word in words)})

    def do_set(self, group_id: str, *words: str) -> None:
        self.world.group_configs[group_id] = dict(word.split("=", 1) for word in words)

    def do_describe_consumers(self, group_id: str) -> list[str]:
        group = self.world.groups.describe_consumer_group(group_id)
        if group.error_code:
            return [f"{ErrorCode(group.error_code).name} {group.error_message}"]
        about = (
            f"{group.group_state} epoch {group.group_epoch}, target {group.assignment_epoch} by {group.assignor_name}"
        )
        return [about, *map(self.described_consumer, group.members)]

    def described_consumer(self, member: DescribedConsumer) -> str:
        has, wants = (
            shown({topic.topic_name: topic.partitions for topic in assignment.topic_partitions})
            for assignment in (member.assignment, member.target_assignment)
        )
        kind = "" if member.member_type else ", classic"
        return f"{member.member_id} epoch {member.member_epoch}{kind}: {has}" + (f", then {wants}" * (has != wants))

    def do_leave(self, group_id: str, *words: str) -> None:
        caller = self.world.call(5)
        members = [MemberIdentity(member_id="", group_instance_id=word.split("=")[1]) for word in words]
        request = LeaveGroupRequest(group_id=group_id, members=members)
        self.send("leave", None, self.world.groups.leave(request, caller, self.world.now_ms), caller)

    def do_commit(self, group_id: str, *words: str) -> None:
        if group_id == "appends":
            self.world.commit_appends()
        else:
            self.commit(None, group_id, list(words))

    def do_fetch(self, group_id: str, *words: str) -> list[str]:
        stable = "stable" in words
        wanted = [(word.rsplit("-", 1)[0], int(word.rsplit("-", 1)[1])) for word in words if word != "stable"]
        found = self.world.groups.fetch_offsets(group_id, wanted or None, require_stable=stable)
        if isinstance(found, ErrorCode):
            return [found.name]
        return [
            f"{topic}-{partition} " + (error.name if error else f"{commit.offset} {commit.metadata}".strip())
            for (topic, partition), (commit, error) in found.items()
        ] or ["nothing"]

    def do_describe(self, group_id: str) -> list[str]:
        group = self.world.groups.describe_group(group_id, 6)
        if group.error_code:
            return [f"{ErrorCode(group.error_code).name} {group.error_message or ''}".strip()]
        about = " ".join(filter(None, [group.group_state, group.protocol_type, group.protocol_data]))
        members = [
            " ".join(filter(None, [each.member_id, each.group_instance_id and f"instance {each.group_instance_id}"]))
            + (f": {synced(each.member_assignment) or 'nothing'}" if group.group_state == "Stable" else "")
            for each in group.members
        ]
        return [about, *members]

    def do_list(self, *states: str) -> list[str]:
        listed = self.world.groups.list_groups(ListGroupsRequest(states_filter=list(states)))
        error = [ErrorCode(listed.error_code).name] if listed.error_code else []
        return error + [f"{each.group_id} {each.group_state}" for each in listed.groups] or ["nothing"]

    def do_delete(self, *groups: str) -> None:
        caller = self.world.call(2)
        request = DeleteGroupsRequest(groups_names=list(groups))
        self.send("delete", None, self.world.groups.delete_groups(request, caller, self.world.now_ms), caller)

    def do_delete_offsets(self, group_id: str, *words: str) -> None:
        caller = self.world.call(0)
        topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
        for word in words:
            topic, partition = word.rsplit("-", 1)
            topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=int(partition)))
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[OffsetDeleteRequestTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        self.send("delete", None, self.world.groups.delete_offsets(request, caller, self.world.now_ms), caller)

    def do_topic_deleted(self, topic: str, *partitions: str) -> None:
        self.world.delete_partitions(*((topic, int(partition)) for partition in partitions))

    def do_sleep(self, duration_ms: str) -> None:
        self.world.slept_ms += int(duration_ms)

    def do_wait(self, delay_ms: str) -> None:
        self.world.wait(int(delay_ms))

    def do_hold(self, _appends: str) -> None:
        self.world.hold_appends()

    def do_refuse(self, _appends: str, code: str) -> None:
        self.world.refuse_appends(ErrorCode[code])

    def do_accept(self, _appends: str) -> None:
        self.world.refuse_appends(None)

    def do_resign(self) -> None:
        self.world.resign()

    def do_load(self, which: str) -> None:
        if which == "begins":
            self.world.elect()
        else:
            self.world.load()

    def do_restart(self) -> list[str]:
        self.world.restart()
        lost = [f"{client.name if client else 'admin'}: connection lost" for _, client in self.waiting.values()]
        self.waiting.clear()
        return lost

    # --- answers

    def answer(self, what: str, client: Client | None, response: Message) -> str:
        said = f"{client.name if client else 'admin'} {what}: "
        if isinstance(response, JoinGroupResponse):
            assert client is not None
            return said + self.joined(client, response)
        if isinstance(response, SyncGroupResponse):
            return said + (name(response.error_code) or synced(response.assignment) or "nothing to do")
        if isinstance(response, ConsumerGroupHeartbeatResponse):
            assert client is not None
            return said + self.beaten(client, response)
        if isinstance(response, LeaveGroupResponse):
            codes = [response.error_code, *(each.error_code for each in response.members)]
            return said + (", ".join(filter(None, map(name, codes))) or "ok")
        if isinstance(response, OffsetCommitResponse | OffsetDeleteResponse):
            group_error = response.error_code if isinstance(response, OffsetDeleteResponse) else 0
            codes = [each.error_code for topic in response.topics for each in topic.partitions]
            return said + (name(group_error) or ", ".join(name(code) or "ok" for code in codes))
        if isinstance(response, DeleteGroupsResponse):
            return said + ", ".join(f"{each.group_id} {name(each.error_code) or 'ok'}" for each in response.results)
        assert isinstance(response, HeartbeatResponse), response
        return said + (name(response.error_code) or "ok")

    def beaten(self, client: Client, response: ConsumerGroupHeartbeatResponse) -> str:
        if response.error_code:
            return f"{name(response.error_code)} {response.error_message or ''}".strip()
        client.generation = response.member_epoch
        if response.assignment is None:
            return f"epoch {response.member_epoch}"
        client.may_own = {
            self.world.image.topic_name(each.topic_id) or "?": list(each.partitions)
            for each in response.assignment.topic_partitions
        }
        return f"epoch {response.member_epoch}, may own {shown(client.may_own)}"

    def joined(self, client: Client, response: JoinGroupResponse) -> str:
        if response.error_code:
            if response.error_code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.UNKNOWN_MEMBER_ID):
                client.member_id = response.member_id
            told = f", is to be {response.member_id}" if response.error_code == ErrorCode.MEMBER_ID_REQUIRED else ""
            return name(response.error_code) + told
        client.member_id, client.generation = response.member_id, response.generation_id
        client.protocol = response.protocol_name
        leads = response.leader == response.member_id
        members = [
            each.member_id + (f" (instance {each.group_instance_id})" if each.group_instance_id else "")
            for each in response.members
        ]
        return (
            f"{response.member_id} in generation {response.generation_id} by {response.protocol_name}, "
            + (f"leads {', '.join(members)}" if leads else f"led by {response.leader}")
            + (", keeps the assignment" if response.skip_assignment else "")
        )


def name(code: int) -> str:
    return ErrorCode(code).name if code else ""


def shown(assignment: Mapping[str, Iterable[int]]) -> str:
    """Partitions by topic, in words."""
    return (
        " ".join(f"{topic}-{','.join(map(str, sorted(parts)))}" for topic, parts in sorted(assignment.items()))
        or "nothing"
    )


def assignment(text: str) -> bytes:
    """What a leader assigns: `t:0,1+u:2` as consumers say it, other words as they are."""
    if ":" not in text:
        return text.encode()
    topics = [
        TopicPartition(topic=topic, partitions=[int(each) for each in parts.split(",")])
        for topic, parts in (each.split(":") for each in text.split("+"))
    ]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=topics, user_data=None), 0)


def synced(data: bytes) -> str:
    """What a SyncGroup has brought, in words."""
    try:
        said = decode_versioned(ConsumerProtocolAssignment, data)
    except DecodeError:
        return data.decode()
    return shown({each.topic: each.partitions for each in said.assigned_partitions})
