"""Every bound in Stentor has a name here, and a reason.

Units come last in the names. Nothing that arrives from a network or a disk is allocated,
looped over or queued before it was compared with one of these.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- frames -------------------------------------------------------------------------------------

FRAME_BODY_BYTES_MAX: Final = 16 * MIB
"""A frame is one batch and a little more: a larger frame would hold up everything else on the connection."""

CONTROL_BODY_BYTES_MAX: Final = 64 * KIB
"""Requests are small: marks for 1,024 partitions take 16 KiB. Answers may be as large as a frame."""

UNGREETED_BODY_BYTES_MAX: Final = 8 * KIB
"""A greeting with the longest names. Before the handshake a stranger costs the broker only one small buffer."""

ERROR_DETAILS_MAX: Final = 16
"""What an error says besides its text: a few numbers and names."""

READ_BUFFER_BYTES: Final = 1 * MIB
"""The reused read buffer of a connection: big enough for full-speed batches to arrive whole."""

CLIENT_READ_BUFFER_BYTES: Final = 2 * MIB + 64 * KIB
"""The same in a client: the largest push of history arrives whole."""

READ_BUFFER_IDLE_BYTES: Final = 16 * KIB
"""What a connection starts with, so that 10,000 quiet clients cost 160 MB, not 10 GB."""

RECEIVE_BYTES_MAX: Final = 96 * MIB
"""What all connections of a broker together may hold to receive with, beyond the small buffer of each: some frames of
the largest kind, or full-speed buffers for a hundred publishers."""

RECEIVE_RESERVED_BYTES: Final = 32 * MIB
"""The part of it that only the other brokers may use: strangers cannot stop replication."""

# --- schemas ------------------------------------------------------------------------------------

SCHEMA_COLUMNS_MAX: Final = 1_000
"""Columns of one schema, nested ones included; a control message has room for about so many."""

SCHEMA_DEPTH_MAX: Final = 8
"""How deep columns may be nested: every level is a step of a recursion."""

SCHEMA_NAME_CHARACTERS_MAX: Final = 128
"""The name of a column or of a time zone."""

SCHEMA_VERSIONS_MAX: Final = 1_000
"""Versions of a topic's schema; far below what the 16 bits in the header of a batch can name."""

SCHEMA_BYTES_MAX: Final = 256 * KIB
"""All versions together: they are part of the topic's record, and one swap of the coordination store holds it."""

# --- batches ------------------------------------------------------------------------------------

BATCH_BYTES_MAX: Final = FRAME_BODY_BYTES_MAX - 4 * KIB
"""A batch is sent in one frame, which needs some room of its own."""

BATCH_MESSAGES_MAX: Final = 1_000_000
"""No body of 16 MiB usefully holds more: a count above this is a mistake or an attack."""

BATCH_EXPANDED_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""What a compressed batch may expand to. Readers pay for it, so it is not much more than an uncompressed batch."""

BATCH_HEADERS_MAX: Final = 1_000_000
"""Headers of all messages of a batch together; a reader makes Python objects of them."""

ROWS_ENCODING_MESSAGES_MAX: Final = 16
"""A Python loop decodes packed rows; above this number Arrow is smaller and faster."""

PLAIN_MESSAGES_MAX: Final = 500_000
"""Messages in Arrow bodies that a process handles without pyarrow, at 0.1 µs more each, before it loads it."""

PLAIN_S: Final = 1.0
PLAIN_MESSAGES_MIN: Final = 10_000
"""A process that handles so many messages for longer than this is no short script, and loads pyarrow."""

RUN_BYTES_MAX: Final = 2 * MIB
"""Small batches that a reader decodes into one Arrow batch. The fixed costs of a run vanish far below it, and who takes
a batch from a shared subscription does not leave the others without work."""

RUN_MESSAGES_MAX: Final = 16_384
"""The same in messages; tiny ones reach it before the bytes do."""

MESSAGE_HEADERS_MAX: Final = 1_000
"""Headers are metadata; more than this is a payload in the wrong place."""

MESSAGE_HEADERS_BYTES_MAX: Final = 1 * MIB
"""The same: all of a message's headers together."""

MESSAGE_VALUE_BYTES_MAX: Final = 8 * MIB
"""Half a batch, which always leaves room for key, headers and framing."""

