"""The limits of our own: what Kafka leaves unbounded and this broker does not, each with its reason.

Limits that a user may set are settings (broker.py); these are not, because no user has had a reason to change them.
"""

from __future__ import annotations

from protocol import frames

# A client pipelines at most a handful (max.in.flight.requests.per.connection is 5); beyond this its socket is not read.
REQUESTS_IN_FLIGHT_PER_CONNECTION = 64

# Bytes waiting for a reader that is slower than its questions; file regions count nothing, they are not in memory.
ANSWER_BYTES_PER_CONNECTION = 16 * 1024 * 1024

# Turns of one connection before the others get theirs: a fast sender must not starve a hundred slow ones. While turns
# take long, because many send at once or what they ask for takes long, it is half, a quarter... of that.
REQUESTS_PER_LOOP_TURN = 16

# Memory for clients in all, where queued.max.request.bytes does not say: over all connections frames that come in parts
# or are held back, requests that are not begun, answers that are not read; and fetch sessions and groups. Each
# connection has limits of its own, and a thousand connections must not take a thousand times those. Two of the largest
# frames fit, or one beside all that sessions and groups may have. Beyond it the connection that holds most, of the
# address that holds most, is hung up on.
HELD_BYTES = 256 * 1024 * 1024

# Parked, a request is about so large.
PARKED_BYTES = 1024

# An answer that waits for the fsync of flush.messages may do so for this long on top of its request's own timeout: in
# Kafka that one begins when the fsync has ended, however long it takes. A disk slower than this is as good as gone.
LONGEST_FSYNC_MS = 60_000

# Logs of one directory closed at the same time when the broker stops, at least. Closing is waiting for fsyncs, and a
# journal commits those that come together at once; with num.recovery.threads.per.data.dir as shipped, 5,000 partitions
# would outlast the ten seconds that `docker stop` has patience for.
LOGS_CLOSED_AT_ONCE = 16

# Records in a compressed batch, which may have 18 million of them in 180 KB. A batch that has to be rebuilt, and one
# that a time is looked up in, is taken apart in memory: 200 bytes and 4 us a record. librdkafka's largest
# batch.num.messages is the same number; Java's producer splits what is refused as too large.
RECORDS_PER_COMPRESSED_BATCH = 1_000_000

# What the compressed batches of one Produce decompress to, as long as they are looked at between those of others: some
# ten milliseconds. What is beyond is looked at on a thread, one request at a time.
OPENED_AT_ONCE_BYTES = 4 << 20

# Files of logs open at once: more gains nothing, for a segment is opened again when it is needed. And partitions whose
# records go into one Fetch, each of which may hold a file open; what is beyond comes with the next.
MOST_LOG_FILES = 4096
MOST_FETCH_REGIONS = 1000

# After this, work that found no descriptor left is tried again. Clients hold most of them, and some will have gone.
DESCRIPTOR_RETRY_MS = 1_000

# After this, a folder that is to be removed is tried again: something was written into it while its files went.
FOLDER_RETRY_MS = 1_000

# Records that one Produce names as refused (KIP-467), beyond the first of each batch. A name takes 200 bytes here and
# 70 in the answer, and a compressed batch of a few hundred bytes may hold a million without a key. librdkafka's batches
# are of 10,000 records at most, as shipped.
NAMED_RECORDS = 10_000

# Parked answers over all connections, and of one address. A parked fetch costs about 1 KB; this bounds them to a few
# hundred megabytes. Once half of either are, a connection that has a few already gets its answers early: the rest is
# for those with one. The answers of an address that has all it may have are early, those of others are not.
PARKED_OPERATIONS = 200_000
PARKED_PER_ADDRESS = 20_000
FEW_PARKED = 4

# Requests of clients that wait for the leader of a quorum, or for its answer. Each is kept whole: some kilobytes.
REQUESTS_TO_CONTROLLER = 10_000

# Answers that a connection keeps for the same requests to come again, heartbeats of members, and the bytes of such a
# request. A client has one member on a connection, or a few.
MOST_REPEATED = 128
REPEATED_BYTES = 512

# Parked under one partition, from which on they are looked at in slices when it moves: each takes some 10 us, and some
# 100 if it is answered.
WOKEN_AT_ONCE = 64

# Member ids handed out (MEMBER_ID_REQUIRED) and not used yet, per group: each lives a session timeout, so a client that
# asks and never comes back, in a loop, would fill memory. Kafka has no bound here.
PENDING_MEMBERS_PER_GROUP = 10_000

