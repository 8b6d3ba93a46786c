"""The kinds of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bench.works import (
    fanout,
    history,
    native,
    openloop,
    replicated,
    replicated_single,
    scaling,
    single,
    throughput,
)

if TYPE_CHECKING:
    from bench.model import Case, Options, Sample
    from bench.runner import Bench


class Work(Protocol):
    """A module of this package."""

    TITLE: str

    def cases(self, options: Options) -> list[Case]: ...

    def run(self, case: Case, bench: Bench) -> Sample: ...


WORKS: dict[str, Work] = {
    "throughput": throughput,
    "single": single,
    "history": history,
    "fanout": fanout,
    "openloop": openloop,
    "native": native,
    "replicated": replicated,
    "replicated single": replicated_single,
    "scaling": scaling,
}
