"""Requests to the members of an etcd cluster: fail-over, deadlines, authentication.

A request goes to the endpoint that answered last. What can fail, and what that says:

    cannot connect, TLS fails        nothing was sent                    → the next endpoint, at once
    sent, then no usable answer      may have been done (`Broken.sent`)  → reads: the next endpoint
                                                                           swaps: UnknownSwap
    etcd says no, and means it       was not done (`Refusal`)            → the caller
    the token is not valid (any more)  was not done                      → a new token, once more

Which of etcd's errors mean "was not done" is a list, and everything else counts as unknown. That
includes "database space exceeded": etcd says it also about the very change that filled the space,
after it has made it.
"""

from __future__ import annotations

import asyncio
import io
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.coordination.etcd import messages
from stentor.errors import Closed, CoordinationRefused, CoordinationUnavailable, UnknownSwap
from stentor.transport.dial import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import aiohttp

    from stentor.coordination.etcd.config import EtcdSettings
    from stentor.coordination.etcd.messages import Answer

# gRPC's codes: invalid argument, not found, permission denied, failed precondition, out of range,
# unimplemented, unauthenticated. etcd finds these before it changes anything.
_DEFINITE: Final = frozenset({3, 5, 7, 9, 11, 12, 16})
_NOT_ENABLED: Final = "authentication is not enabled"
# Said before anything was done, by a member that cannot do it: another one can, or this one later.
_NOT_TAKEN: Final = ("too many requests", "not supported for learner")
_TOKEN_REFUSALS: Final = ("invalid auth token", "revision in header is old", "user name is empty")
_REASON_CHARACTERS_MAX: Final = 200  # of what etcd, or whoever answers in its place, says
_LATE: Final = "no answer in time"

logger = logging.getLogger(__name__)


def _brief(reason: str) -> str:
    """What the other side said, as part of a sentence of ours."""
    return " ".join(reason[:_REASON_CHARACTERS_MAX].split())


class Broken(Exception):  # noqa: N818 - never leaves this package
    """No usable answer from an endpoint."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(_brief(reason))
        self.sent = sent  # the request may have been carried out


class Refusal(Exception):  # noqa: N818 - never leaves this package
    """etcd's no; the request was not carried out."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(_brief(reason))
        self.code = code


class GatewayStream:
    """The answer to a request that goes on for as long as it is read."""

    def __init__(self, gateway: Gateway, endpoint: int, response: aiohttp.ClientResponse) -> None:
        self.endpoint = endpoint
        self._gateway = gateway
        self._response = response

    async def read(self, timeout_s: float) -> bytes | None:
        """What has arrived, or None if nothing did."""
        import aiohttp

        try:
            async with self._gateway.bounded(asyncio.get_running_loop().time() + timeout_s):
                data = await self._response.content.readany()
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(_reason(error), sent=True) from None
        if not data:
            raise Broken("the stream ended", sent=True)
        return data


class _Body(io.BytesIO):
    """What is sent, in pieces: aiohttp warns about large bodies given whole. Until it is read, nothing can be done."""

    begun = False

    def read(self, size: int | None = -1, /) -> bytes:
        self.begun = True
        return super().read(size)


