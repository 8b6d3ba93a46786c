"""A replica that is a chain of one, ready for work."""

from stentor.core.derived import States
from stentor.core.records import ChainRecord, Member
from stentor.core.replica import Replica
from stentor.core.replica_events import Configure, EpochStored


def alone(*, epoch=1, end=0, committed=None, states=None):
    me = Member("a", 1, 1)
    replica = Replica(
        me=me,
        epoch=epoch - 1,
        start=0,
        end=end,
        committed=end if committed is None else committed,
        states=States() if states is None else states,
    )
    replica.step(Configure(ChainRecord(epoch, (me,)), 1), 0)
    replica.step(EpochStored(epoch), 0)
    return replica