MESSAGE_KEY_BYTES_MAX: Final = 64 * KIB
"""Keys identify things; they are hashed, compared and indexed."""

TABLE_BATCH_ROWS_MAX: Final = 32_768
"""Rows of one batch for a table. Every member of the chain folds each of them into its copy of the table, in the loop
and in order: so many take some 30 ms. Batches of a producer's default size have fewer."""

TABLE_BATCH_TERMS_ROWS_MAX: Final = 4_096
"""The same where rows have conditions or expire: each costs six times as much, in header fields that are looked at."""

TABLE_BATCH_HEADERS_MAX: Final = 16_384
"""Headers of all rows of such a batch together, which the head looks through as well."""

TABLE_COMMIT_ROWS: Final = 16_384
"""Rows that a table takes over at a time once they are committed: a sync may commit a million of them."""

# --- names --------------------------------------------------------------------------------------

TOPIC_NAME_CHARACTERS_MAX: Final = 200
"""Fits into a file name, with room for what Stentor adds to it."""

CLIENT_NAME_CHARACTERS_MAX: Final = 200
"""Shown in tables that people read."""

PARTITIONS_PER_TOPIC_MAX: Final = 1_024
TOPICS_MAX: Final = 10_000
PARTITIONS_PER_BROKER_MAX: Final = 10_240
"""Copies of partitions on one broker: ten thousand, and some for Stentor's own topics. Each needs an open file."""

PARTITIONS_MAX: Final = 100_000
"""In a whole cluster: the route table must fit into one answer."""

# --- publishing ---------------------------------------------------------------------------------

PRODUCER_IN_FLIGHT_BATCHES_MAX: Final = 32
"""Per partition. The dedupe window is the same size, so every retry can be recognised (C18)."""

PRODUCERS_PER_PARTITION_MAX: Final = 10_000
"""Bounds the memory for duplicates: the broker first forgets the producer that was silent for longest."""

PRODUCERS_PER_CONNECTION_MAX: Final = 1_000
"""Producer ids whose tokens one connection has shown: a few bytes each. A client's producers share few ids."""

PRODUCER_SEARCH_BATCHES_MAX: Final = 200_000
PRODUCER_SEARCH_BYTES_MAX: Final = 256 * MIB
"""How many headers and bytes a head reads to find a batch that it no longer remembers (C32). It takes some tenths of a
second beside the loop. A batch that is not found within them has an unknown outcome."""

PRODUCER_SEARCHES_WAITING_MAX: Final = 1_000
"""Batches per partition that wait for such a search: those of a few connections, which are not read from meanwhile."""

PRODUCER_SEARCH_KEPT_S: Final = 60.0
"""How long the result of a search is kept: whoever sends one old batch again sends others after it."""

PRODUCER_BATCH_MESSAGES: Final = 2_000
PRODUCER_BATCH_BYTES: Final = 256 * KIB
"""Where encoding and per-batch costs have flattened out; more only adds latency."""

PRODUCER_TURN_MESSAGES: Final = 32
"""Messages without a key that stay together before the next partition has its turn: a few make one batch instead of one
for each partition, and a burst of some hundreds is spread. Lanes that gather more than this get one at a time."""

PRODUCER_BUFFER_BYTES: Final = 32 * MIB
"""What a producer may hold unacknowledged before `send` waits (back-pressure)."""

PRODUCER_RESEND_S: Final = 0.1
PRODUCER_EXPIRE_S: Final = 0.25
"""When a producer sends a refused batch again, and how often it looks for messages whose deadline has passed."""

PUBLISHERS_MAX: Final = 1_000
"""Producers that a client keeps for `publish`, one per topic and ack level; the oldest makes room for the next."""

FAILURES_KEPT_MAX: Final = 1_000
EVENTS_KEPT_MAX: Final = 1_000
"""Failed messages of a producer, and events of a subscription, that are kept until the application asks for them."""

UNSYNCED_BYTES_MAX: Final = 64 * MIB
"""A log this far ahead of its disk stops reading from its publishers until a sync is through."""

# --- delivery -----------------------------------------------------------------------------------

