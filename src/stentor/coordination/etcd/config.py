"""Where etcd is, and what it asks of us before it talks."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

from stentor import limits
from stentor.errors import InvalidArgument
from stentor.transport.address import Address

_SCHEME: Final = "etcd://"
_PORT: Final = 2379
_PREFIX: Final = "/stentor/"
_EXAMPLE: Final = "Write it like etcd://h1:2379,h2:2379/stentor/prod."


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What makes connections private, in PEM files."""

    ca_file: str = ""  # who signs etcd's certificate; empty: whom the system trusts
    cert_file: str = ""  # our own certificate, where etcd asks for one
    key_file: str = ""  # its key; empty: it is in cert_file too


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """How to reach one etcd cluster. A dataclass, so that the password stays out of its repr."""

    endpoints: tuple[str, ...]  # host:port of each member
    prefix: str = _PREFIX  # all our keys are below it: several clusters can share an etcd
    tls: TlsFiles | None = None  # None: plain text
    user: str = ""  # empty: no authentication
    password: str = field(default="", repr=False)
    timeout_s: float = limits.COORDINATION_TIMEOUT_S  # of every call

    def ssl_context(self) -> ssl.SSLContext | None:
        """What connections use; a file that cannot be used is refused here, by name."""
        if self.tls is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls.ca_file or None)
        except (OSError, ValueError) as error:
            raise _unusable(self.tls.ca_file, error) from None
        if self.tls.cert_file:
            try:
                # An encrypted key would make OpenSSL ask for its password on the terminal.
                context.load_cert_chain(self.tls.cert_file, self.tls.key_file or None, password=_no_password)
            except (OSError, ValueError) as error:
                raise _unusable(self.tls.key_file or self.tls.cert_file, error) from None
        return context


def _no_password() -> str:
    raise ValueError("it is encrypted")


def _unusable(file: str, error: Exception) -> InvalidArgument:
    reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    return InvalidArgument(f"The TLS file {file} for etcd cannot be used: {reason}.", hint="It must be PEM.")


def parse_url(url: str) -> tuple[tuple[str, ...], str]:
    """Endpoints and key prefix of `etcd://host:port,host:port/prefix`."""
    rest = url.removeprefix(_SCHEME)
    hosts, _, path = rest.partition("/")
    if "@" in rest:
        # Whatever this is, it may be a password: it is not repeated here.
        raise InvalidArgument(
            "The URL of etcd contains a user or a password.",
            hint="Use coordination_user and coordination_password_file instead.",
        )
    if rest == url or not hosts or "?" in rest or "#" in rest:
        raise InvalidArgument(f"This is not a URL of etcd: {url}.", hint=_EXAMPLE)
    endpoints = tuple(dict.fromkeys(_endpoint(host, url) for host in hosts.split(",")))
    path = path.strip("/")
    return endpoints, f"/{path}/" if path else _PREFIX


def _endpoint(host: str, url: str) -> str:
    try:
        return str(Address.parse(host, _PORT))
    except InvalidArgument:
        raise InvalidArgument(f"This is not a URL of etcd: {url}.", hint=_EXAMPLE) from None
