"""The bounds of consumer groups, with their reasons."""

from __future__ import annotations

from typing import Final

GROUP_SILENCE_S: Final = 45.0
"""A member of a group that says nothing for this long is gone, unless it chose another limit: longer than most handlers
hold the interpreter.
"""

GROUP_SILENCE_S_MIN: Final = 3.0
"""Several heartbeats must fit into that limit."""

GROUP_SILENCE_S_MAX: Final = 3600.0
"""And nobody should wait longer for a machine that is gone."""

GROUP_GRACE_S: Final = 2.0
"""A member whose connection is closed from its side has this long to be back: a broken link is made again in less."""

GROUP_OWN_SHARE: Final = 0.9
"""Of a lease, by a member's own clock: the clocks of a member and of its head do not run at the same speed."""

GROUP_POLL_S: Final = 1.0
"""A member's heartbeat is answered after this long when there is no news for it."""

GROUP_BEAT_S: Final = 4.0
"""A heartbeat that is not answered within this time is sent again, to whoever is the head then."""

GROUP_TICK_S: Final = 0.25
"""How often the head of a group looks whose lease has ended."""

GROUP_COMMIT_S: Final = 1.0
"""How often a member commits how far it has come, beside the moments when it must."""

GROUP_COMMIT_PARTITIONS_MAX: Final = 1_000
"""Partitions in one commit of a member: it must fit into a request."""

GROUP_LET_GO_S: Final = 30.0
"""A member that is asked for a partition finishes the message in work first, but for no longer than this."""

GROUP_MEMBERS_MAX: Final = 500
"""Members of one group. Each sends a heartbeat every second to the head of the group."""

TOPIC_GROUPS_MAX: Final = 1_000
"""Groups that a broker lists of one topic: more than anybody reads, and they fit into an answer."""

GROUP_MEMBER_ID_CHARACTERS_MAX: Final = 64
"""The id of a member stands beside every partition that it gets, in a record that must fit into a message."""

GROUP_STEP_PARTITIONS_MAX: Final = 2_000
"""Partitions that change hands in one step of a group: some 200 kB, and some milliseconds of the head's loop. If more
have to, the next step goes on once this one is committed."""

GROUP_STEP_MEMBERS_MAX: Final = 50
"""Members that join or change in one step: with the longest lists of topics they take less than a megabyte."""

GROUP_TOPICS_MAX: Final = 64
"""Names and patterns that one member may read."""

GROUP_SIZE_MAX: Final = 50_000
"""Groups, the partitions that they have room for, and the topics that they remember, in one partition of the internal
topic: a few megabytes of each snapshot. One client has at most its share of what is left: 19,000 if it is the first.
"""

GROUP_MEMBERSHIPS_MAX: Final = 10_000
"""Members of all groups in one partition of the internal topic: as many heartbeats a second reach its head. They are
counted apart, so that whoever returns to a group finds a place when no group can have more partitions.
"""

GROUP_ROOM_KEPT_S: Final = 600.0
"""A group that nobody is in keeps the room for its partitions for this long when others need it: longer than a machine
takes to start again.
"""

GROUP_ROOM_LOOK_S: Final = 1.0
"""How often a head looks for groups that make room for others: it goes through all of them."""

GROUP_ROOM_STEPS_MAX: Final = 100
"""Groups that make room at once: each is a record, and the loop takes them in one turn."""

GROUP_SHORT_SAID_S: Final = 60.0
"""How often it is logged that a group gets no room for all of its partitions."""

TRANSACTION_BYTES_MAX: Final = 1024 * 1024
"""What one transaction sends out: it is kept in memory, and written twice."""

TRANSACTION_PARTITIONS_MAX: Final = 256
"""Partitions that it sends to: each gets a batch."""

TRANSACTION_REQUEST_BYTES_MAX: Final = TRANSACTION_BYTES_MAX + 128 * 1024
"""The request for it: positions and framing beside the batches."""

TRANSACTIONS_UNDER_WAY_MAX: Final = 16
"""Of one connection. A member waits for each before the next: more are members that share a connection."""

TRANSACTIONS_BYTES_MAX: Final = 64 * 1024 * 1024
"""What is sent out and not done yet, in one partition of the internal topic: a part of each snapshot."""