TABLE_WATCH_CHANGES: Final = 10_000
"""Changes that wait for who watches a table, unless it says another number; beyond it, those of one key become one."""

SUBSCRIPTION_CREDIT_BYTES: Final = 8 * MIB
"""What a broker may push to one stream before it is told that the application took some."""

STREAM_CREDIT_BYTES_MAX: Final = 256 * MIB
"""A client cannot make the broker have more than this under way for one stream."""

UNTAKEN_PUSH_BYTES: Final = 64 * KIB
"""Smaller pushes that a client has not taken are remembered together: what lag costs a stream stays small."""

CREDIT_TOLD_S: Final = 1.0
"""A client tells the broker what its application took at least this often, so that lag can be seen from outside."""

LAGGING_TOLD_MAX: Final = 20
"""How many subscribers statistics name that are furthest behind."""

DELIVERY_BYTES: Final = 512 * KIB
"""One push: small enough that streams take turns, big enough that a push costs little per byte."""

HISTORY_BYTES: Final = 2 * MIB
"""The same for a reader that catches up, on a connection where nobody waits for news: less work per byte for both."""

HISTORY_STREAMS_MAX: Final = 16
"""With more streams on its connection than this, history goes in pushes of DELIVERY_BYTES: streams take turns."""

HISTORY_SESSIONS_MAX: Final = 100
"""With more connections than this, history goes in pushes of DELIVERY_BYTES: what is under way to all stays bounded."""

WRITE_BUFFER_BYTES_MAX: Final = 1 * MIB
"""Per connection; above it the streams of that connection wait for the socket."""

UNSENT_BYTES_MAX: Final = 16 * MIB
"""Per connection: answers and news from before its socket was full. Who is further behind is dropped."""

UNSENT_TOTAL_BYTES_MAX: Final = 128 * MIB
"""The same for all clients of a broker together: those that have not read for longest are dropped first."""

TAIL_CACHE_BYTES: Final = 4 * MIB
"""Per partition: the newest batches are kept in memory so that live subscribers cost no read."""

TAIL_CACHES_BYTES: Final = 256 * MIB
"""All partitions of a broker together: full caches for 64 of them, and for ten thousand what came in last."""

TAIL_CACHE_IDLE_S: Final = 10.0
"""A partition that got nothing for this long, or up to twice as long, has no tail cache: its readers have had it."""

STREAMS_PER_CONNECTION_MAX: Final = 4_096
"""A stream is one partition of one subscription."""

STALE_READ_S: Final = 0.25
"""How long a broker tries to be certain of the end for a reader that accepts an older one; see CONFIRM_S."""

DAMAGE_READS_MAX: Final = 64
"""Reads that a broker spends to confirm damage that a client reports: one delivery is a read or two."""

CONNECTIONS_MAX: Final = 10_000

STRANGER_LOG_LINES_PER_S: Final = 10
"""Log lines about refused clients and malformed requests, per broker: a flood of them must not fill a disk."""
ANTECHAMBER_CONNECTIONS: Final = 64
ANTECHAMBER_S: Final = 0.5
"""Beyond the limit of connections, so many newcomers may say within this time that they are brokers."""

HTTP_CONNECTIONS_MAX: Final = 128
"""Those who ask for health and metrics are few. For one more, the one that was quiet for longest is closed: logs have
their descriptors, and health stays reachable."""

LISTEN_BACKLOG: Final = 1_024
"""Connections that the system keeps until they are accepted: a reconnect storm arrives all at once."""

DESCRIPTORS_RESERVED: Final = 128
"""Open files that clients and new logs leave free: for segments, reads, books, the store and other brokers."""

DESCRIPTORS_CLIENTS_MIN: Final = 64
"""Topics may not take the last open files: so many clients can always connect."""

DESCRIPTORS_PARTS: Final = 8
"""Where few files may be open, none of these parts is more than this fraction of them."""

DESCRIPTORS_WANTED: Final = 1_000_000
"""What a process asks for where the system names no limit."""

HTTP_REQUEST_S: Final = 15.0
"""A connection to the HTTP port must have asked something by then, and taken its answer: no slow loris."""

REQUESTS_UNDER_WAY_MAX: Final = 64
"""Control requests that one connection may have unanswered; a broker refuses more."""