# What the members of all groups say of themselves, and the offsets committed for them. A joining member may bring 8 MB,
# which the coordinator keeps as long as the member, and a commit 4 KB a partition; 5,000 members of usual size take 5
# MB, 100,000 offsets 40. Beyond it an address with more than the average gets GROUP_MAX_SIZE_REACHED, or
# INVALID_COMMIT_OFFSET_SIZE for offsets that are new. Of queued.max.request.bytes, if that is larger, groups may have
# the part that they have of what is in force without it.
GROUP_METADATA_BYTES = 64 * 1024 * 1024
GROUP_SHARE = 4

# Groups deleted in one step: each takes a record in the log of its offsets, and one for each of them.
GROUPS_DELETED_AT_ONCE = 50

# Characters of a group's id, which is in each of its records and answers. Longer ones are INVALID_GROUP_ID.
GROUP_ID_LENGTH = 1_000

# Assignors in one JoinGroup: clients name one to four; every member of a group multiplies them.
PROTOCOLS_PER_MEMBER = 100

# How long a rebalance for which no member has come back waits before it looks again, at least: a client may ask for a
# rebalance timeout of 0, and the broker would do nothing else until the members' sessions end.
REBALANCE_WAIT_MS = 1_000

# Characters of a client or instance id that a member id begins with: both may be as long as any string, and then a
# member id, which has a UUID behind it, could be neither told nor written. Kafka fails at the next SyncGroup.
MEMBER_NAME_LENGTH = 1_000

# Whatever is not a Produce: its values take up to 116 times its bytes once decoded (measured over all APIs on hostile
# frames), so socket.request.max.bytes alone would let one request of 100 MB take 11 GB. Assignments of groups with
# thousands of members and fetches of tens of thousands of partitions stay well below. What a controller says to a
# broker does not: it is as large as the cluster, and nothing is gained by refusing it.
REQUEST_BYTES_EXCEPT_PRODUCE = 8 * 1024 * 1024

# Named by one Produce, topics counted too. Without records, a partition is 8 bytes there, and some 500 once decoded and
# answered. Looked at, a microsecond a partition, in a request of this size: in a smaller one there are some 4,000 at
# most, and they are decoded and refused in some twenty milliseconds.
PARTITIONS_PER_PRODUCE = 20_000
LARGE_PRODUCE_BYTES = 32 * 1024

# A Produce of this size is handled in slices, however few partitions it names: to check and write so much takes a few
# milliseconds.
LONG_PRODUCE_BYTES = frames.KEPT_BYTES  # and so its frame is its own

# Made by one CreateTopics or CreatePartitions; topics made by one Metadata. Each costs a folder, open files and writes
# to the metadata store; a count with a wrong byte in it must not take all memory. Kafka without ZooKeeper has the same
# limit for the first two.
NEW_PARTITIONS_PER_REQUEST = 10_000

# What is written of a topic, its settings among it, or of any other settings: a list of throttled replicas can be as
# long as a request. ZooKeeper takes 1 MiB at once (jute.maxbuffer) and hangs up on one who sends more. It is unknown
# then whether it was done, so it would be sent again, and the connection lost again, for good.
TRANSACTION_BYTES = 1_000_000

# New topics and changed settings written to the metadata store in one step: to write one takes some 100 us. Each time
# all names of topics are read, to see whether one of the new ones is among them.
WRITTEN_AT_ONCE = 50

# Names that partition folders of a log directory have given up, until they are durable, which may be at its next stop:
# each is a text that stays where a deleted topic was, and keeps a page of memory. Beyond it, any name may have been one
# of them: the next new partition waits for an fsync, and they are forgotten.
VACATED_NAMES = 500

# Preferred log directories, by AlterReplicaLogDirs, of partitions that are not here (yet): the oldest is forgotten.
REMEMBERED_DIRECTORIES = 10_000

# Read of a log, and appended to its copy in another log directory, in one step; the loop is held up by the append.
MOVED_BYTES_PER_STEP = 512 << 10
MOVE_RETRY_MS = 20  # until a flush that was under way is looked at again, or there is a descriptor
LONG_POLL_STEP_MS = 100  # fetches without news are answered on multiples of this: one wake-up for many of them
LONG_POLL_SHARE = 5  # or of their wait divided by this, if that is less

# How long a fetch waits for the disk to bring what leads to its records, whatever it says of waiting: a client may take
# an empty answer for the end. Longer than a slow disk needs, shorter than clients wait for an answer. Then it is
# KAFKA_STORAGE_ERROR.
COLD_PATIENCE_MS = 10_000

# SO_SNDBUF where socket.send.buffer.bytes is as Kafka ships it: a reader of much wakes us, and is woken, less often.
SHIPPED_SEND_BUFFER_BYTES, SEND_BUFFER_BYTES = 102_400, 256 * 1024

# Logins that wait for a function of the user's own at once; those beyond are refused.
LOGINS_BESIDE = 1_000

