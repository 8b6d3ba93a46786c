"""What replaces rules of keys that expire when they are switched off (C21)."""

import msgspec

from stentor.wire import header as batch_header
from stentor.wire import table_rows
from stentor.wire.header import CONDITIONAL, HEADER_BYTES

_expired = table_rows.expired


def lead_on(self, epoch):
    """Whoever leads again goes on where it stopped."""
    if self._epoch is None:
        self._epoch = epoch
        self._table.news = dict.fromkeys(self._table.leases)


def rest_a_while(self):
    self._epoch = self._table.news = None


async def unconfirmed(self, partition):
    """The head believes that it is the head."""


def expired_anyhow(due, now_us, **address):
    """Deletes without a condition."""
    whole = _expired(due, now_us, **address)
    header = batch_header.unpack(whole)
    return (
        batch_header.pack(msgspec.structs.replace(header, attributes=header.attributes & ~CONDITIONAL))
        + whole[HEADER_BYTES:]
    )
