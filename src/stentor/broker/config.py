"""The broker's settings: flags, then `STENTOR_*` environment, then one TOML file, then defaults.

The same names everywhere: `--http-port`, `STENTOR_HTTP_PORT`, `http_port = 7441`. Each setting's
meaning, default and the reason for the default stand beside it; `docs/configuration.md` is made
from them.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from stentor import limits
from stentor.broker.listener_plans import plan_listeners
from stentor.errors import InvalidArgument
from stentor.wire.messages import TopicSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


def _setting(default: Any, meaning: str) -> Any:
    """Carry the documentation of a setting beside its default."""
    _MEANINGS.append(meaning)
    return default


_MEANINGS: list[str] = []


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set on a broker."""

    data_directory: str = _setting(
        "data",
        "Directory for all data. The default is in the current directory, so that a trial leaves no traces elsewhere.",
    )
    host: str = _setting(
        "127.0.0.1", "Address to listen on. By default only this machine can connect, because there is no security yet."
    )
    port: Port = _setting(7440, "Port for clients; 0 picks a free one.")
    advertised_address: str = _setting(
        "", "Address that clients and brokers connect to, if it is not the one to listen on (NAT, containers)."
    )
    listeners: str = _setting(
        "",
        "Listeners for a broker in several networks, instead of host and port: name=host:port, separated by commas; in"
        " the file also a list. Other brokers use the first.",
    )
    advertised_addresses: str = _setting(
        "",
        "With listeners: the address that each listener announces, as name=host:port. A listener without an advertised"
        " address is announced by the address it listens on.",
    )
    http_host: str = _setting("", "Address for HTTP. Default: that of the first listener.")
    http_port: Port = _setting(7441, "Port for health, metrics and statistics; 0 picks a free one.")
    http: bool = _setting(default=True, meaning="Whether to serve HTTP.")
    http_hosts: str = _setting(
        "",
        "More host names under which to serve metrics and statistics, separated by commas; * means any. Numeric"
        " addresses, this machine's name and the advertised addresses always work. Other names are refused, so that no"
        " web page can read them (DNS rebinding).",
    )
    zmq_port: Annotated[int, msgspec.Meta(ge=0, le=65_531)] = _setting(
        0, "First of five ports for ZeroMQ clients. 0 means no ZeroMQ gateway."
    )
    zmq_host: str = _setting("", "Address for ZeroMQ clients. Default: that of the first listener.")
    zmq_table: str = _setting("", "Table for ZeroMQ clients that speak the Clustered Hashmap Protocol (RFC 12).")
    zmq_topics: str = _setting("", "Topics for ZeroMQ's SUB and PUSH sockets, separated by commas.")
    zmq_three_frames: bool = _setting(
        default=False,
        meaning="Send three frames instead of five, for ZeroMQ clients of the Guide's models 1 to 4.",
    )
    zmq_short_sequences: bool = _setting(
        default=False,
        meaning="Send three frames with sequences of four bytes, for the Guide's Python clients of models 1 to 4.",
    )
    broker_id: str = _setting(
        "", "Id of this broker in the cluster. By default the broker makes one at its first start and keeps it."
    )
    zone: str = _setting("", "Rack, room or region of this broker. The cluster spreads replicas over zones.")
    coordination: str = _setting(
        "",
        "Address of the cluster's etcd, for example etcd://a:2379,b:2379,c:2379/stentor. Without it, the broker runs"
        " alone and needs no etcd.",
    )
    coordination_user: str = _setting("", "User name for etcd, if etcd asks for a password.")
    coordination_password_file: str = _setting(
        "",
        "File with the password for etcd. Only the broker's user should be able to read it.",
    )
    coordination_ca_file: str = _setting(
        "", "Certificate of the authority that signs etcd's certificate (PEM). It switches TLS on."
    )
    coordination_cert_file: str = _setting("", "Certificate of this broker for etcd (PEM), if etcd asks for one.")
    coordination_key_file: str = _setting("", "Private key of that certificate (PEM).")
    coordination_compaction: Literal["auto", "on", "off"] = _setting(
        "auto",
        "Whether the brokers compact etcd's history older than ten minutes. etcd itself never does by default, and"
        " takes no more changes when it is full. auto: while all keys in etcd are this cluster's, because a compaction"
        " concerns everybody who uses the etcd. on: always. off: etcd or somebody else does it.",
    )
    coordination_quota_bytes: Annotated[int, msgspec.Meta(ge=0)] = _setting(
        0,
        "The quota of etcd (--quota-backend-bytes). When half of it is in use, changes by clients are refused, so that"
        " room for changes of chains stays. 0 means what etcd says (since 3.6), or else its default of 2 GiB.",
    )
    auto_create: bool = _setting(
        default=True,
        meaning="Whether publishing or subscribing to an unknown topic creates it.",
    )
    default_partitions: Annotated[int, msgspec.Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX)] = _setting(
        1, "Default number of partitions of a topic. With one, all messages of the topic keep their order."
    )
    flush: Literal["always", "interval"] = _setting(
        "always", "Default for topics: acknowledge a message once it is on disk (always), or before (interval)."
    )
    retention_age_s: Annotated[int, msgspec.Meta(ge=1)] | None = _setting(
        None, "Default for topics: delete messages older than this. None keeps them for ever."
    )
    retention_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = _setting(
        None, "Default for topics: delete the oldest messages of a partition beyond this size. None keeps them."
    )
    segment_bytes: Annotated[int, msgspec.Meta(ge=limits.SEGMENT_BYTES_MIN, le=limits.SEGMENT_BYTES_MAX)] = _setting(
        limits.SEGMENT_BYTES,
        "Size of a log file. A broker scans the last one after a crash, so smaller ones start faster.",
    )
    aside_age_s: Annotated[int, msgspec.Meta(ge=0)] = _setting(
        limits.ASIDE_AGE_S,
        "How long to keep replaced copies of logs in aside/, in case one is needed. They also stay until the chain is"
        " full. 0 keeps them for ever.",
    )
    disk_reserve_bytes: Annotated[int, msgspec.Meta(ge=0)] = _setting(
        limits.DISK_RESERVE_BYTES,
        "Refuse messages while less disk space than this is free. The broker needs it for itself.",
    )
    memory_budget_bytes: Annotated[int, msgspec.Meta(ge=0)] = _setting(
        0,
        "Memory for all memory topics and the jobs of all queues of this broker together. When it is used up, messages"
        " that need more are refused with MemoryFull. 0 means a quarter of the machine's memory, or of the memory that"
        " its container may use: connections, readers, tables and the system's cache need the rest.",
    )
    connections_max: Annotated[int, msgspec.Meta(ge=1)] = _setting(
        limits.CONNECTIONS_MAX, "Refuse more connections than this, so that the present ones keep working."
    )
    metrics_interval_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = _setting(
        10.0, "How often to publish the broker's statistics to the topic _metrics. 0 means never."
    )
    unclean: bool = _setting(
        default=False,
        meaning="Use logs whose end is uncertain, after a failed sync or without a journal. This may lose acknowledged"
        " messages.",
    )
    accept_older_store: bool = _setting(
        default=False,
        meaning="Start although etcd was restored from an older state than this broker has seen. Set it on all brokers:"
        " see Backup and restore in docs/cluster.md.",
    )
    feature_level_max: Annotated[int, msgspec.Meta(ge=1)] | None = _setting(
        None,
        "Keep the cluster at this feature level, at most, while you try a new version: until it is raised you can go"
        " back to the old one. None takes all that this version knows.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "How much to log.")
    log_format: Literal["text", "json"] = _setting(
        "text", "Format of the log: text for people, json for log collectors."
    )

    def coordination_password(self) -> str:
        """The password for etcd; never a setting itself."""
        if not self.coordination_password_file:
            return ""
        try:
            return Path(self.coordination_password_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise InvalidArgument(
                f"The password file {self.coordination_password_file} cannot be read: {error.strerror}."
            ) from error

    def topic_settings(self) -> TopicSettings:
        """The settings of a topic that names none."""
        return TopicSettings(
            partitions=self.default_partitions,
            flush=self.flush,
            retention_age_s=self.retention_age_s,
            retention_bytes=self.retention_bytes,
            segment_bytes=self.segment_bytes,
        )


def described_settings() -> list[tuple[str, Any, str]]:
    """(name, default, meaning) of every setting, for help texts and docs."""
    fields = msgspec.structs.fields(BrokerConfig)
    return [(f.name, f.default, meaning) for f, meaning in zip(fields, _MEANINGS, strict=True)]


def load_config(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> BrokerConfig:
    """Merge the three sources; the first that names a setting wins."""
    names = {field.name for field in msgspec.structs.fields(BrokerConfig)}
    merged: dict[str, Any] = {}
    if file is not None:
        merged.update(_from_file(file))
    for name in names:
        text = (environment or {}).get(f"STENTOR_{name.upper()}")
        if text is not None:
            merged[name] = None if text == "none" else text
    merged.update({name: value for name, value in (flags or {}).items() if value is not None})
    try:
        config = msgspec.convert(merged, BrokerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"A setting of the broker is wrong: {_which(merged) or error}.",
            hint="See docs/configuration.md or `stentor serve --help`.",
        ) from error
    plan_listeners(config)
    return config


def _which(settings: Mapping[str, Any]) -> str:
    """Which setting is wrong, and what it should be; empty where no single one is."""
    known = {field.name: field.type for field in msgspec.structs.fields(BrokerConfig)}
    for name, value in settings.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            return f"there is none called {name}" + (f"; {close[0]} is the nearest" if close else "")
        try:
            msgspec.convert(value, known[name], strict=False)
        except msgspec.ValidationError:
            return f"{name} is {value!r}, not {_in_words(known[name])}"
    return ""


def _in_words(kind: Any) -> str:
    """The values of a type."""
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_in_words(part) for part in get_args(kind))
    if get_origin(kind) is Annotated:
        base, meta = get_args(kind)
        least = "" if meta.ge is None else f" from {meta.ge:,}"
        most = "" if meta.le is None else f" to {meta.le:,}"
        return f"{_in_words(base)}{least}{most}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}[kind]


def _from_file(file: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(
            f"The configuration file {file} cannot be read: {error.strerror}.", hint="Check --config."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"The configuration file {file} is not valid TOML: {error}.") from error
    return {name: _joined(value) for name, value in settings.items()}


def _joined(value: Any) -> Any:
    """A list of texts, as it is written in a variable or a flag."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    return value