CLIENT_REQUESTS_UNDER_WAY_MAX: Final = REQUESTS_UNDER_WAY_MAX // 2
"""What a client asks at one time: requests that it gave up may still be under way, and count at a broker."""

LISTENERS_MAX: Final = 8
"""One per network that a broker is in; each multiplies the route changes that it encodes."""

# --- time ---------------------------------------------------------------------------------------

HANDSHAKE_S: Final = 5.0
"""A broker closes a connection that has not greeted by then (slow loris). A client whose greeting is not answered for
this long concludes that no broker listens there."""

PARTIAL_FRAME_S: Final = 30.0
"""A frame that has started must be complete within this time, or the connection is closed."""

HEARTBEAT_S: Final = 5.0
"""How often a client pings an otherwise silent connection."""

SILENCE_S: Final = 20.0
"""A peer that sent nothing for this long, despite pings, is gone."""

SWEEP_S: Final = 1.0
"""How often a broker looks for connections that are half-open, stuck or silent."""

LOOP_LAG_S: Final = 3.0
"""A broker that itself stood still for this long counts everyone's silence anew: it was its own."""

SHUTDOWN_S: Final = 10.0
"""How long a stopping broker or client waits for what is under way."""

LAST_BYTES_S: Final = 0.05
"""What clients had sent when a broker stops is still read this long, and not answered: they send it again elsewhere."""

ACTIVATION_S: Final = 10.0
"""How long a start or a new topic waits until its chains are at work."""

DISK_AGAIN_S: Final = 1.0
"""A write of the broker's own books that found the disk full, or a sync without a descriptor, is tried again then."""

DEFAULT_TIMEOUT_S: Final = 30.0
"""The deadline of a call that names none: every wait has an end."""

RECONNECT_DELAY_S: Final = 0.05
RECONNECT_DELAY_S_MAX: Final = 1.0
"""Back-off doubles from the first to the last of these, with full jitter."""

RECONNECT_SPREAD_S: Final = 0.0005
"""First attempts are spread over this for each client of a lost broker: what greeting one and routes cost."""

LINK_OPEN_S: Final = 1.5
"""How long a client waits for one broker of several to greet it before it tries others."""

LINK_RACE_MAX: Final = 3
"""How many brokers a client tries at one time when it looks for a home."""

LINK_HEAD_START_S: Final = 0.2
"""A broker that is tried first has this long to answer before the next one is tried beside it."""

LINK_RELAY_S: Final = 0.3
"""A broker that does not answer a client for so long is also tried through another one: with the time that its silence
takes to be noticed, a client that is cut off from a head alone publishes again within two seconds."""

LINK_WATCH_S: Final = 0.2
"""In a cluster, a client that waits for a broker pings it after this much silence."""

LINK_SILENCE_S: Final = 0.9
"""In a cluster, a client leaves a broker that did not answer pings for this long."""

NEW_HEAD_S: Final = 1.0
"""How long a client that asks where the messages end waits for a head that is new, before it asks another member."""

LINK_IDLE_S: Final = 1.0
"""A link of which nothing is wanted is pinged this often: a thousand idle clients are a few per cent of a core."""

LINK_AVOIDED_S: Final = 2.0
"""How long a client does not ask a broker again that said it is cut off from its cluster."""

LINK_CLOSE_S: Final = 0.5
"""How long a client that closes waits for its last words to be sent."""

LINK_PROVEN_S: Final = 0.5
"""A link that lived this long was a good one: the next back-off starts small again."""

# --- cluster ------------------------------------------------------------------------------------

PEER_HEARTBEAT_S: Final = 0.1
"""How often brokers send each other a heartbeat."""

PEER_SILENCE_S: Final = 0.7
"""A broker that two others have not heard for this long counts as dead: seven heartbeats (C15)."""

REMOVALS_S: Final = 1.2
"""In so long a controller gives up no more than a minority of the brokers for being silent (C15). Longer, and the next
one to fail after another has come back would be waited for."""

CONTROLLER_SILENCE_S: Final = 0.7
"""The same for the controller, before a majority replaces it (C16)."""

ELECTION_STAGGER_S: Final = 0.05
"""Candidates for the controller wait this long for each one ranked before them."""

