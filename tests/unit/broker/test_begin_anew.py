"""A joiner's log begins anew where the others begin: what the journal knows beside the log stays."""

from types import SimpleNamespace

from stentor.broker.partitions.copies import Copies
from stentor.core.derived import States
from stentor.core.replica_events import Truncate
from stentor.storage.journal import ReplicaJournal
from stentor.storage.log import PartitionLog
from stentor.storage.model import LogSettings

KEY = (1, 0)


def test_an_epoch_that_was_stored_meanwhile_is_kept(tmp_path):
    journal = ReplicaJournal.open(tmp_path / "replicas")
    log = PartitionLog.open(tmp_path / "log", topic_id=1, partition=0, log_id=7, settings=LogSettings())
    copies = Copies.__new__(Copies)
    copies._journal = journal
    machine = SimpleNamespace(epoch=11, states=States())  # it is about to hear that epoch 12 is on disk
    journal.update(*KEY, log_id=7, epoch=12)
    journal.store()
    copies.cut(SimpleNamespace(key=KEY, log=log, replica=machine, noted=None), Truncate(5, reset=True))
    assert journal.get(*KEY).epoch == 12