class Gateway:
    """The way to all endpoints of one etcd cluster."""

    def __init__(self, settings: EtcdSettings) -> None:
        import aiohttp  # noqa: F401 - loading it takes long, and no call's deadline is to pay for it

        self._ssl = settings.ssl_context()
        scheme = "http" if self._ssl is None else "https"
        self._endpoints = settings.endpoints
        self._urls = [f"{scheme}://{endpoint}" for endpoint in settings.endpoints]
        self._user = settings.user
        self._password = settings.password
        self._token: str | None = None  # None: to be asked for; empty: etcd wants none
        self._timeout_s = settings.timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._closing = asyncio.Event()
        self._waits: set[asyncio.Timeout] = set()  # for the network, right now
        self._first = 0  # the endpoint that is asked first
        self.available = True
        self.requests = 0
        self.failures = 0

    @property
    def endpoint(self) -> str:
        """Who is asked first."""
        return self._endpoints[self._first]

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    # --- requests -------------------------------------------------------------------------------

    async def call(self, path: str, request: Mapping[str, Any], kind: type[Answer], *, once: bool = False) -> Answer:
        """The answer of the first endpoint that gives one within the deadline.

        With `once` nothing is sent again that may have been carried out: UnknownSwap instead.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        patience_s = self._timeout_s if once or len(self._urls) == 1 else limits.COORDINATION_ATTEMPT_S
        body, endpoint, backoff, tried = messages.encode(request), self._first, Backoff(), 0
        why: tuple[int, Broken] | None = None
        while True:
            try:
                return await self.ask(endpoint, path, body, kind, min(deadline, loop.time() + patience_s))
            except Broken as error:
                if once and error.sent:
                    raise self._unknown(endpoint, error) from None
                tried += 1
                pause_s = 0.0 if tried % len(self._urls) else backoff.next_s()
                if why is None or str(error) != _LATE:  # the last attempt ends with the deadline, whatever is wrong
                    why = endpoint, error
                if loop.time() + pause_s >= deadline:
                    raise self._unavailable(*why) from None
            await self.pause(pause_s)
            endpoint = (endpoint + 1) % len(self._urls)

    async def ask(self, endpoint: int, path: str, body: bytes, kind: type[Answer], deadline: float) -> Answer:
        """The answer of this endpoint; a token is asked for when one is needed."""
        fresh = await self._authenticate(endpoint, deadline)
        try:
            return await self._post(endpoint, path, body, kind, deadline)
        except Refusal as refusal:
            if not self._user or fresh or not any(words in str(refusal) for words in _TOKEN_REFUSALS):
                raise
        self.forget_token()
        await self._authenticate(endpoint, deadline)
        return await self._post(endpoint, path, body, kind, deadline)

    async def ask_each(self, path: str, request: Mapping[str, Any], kind: type[Answer]) -> list[Answer]:
        """The answers of all endpoints that give one soon. CoordinationUnavailable if none does.

        Nothing is concluded from those that do not: which endpoint is asked first is for requests to decide.
        """
        deadline = asyncio.get_running_loop().time() + limits.COORDINATION_ATTEMPT_S
        body = messages.encode(request)
        try:
            await self._authenticate(self._first, deadline)
        except Broken as error:
            raise self._unavailable(self._first, error) from None
        asking = [self._quietly(endpoint, path, body, kind, deadline) for endpoint in range(len(self._urls))]
        found = await asyncio.gather(*asking)
        answers = [answer for answer in found if not isinstance(answer, Broken)]
        if not answers:
            last = next(answer for answer in found if isinstance(answer, Broken))
            raise self._unavailable(self._first, last)
        return answers

    async def _quietly(
        self, endpoint: int, path: str, body: bytes, kind: type[Answer], deadline: float
    ) -> Answer | Broken:
        try:
            response = await self._send(endpoint, path, body, deadline)
            try:
                return _answer(response.status, await self._content(response, deadline), kind)
            finally:
                response.close()
        except Broken as error:
            return error
        except Refusal as refusal:
            return Broken(str(refusal), sent=False)

    @asynccontextmanager
    async def stream(self, path: str, request: Mapping[str, Any]) -> AsyncIterator[GatewayStream]:
        """A request whose answer goes on; to the endpoint that answered last."""
        loop = asyncio.get_running_loop()
        endpoint, deadline = self._first, loop.time() + limits.COORDINATION_ATTEMPT_S
        await self._authenticate(endpoint, deadline)
        response = await self._open(endpoint, path, messages.encode(request), deadline)
        try:
            if response.status != 200:
                raise _problem(response.status, await self._content(response, deadline))
            self._answered(endpoint)
            yield GatewayStream(self, endpoint, response)
        except Broken as error:
            self._failed(endpoint, error)
            raise
        finally:
            response.close()

    async def _post(self, endpoint: int, path: str, body: bytes, kind: type[Answer], deadline: float) -> Answer:
        response = await self._open(endpoint, path, body, deadline)
        try:
            content = await self._content(response, deadline)
            answer = _answer(response.status, content, kind)
        except Broken as error:
            self._failed(endpoint, error)
            raise
        except Refusal:
            self._answered(endpoint)
            raise
        finally:
            response.close()
        self._answered(endpoint)
        return answer

    async def _open(self, endpoint: int, path: str, body: bytes, deadline: float) -> aiohttp.ClientResponse:
        """Send a request; returns when the answer begins."""
        try:
            return await self._send(endpoint, path, body, deadline)
        except Broken as error:
            self._failed(endpoint, error)
            raise

    async def _send(self, endpoint: int, path: str, body: bytes, deadline: float) -> aiohttp.ClientResponse:
        import aiohttp

        if self.closed:
            raise Closed("The coordination store is closed.")
        self.requests += 1
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        content = _Body(body)
        try:
            async with self.bounded(deadline):
                return await self._connected().post(
                    self._urls[endpoint] + path,
                    data=content,
                    headers=headers,
                    allow_redirects=False,  # they would carry the token to wherever they point
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.COORDINATION_CONNECT_S),
                )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Broken(_reason(error), sent=False) from None
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise Broken(_reason(error), sent=content.begun) from None

    async def _content(self, response: aiohttp.ClientResponse, deadline: float) -> bytes:
        import aiohttp

        content = bytearray()
        try:
            async with self.bounded(deadline):
                async for piece in response.content.iter_any():
                    content += piece
                    if len(content) > limits.COORDINATION_ANSWER_BYTES_MAX:
                        raise Broken("the answer does not end", sent=True)
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(_reason(error), sent=True) from None
        return bytes(content)

    def _connected(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # Bounded by the calls under way: each holds one connection.
            connector = aiohttp.TCPConnector(limit=0, ssl=True if self._ssl is None else self._ssl)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,  # an answer is bounded by what arrives
            )
        return self._session

    # --- authentication -------------------------------------------------------------------------

    async def _authenticate(self, endpoint: int, deadline: float) -> bool:
        """Have a token; True if it is a new one."""
        if not self._user or self._token is not None:
            return False
        body = messages.encode({"name": self._user, "password": self._password})
        try:
            answer = await self._post(endpoint, messages.AUTHENTICATE, body, messages.TokenAnswer, deadline)
        except Broken as error:
            raise Broken(str(error), sent=False) from None
        except Refusal as refusal:
            if _NOT_ENABLED not in str(refusal):
                raise
            self._token = ""
        else:
            self._token = answer.token
        return True

    def forget_token(self) -> None:
        """It is not accepted any more."""
        self._token = None

    # --- which endpoint -------------------------------------------------------------------------

    def _answered(self, endpoint: int) -> None:
        self._first = endpoint
        if not self.available:
            self.available = True
            logger.info("etcd answers again, at %s", self._endpoints[endpoint])

    def _failed(self, endpoint: int, error: Broken) -> None:
        self.failures += 1
        if self._first == endpoint:
            self._first = (endpoint + 1) % len(self._endpoints)
        if self.available and not self.closed:
            self.available = False
            logger.warning("etcd does not answer at %s: %s", self._endpoints[endpoint], error)

    def _unavailable(self, endpoint: int, error: Broken) -> CoordinationUnavailable:
        return CoordinationUnavailable(
            f"etcd gave no usable answer within {self._timeout_s:g} s; the last was from"
            f" {self._endpoints[endpoint]}: {error}.",
            hint="Check the members of etcd. Messages still flow without it; only changes wait.",
            object=self._endpoints[endpoint],
        )

    def _unknown(self, endpoint: int, error: Broken) -> UnknownSwap:
        return UnknownSwap(
            f"A change was sent to etcd at {self._endpoints[endpoint]}, but not answered: {error}.",
            hint="Read the keys back before trying again.",
            operation="swap",
            object=self._endpoints[endpoint],
        )

    # --- life -----------------------------------------------------------------------------------

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the store is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    @asynccontextmanager
    async def bounded(self, deadline: float) -> AsyncIterator[None]:
        """Wait for the network until then, or until the store is closed, which aiohttp does not tell those who wait."""
        async with asyncio.timeout_at(deadline) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)

    async def close(self) -> None:
        self._closing.set()
        for wait in self._waits:
            wait.reschedule(0)
        if self._session is not None:
            await self._session.close()


def refused(refusal: Refusal) -> CoordinationRefused:
    """What callers see of a refusal."""
    return CoordinationRefused(
        f"etcd refused a request: {refusal}.", hint="Check the user, its role and the key prefix in etcd."
    )


def _answer(status: int, content: bytes, kind: type[Answer]) -> Answer:
    if status != 200:
        raise _problem(status, content)
    try:
        return messages.decode(content, kind)
    except ValueError:
        raise Broken("it answers, but not as etcd's v3 gateway does", sent=True) from None


def _problem(status: int, content: bytes) -> Broken | Refusal:
    """What an error answer means for the request."""
    try:
        problem = messages.decode(content, messages.EtcdProblem)
    except ValueError:
        problem = messages.EtcdProblem()
    reason = problem.message or problem.error
    if not problem.code or not reason:
        return Broken(f"it answers HTTP {status}, but not as etcd's v3 gateway does", sent=True)
    if any(words in reason for words in _NOT_TAKEN):
        return Broken(reason, sent=False)
    return Refusal(problem.code, reason) if problem.code in _DEFINITE else Broken(reason, sent=True)


def _reason(error: Exception) -> str:
    """A few words about a failed connection, none of them from the other side."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not accepted ({getattr(error.certificate_error, 'verify_message', 'no reason')})"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or type(error.os_error).__name__
    if isinstance(error, TimeoutError):
        return _LATE
    if isinstance(error, aiohttp.ClientResponseError):
        return "it answers with something other than HTTP"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection"
    return getattr(error, "strerror", None) or type(error).__name__