PEER_DIAL_S: Final = 0.5
"""How long a broker waits for another to accept its connection, before it tries again."""

PEER_PROVEN_S: Final = 0.5
"""A connection to a broker that ends sooner is not dialled again at once: its other side refuses something."""

GATHER_S: Final = 0.01
"""Reports to the controller and what members tell it wait this long for others, to be handled together."""

PEER_LOOK_S: Final = 1.0
"""How often a broker reads the store to confirm what another broker says: that it is registered, or was restarted."""

SECRET_ROTATION_S: Final = 60.0
"""Least time between two rotations of a cluster's secret: brokers that reach the store learn the first in time."""

RECOVERY_EPOCHS: Final = 1_000_000
"""By so much an unclean recovery raises the epoch: above any that a store forgot when it was restored."""

LEASE_S: Final = 3
"""Lifetime of the liveness key in the store, which is a slow second observer; etcd grants at least two seconds."""

STORE_AWAY_S: Final = 3.0
"""A broker that starts and does not reach its coordination store for this long serves readers meanwhile."""

STORE_AGAIN_S: Final = 1.0
STORE_TOLD_S: Final = 60.0
"""How often such a broker asks the store again, and how often it logs that it still waits."""

STORE_WATCH_S: Final = 0.2
"""A change that another broker tells of should come through the watch within this time; then the store is read."""

RUMOUR_ASK_S: Final = 0.2
"""How long a broker waits before it asks the store again about a chain that it only heard of (C28)."""

TOPIC_CHANGE_TRIES_MAX: Final = 5
"""How often a change of a topic is tried; each time somebody else has changed the topic meanwhile."""

LINK_QUIET_S: Final = 1.0
"""A predecessor reports a successor that it cannot link to for this long (C15)."""

REPLICA_STALL_S: Final = 2.0
"""A member whose disk makes no progress for this long while there is something to do is reported, by its predecessor
or by itself (C14, C31): with the change of the chain, publishers wait for less than three seconds."""

REPLICA_SLOW_S: Final = 4.0
"""A member whose link is so slow that it stays this far behind its predecessor is reported: every publish waits for it
(C14)."""

SYNC_SLOW_S: Final = 1.0
SYNC_SLOW_FOR_S: Final = 5.0
SYNC_SLOW_TIMES: Final = 10
"""A member is slow if for five seconds each of its syncs took longer than a second, and ten times as long as those of
its neighbours: then it leaves its chain, since every publish waits for it (C14)."""

SLOW_PAUSE_S: Final = 30.0
SLOW_PAUSE_S_MAX: Final = 960.0
"""A member that left its chains because it was slow is not tried again for this long, doubled each time: a try makes
every publish wait for some seconds."""

JOINT_STALL_S: Final = 0.4
JOINT_SLOW_S: Final = 1.5
"""The same for a joiner, which holds up commits in joint mode before it is useful: it gets less time (C11)."""

JOINER_HELD_OFF_S: Final = 5.0
JOINER_HELD_OFF_S_MAX: Final = 60.0
"""A broker that failed as a joiner is not tried again for this long, doubled each time: a try may hold up commits."""

DISK_PROBE_S: Final = 0.5
"""How often a broker of a cluster finds out whether its disk takes a small synced write (C31)."""

DISK_PROBE_ALONE_S: Final = 5.0
"""The same for a single broker whose disk is well: nobody could replace it, and an append that fails tells at once."""

HEALTH_CHECK_S: Final = 1.0
"""How often a broker counts failed logs and short chains, for health checks, metrics and its log."""

BUSY_S: Final = 0.5
"""A broker whose syncs wait for longer than this, while others come to an end, has too much to do: its members are not
reported for standing still, since the work would only move to others."""

STALL_TIMES: Final = 4
"""Where all disks of a chain are slow, a member that stands still leaves only after this many times as long as a write
takes on the fastest of the others (C14)."""

UNABLE_S: Final = 0.5
"""How long a broker must report that its disk accepts no writes before it leaves its chains (C31). The disks of
replicas fill up together, so the first to notice may not be the only one."""

CONFIRM_AGAIN_S: Final = 0.2
"""A member that did not confirm the epoch is asked again after this long (C30)."""