# Rounds by which a key is made of password.encoder.secret: a third of a second, in which nothing else is done.
PASSWORD_ITERATIONS = 1_000_000

# Passwords that are set for one broker at run time: to encipher one takes three milliseconds, in which nothing else is
# done. Eighteen listeners have all seven that there are.
PASSWORDS_OF_A_BROKER = 128

# To reach another broker and to learn who it is: socket.connection.setup.timeout.ms of Kafka's clients. And between two
# tries, doubled each time: reconnect.backoff.ms and reconnect.backoff.max.ms of the same.
PEER_SETUP_MS = 10_000
PEER_BACKOFF_MS, MOST_PEER_BACKOFF_MS = 50, 1_000

# A handshake of TLS, from when a client has connected. Apache's broker waits for connections.max.idle.ms.
HANDSHAKE_MS = 10_000

# Messages made for one fetch of a client that knows only the old formats, which is held in memory, and the least that
# each of its partitions may have of it. A batch that is larger alone is made whole.
CONVERTED_BYTES_PER_FETCH = 1 << 20
CONVERTED_BYTES_PER_PARTITION = 32 << 10

# How long until a marker that could not be written is tried again. In Kafka the sender looks at its queue as often.
MARKER_RETRY_MS = 100

# Partitions of a transaction that are given their markers in one step, when it ends; those of a larger one are in
# slices. A marker takes some 50 us.
MARKERS_AT_ONCE = 64

# When a partition counts as deleted that waits for a marker. An image of the cluster is whole long before; a marker
# left out by mistake would let a later transaction of the producer show what this one has taken back.
DELETED_IF_UNKNOWN_MS = 10_000

# Transactional ids kept by one broker, some 600 bytes each until they have been unused for
# transactional.id.expiration.ms, a week as shipped; and characters of one. Programs that take a new id every minute for
# each of ten writers come to half as many. Beyond it POLICY_VIOLATION for new ones, at an address that has more than
# others have on average; longer ones are INVALID_REQUEST.
TRANSACTIONAL_IDS = 200_000
TRANSACTIONAL_ID_LENGTH = 1_000

# Producers that one partition remembers, and all of a broker, some 400 to 1,200 bytes each until they have been silent
# for producer.id.expiration.ms, a day as shipped; any batch may bring a new id. Beyond it those that wrote longest ago
# are forgotten, of the partitions with most. What is forgotten is whether a batch sent again was written before: while
# a client tries for two minutes, more than 80 new producers a second would have to write to its partition.
PRODUCERS_PER_PARTITION = 10_000
PRODUCERS = 100_000

# Of a request other than Produce: from here on it is decoded in slices, between those of others. Decoding this much
# takes some ten milliseconds at worst, and clients' requests are rarely larger.
LARGE_REQUEST_BYTES = 16 * 1024

# Decoded, and until it is answered, such a request counts as so many times its bytes in the account of memory. Not a
# Produce: its records are not decoded.
DECODED_TIMES = 8

# In all arrays of such a request. Decoded, an element takes some 100 to 500 bytes, and as much again in the answer; a
# frame of 8 MB could have four million. A consumer of 20,000 partitions, or an admin client that asks about them, has a
# tenth of this.
ELEMENTS_PER_REQUEST = 200_000

# The same where the handler does all of it at once, at some five to ten microseconds an element.
ELEMENTS_AT_ONCE = 5_000

# The same in one OffsetCommit or TxnOffsetCommit, whose offsets are written so many at a time; and read, by
# OffsetFetch.
OFFSETS_PER_COMMIT = 10_000
OFFSETS_COMMITTED_AT_ONCE = 1_000
OFFSETS_FETCHED_AT_ONCE = 100

# Partitions in one Produce or Fetch, from which on it is handled in slices: each takes some 30 us.
MANY_PARTITIONS = 500

# In one Fetch, those that its session remembers counted. One takes 5 us to look at, 300 bytes to remember.
PARTITIONS_PER_FETCH = 50_000
PARTITIONS_IN_FETCH_SESSIONS = 200_000  # of all clients; from a sixteenth on, large sessions go with their connections

# In one share session. Each that is fetched from is loaded, and takes some 10 us to look at.
PARTITIONS_PER_SHARE_SESSION = 2_000

# How long a broker's request waits for the metadata store to say whether it is one: a controller that was elected a
# moment ago is not known yet. Longer than the store takes, shorter than a controller waits for an answer.
PERMISSION_PATIENCE_MS = 10_000

# How long a question about the cluster waits at a broker that has just started, for a controller to tell it of one.
# Longer than an election takes, shorter than clients wait for an answer.
METADATA_PATIENCE_MS = 10_000

# How often it is said that a broker cannot be reached. A follower tries its dead leader ten times a second.
PEER_FAILURES_SAID_EVERY_MS = 60_000
