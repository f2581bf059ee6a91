"""What the worker is told of an execution: what execute has returned, or why it failed."""

from typing import Any, Dict, List, Tuple

from . import requests, responses
from .errors import Refused, text_of, traceback_of
from .model import Model
from .requests import Batch, InferenceRequest
from .responses import InferenceResponse

Message = Tuple[Dict[str, Any], List[Any]]

_NO_LIST = "Expected a list in the execute return, found type '%s'."
_NO_RESPONSE = "Expected an 'InferenceResponse' object in the execute function return list, found type '%s'."


def responded(model: Model, batch: Batch, received: List[InferenceRequest], returned: Any) -> Message:
    """Return the message for what execute has returned; what it may not return is Refused."""
    ran: Dict[str, Any] = {"t": "ran", "batch": batch.number}
    kind = _NO_LIST if returned is None else _NO_RESPONSE
    if returned is None:
        returned = [None] * len(received)
    elif batch.decoupled:
        check_nothing(model, returned)
    elif not isinstance(returned, list):
        raise Refused(_NO_LIST % type(returned))
    elif len(returned) != len(received):
        raise Refused(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:%d, and InferenceResponse(s) size is:%d\n" % (len(received), len(returned))
        )
    _check(received, returned)
    body: List[Any] = []
    listed: List[Any] = []
    again = []
    for position, response in enumerate(returned):
        request = received[position]
        sender = request._sender
        if response is not None:
            outputs = responses.encode(batch.connection, response, request._fields.get("outs"), body)
            listed.append([position, outputs, True])
        elif request._release == requests.RELEASE_RESCHEDULE:
            again.append(position)
        else:
            if sender is None:
                # It ends the request, at the latest when it is gone: a model that has kept the request may still ask for it.
                request.get_response_sender().unended = text(model, Refused(kind % type(None)))
            continue
        if sender is not None:
            sender.close()
    if listed:
        ran["responses"] = listed
    if again:
        ran["again"] = again
    return ran, body


def _check(received: List[InferenceRequest], returned: List[Any]) -> None:
    for request, response in zip(received, returned):
        if request._release == requests.RELEASE_RESCHEDULE:
            if response is not None:
                raise Refused(
                    "Expected a None object in the execute function return list for reschduled request, found type '%s'."
                    % type(response)
                )
        elif response is not None:
            if not isinstance(response, InferenceResponse):
                raise Refused(_NO_RESPONSE % type(response))
            if request._sender is not None:
                request._sender.check(response, requests.COMPLETE_FINAL)


def check_nothing(model: Model, returned: Any) -> None:
    """Refuse what a decoupled model's execute has returned, unless it is nothing."""
    if returned is not None:
        raise Refused("Python model '%s' is using the decoupled mode and the execute function must return None." % model.instance)


def failed(model: Model, batch: Batch, received: List[InferenceRequest], error: BaseException) -> Message:
    """Return the message by which all requests fail that have no end yet."""
    _close(received)
    ran = {"t": "ran", "batch": batch.number, "error": ["INTERNAL", text(model, error)], "traceback": traceback_of(error)}
    return ran, []


def canceled(batch: Batch, received: List[InferenceRequest]) -> Message:
    """Return the message for a batch that nobody waits for, and that is not executed."""
    _close(received)
    return {"t": "ran", "batch": batch.number, "error": ["CANCELLED", "the request was canceled before it was executed"]}, []


def _close(received: List[InferenceRequest]) -> None:
    for request in received:
        sender = request._sender
        if sender is not None:
            sender.end_if_answered()
            sender.close()


def fail_open(model: Model, received: List[InferenceRequest], error: BaseException) -> None:
    """Have the requests fail, after execute has returned, that have no end yet."""
    for request in received:
        if request._sender is not None:
            request._sender.fail(text(model, error))


def text(model: Model, error: BaseException) -> str:
    """Return the text that clients get for an exception of execute."""
    return "Failed to process the request(s) for model '%s', message: %s" % (model.instance, text_of(error))