CONFIRM_S: Final = 1.0
"""How long a broker tries to find out for certain where the messages end before it gives up; clients ask again."""

READS_WAITING_MAX: Final = 10_000
"""Questions for the end of one partition that wait at a broker; clients ask again when they are turned away."""

STORE_ASK_S: Final = 0.3
"""How often a broker finds out whether it reaches the coordination store (C29)."""

STORE_ANSWER_S: Final = 0.6
"""The deadline of that question."""

RESIGN_S: Final = 1.2
"""A controller that has not reached the store for this long, while another broker has, resigns (C29)."""

JOIN_LAG_MESSAGES: Final = 20_000
"""Commits wait for a joiner that is this near to the end, until it is a member (C11)."""

SUPERSEDED_S: Final = 60.0
"""How long a broker keeps its copy of a partition whose chain is full without it: the chain may need it again."""

MOVES_MAX: Final = 4
"""Replicas that move to another broker at the same time: moving uses disk and network that clients need too."""

REPORT_S: Final = 2.0
"""How often a broker reports to the controller what it holds, besides when something changed."""

REPLICAS_MAX: Final = 7
"""More members make every publish slower and hardly anything safer."""

REPLICAS: Final = 3
"""Default for topics, if there are enough brokers: one may fail while another is being replaced."""

# --- storage ------------------------------------------------------------------------------------

SEGMENT_BYTES: Final = 256 * MIB
"""After a crash one segment per partition is scanned: this is what a restart costs at most."""

SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENT_BYTES_MAX: Final = 2_048 * MIB

SYNC_THREADS: Final = 4
READ_THREADS: Final = 2
RECOVERY_THREADS: Final = 4
"""Threads that sync logs, that read history, and that open or make logs: enough to keep a disk busy."""

INDEX_CACHE_BYTES: Final = 32 * MIB
"""Indexes of sealed segments in memory, for the whole process: about 128 full ones."""

INDEX_INTERVAL_BYTES: Final = 32 * KIB
"""One sparse index entry per this much log: a lookup then scans 32 KiB at most."""

DISK_RESERVE_BYTES: Final = 32 * MIB
"""Writes are refused while less than this is free, so that metadata can still be written."""

CHECKPOINT_S: Final = 1.0
"""How often synced ends and commit floors are recorded (K3a)."""

JOURNAL_CHANGES_BYTES_MIN: Final = 1 * MIB
"""Changes of the journal that are kept beside it before it is written whole; more if the whole is larger."""

STATE_PIECE_BYTES: Final = 256 * KIB
"""What a copy that begins anew gets of its predecessor's derived state at once; heartbeats pass between two pieces."""

RETENTION_CHECK_S: Final = 5.0

ASIDE_AGE_S: Final = 7 * 86_400
"""How long copies of logs that were replaced are kept: time for a person to notice that one is needed."""

ASIDE_CHECK_S: Final = 600.0
"""How often a broker looks for copies that were put aside long ago."""

CURSOR_PARTITIONS: Final = 8
"""Of the internal topic: cursors with different names are moved by different brokers."""

CURSOR_SEGMENT_BYTES: Final = 1 * MIB
CURSOR_RETENTION_BYTES: Final = 4 * MIB
"""Each segment begins with a snapshot of all cursors, so a few small ones are all that is needed."""

CURSOR_SIZE_MAX: Final = 100_000
"""Cursors and positions in one partition of the internal topic: about a megabyte of memory, and of each snapshot."""

CURSOR_RESERVED: Final = 50_000
"""And as many more for positions that members of groups commit: as many partitions as groups there may own. Whoever
moves cursors by hand cannot use that up, so that a group's first commit finds room.
"""

CURSOR_MOVE_S: Final = 5.0
"""Within this time a cursor is moved, or its mover is told to try again: longer than a chain needs a new head."""

CURSOR_ASK_S: Final = 1.0
"""How long a broker waits for another one's answer about a cursor before it looks again who is the head."""

CURSOR_RETRY_S: Final = 0.1

CURSOR_CHECK_S: Final = 1.0
"""How often a broker looks after cursors: asks where they are, forgets those of deleted topics."""

CURSOR_REFRESH_S: Final = 60.0
"""How often the head of a partition whose messages wait for a cursor asks whether it has moved without passing here."""

