"""The errors of requests: a branch of the tree in `errors.py`.

What a caller must know of a request that was not answered is whether a handler may have seen it:

    NoResponders, NotHandled    no handler has seen it
    HandlerFailed               one has, and raised an error
    ResponderLost               one may have; nobody knows what became of it
"""

from __future__ import annotations

from stentor.errors import StentorError


class RequestError(StentorError):
    """A request was not answered.

    Look at the kind of the error: it says whether a handler may have seen the request.
    """

    code = "request_error"


class NoResponders(RequestError, LookupError):
    """Nobody serves the topic of a request. No handler has seen the request.

    Start a responder with `client.serve`, or check the name of the topic.
    """

    code = "no_responders"


class HandlerFailed(RequestError):
    """The responder's handler raised an error. The message is the handler's own, and `error` names its kind.

    Look at the message, and at the log of the responder.
    """

    code = "handler_failed"

    @property
    def error(self) -> str:
        """The name of the error's class, at the responder."""
        return str(self.detail.get("error", ""))


class NotHandled(RequestError):
    """A request came back before any handler has seen it: too many wait already, or its responder is stopping.

    Try again. Clients do so by themselves until the deadline. Start more responders if it happens often.
    """

    code = "not_handled"
    retriable = True


class ResponderLost(RequestError):
    """The responder, or the broker on the way to it, was lost after it got the request. The handler may or may not have
    run.

    Find out what became of it before you ask again. With `idempotent=True` clients ask another responder by themselves.
    """

    code = "responder_lost"
