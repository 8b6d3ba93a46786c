"""Our keys among all that etcd holds: everything is below one prefix, which callers never see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.ports import Entry

if TYPE_CHECKING:
    from stentor.coordination.etcd.messages import KeyValue


class Keys:
    """Names of the store, as keys of etcd and back."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def full(self, name: str) -> bytes:
        return self._prefix + name.encode()

    def name(self, key: bytes) -> str:
        # Somebody else may have put a key here that is no UTF-8; it must not stop us from reading ours.
        return key.removeprefix(self._prefix).decode("utf-8", "backslashreplace")

    def entry(self, found: KeyValue) -> Entry:
        return Entry(self.name(found.key), found.value, found.mod_revision)