CURSOR_TOPICS_ASKED_MAX: Final = 500
"""Topics whose cursors one question between brokers asks for."""

METRICS_RETENTION_S: Final = 7 * 86_400
"""How long the statistics that brokers publish are kept, whoever makes their topic: a week."""

METRICS_RETENTION_BYTES: Final = 256 * MIB
METRICS_SEGMENT_BYTES: Final = 16 * MIB
"""How much of them is kept, at most: a few days of a busy broker. Retention deletes whole segments: they are small."""

METRICS_FULL_S: Final = 300
"""How often a record of the topic `_metrics` tells of all partitions; those between tell of what changed."""

METRICS_QUIET_S: Final = 30
"""How long a broker says nothing in `_metrics` while nothing changes: readers sum up minutes, and each has a record."""

METRICS_PARTITIONS_MAX: Final = 500
"""Partitions that one record of the topic `_metrics` tells of: it must fit into a message."""

FLUSH_INTERVAL_MS: Final = 200
"""For topics with flush=interval: the time between syncs, which a power cut may lose."""

FLUSH_TURN_S: Final = 0.01
FLUSHES_PER_TURN: Final = 32
"""Partitions with flush=interval that one turn brings to disk: with more than these can serve, the interval grows."""

TICKED_PARTITIONS_MAX: Final = 1_000
"""Replicas that are looked at in one beat of the cluster; where there are more they take turns."""

PLANNED_PARTITIONS_MAX: Final = 500
"""Chains that the controller looks at before its loop looks at others: some 10 ms."""

PROPOSALS_MAX: Final = 4
"""Transactions of the controller under way at one time: with more, etcd answers none of them in time."""

PUSHED_RECORDS_MAX: Final = 500
"""Records that the controller tells in one frame: some 100 kB, which take a broker some 10 ms."""

STATISTICS_SLICE: Final = 100
"""Partitions whose numbers are gathered before the loop looks at others."""

STATISTICS_STREAMS_SLICE: Final = 2_000
"""The same for subscribers."""

# --- coordination -------------------------------------------------------------------------------

COORDINATION_SWAP_OPERATIONS_MAX: Final = 128
"""What etcd accepts in one transaction by default; the embedded store has the same limit."""

COORDINATION_SWAP_BYTES_MAX: Final = 1 * MIB
"""Keys and values of one swap: etcd takes 1.5 MiB, of which keys and framing need some."""

COORDINATION_KEY_BYTES_MAX: Final = 1 * KIB
"""Keys are names of topics, brokers and partitions."""

COORDINATION_ANSWER_BYTES_MAX: Final = 64 * MIB
"""An answer, or one event of a watch, that is larger is not read any further."""

COORDINATION_PAGE_ENTRIES: Final = 1_000
"""A range is read in pages, so that no single answer holds up the store."""

COORDINATION_PAGING_TRIES_MAX: Final = 3
"""How often a range is begun again because its revision was compacted between two pages."""

COORDINATION_TIMEOUT_S: Final = 3.0
"""The deadline of a call: longer than an election of etcd's leader, which takes one or two seconds."""

COORDINATION_ATTEMPT_S: Final = 2.0
"""What a read gives one endpoint before it asks the next: a paused etcd must not use up the deadline."""

COORDINATION_CONNECT_S: Final = 1.0
"""What an endpoint gets to take a connection; after that nothing was sent, and the next one is asked."""

COORDINATION_POLL_S: Final = 1.0
"""A watch that received nothing for this long asks its endpoint whether it still answers."""

COORDINATION_POLL_TIMEOUT_S: Final = 2.0
"""The deadline of that question; with the one before, a stopped etcd is noticed within three seconds."""

COORDINATION_STREAM_S: Final = 10.0
"""How old a watch's stream gets before it is replaced, without a gap: one that is stuck hides changes."""

COORDINATION_HISTORY_CHANGES: Final = 1_000
"""Changes the embedded store remembers for its watches; who is further behind reads everything anew."""

COORDINATION_LEASES_MAX: Final = 10_000
"""In the embedded store: each holds a timer."""

COORDINATION_LEASE_S_MAX: Final = 3_600
"""A lease says that somebody lives; hours would say nothing."""
