"""The session's responses and conversations: kept as documents, followed to their end.

Every response has one follower here, whoever reads it: the follower writes its end, extends its
conversation and releases the request. A pause stops the followers and changes nothing; `adopt`
starts them again after a resume.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, TypeAlias

from sojourn_runtime.context.conversation import (
    CONVERSATIONS,
    RESPONSES,
    Conversation,
    Ending,
    EndReason,
    Item,
    Response,
    conversation_from_json,
    conversation_to_json,
    response_from_json,
    response_to_json,
)
from sojourn_runtime.engine.request import Finish, Request
from sojourn_runtime.server.bodies import output_items
from sojourn_runtime.server.errors import conflict, invalid, not_found
from sojourn_runtime.server.meta import form_of, is_whole
from sojourn_runtime.server.metrics import Metrics, Stopwatch
from sojourn_runtime.server.port import Session
from sojourn_runtime.server.tools import Said, Splitter, joined
from sojourn_runtime.stream import Stream, StreamClosed

_REASONS = {
    Finish.STOP: EndReason.STOP,
    Finish.LENGTH: EndReason.LENGTH,
    Finish.CANCELLED: EndReason.CANCELLED,
    Finish.ERROR: EndReason.FAILED,
}
MOST_RESPONSES: Final = 1024
"""Kept per session, the newest: every commit writes them all, some 2 KB each, and a pause waits."""
Follower: TypeAlias = asyncio.Task[Response | None]
"""Its result is the ended response, None when the session was paused before."""
FORGET_SECONDS: Final = 300.0
"""How long the end of a response that was not to be stored waits for a reader cut by a pause."""
LOST = "The request was lost in a crash before it was kept; send it again."
STUCK = "The engine could not go on with this request."


class Book:
    """All that outlives a request."""

    def __init__(
        self,
        session: Session,
        metrics: Metrics,
        *,
        most_responses: int = MOST_RESPONSES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._metrics = metrics
        self._most = most_responses
        self._clock = clock
        self._followers: dict[str, Follower] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._busy: dict[str, str] = {}
        """Conversation by running response."""

    # -- responses --

    def response(self, response_id: str, *, param: str | None = None) -> Response:
        """Raises 404."""
        value = self._session.documents(RESPONSES).get(response_id)
        if value is None:
            code = "previous_response_not_found" if param else "response_not_found"
            raise not_found("response", response_id, param=param, code=code)
        return response_from_json(value)

    def said(self, response: Response) -> Said:
        """All that the model said and called in an ended response."""
        return joined(self.parts(response))

    def parts(self, response: Response) -> list[Said]:
        """What each token of an ended response added, rebuilt from the ids."""
        if response.ending is None:
            return []
        reason = response.ending.reason
        finish = {EndReason.STOP: Finish.STOP, EndReason.LENGTH: Finish.LENGTH}.get(reason)
        texts = self._session.texts(response.ending.tokens, finish=finish or Finish.NONE)
        split = splitter(response)
        last = len(texts) - 1 if finish else None
        return [split.push(text, last=at == last) for at, text in enumerate(texts)]

    def begin(self, response: Response, request: Request) -> Stream:
        """Keep the response, then submit its request; raises Refused and keeps nothing then."""
        self._make_room()
        if response.conversation in self._busy.values():
            message = f"Conversation '{response.conversation}' is being answered already."
            raise conflict(message, param="conversation", code="conversation_locked")
        self._put(response)
        try:
            stream = self._session.submit(request)
        except BaseException:
            self._session.delete_document(RESPONSES, response.id)
            raise
        self._follow(response, stream)
        return stream

    def _make_room(self) -> None:
        """Forget the oldest ended responses beyond what is kept."""
        kept = self._session.documents(RESPONSES)
        surplus = len(kept) + 1 - self._most
        if surplus > 0:
            old = (name for name in list(kept) if name not in self._followers)
            for name in islice(old, surplus):
                self._session.delete_document(RESPONSES, name)

    def follower(self, response_id: str) -> Follower | None:
        """Who will know the end of a running response; to be asked for before one waits."""
        return self._followers.get(response_id)

    async def ended(self, response_id: str, follower: Follower | None) -> Response:
        """The response with its end; StreamClosed("Pausing") when the session is paused first."""
        if follower is None:
            return self.response(response_id)
        response = await asyncio.shield(follower)
        if response is None:  # clients need not know the difference: they attach again
            stream = self._session.stream(response_id)
            raise StreamClosed("Pausing", stream.cause if stream else None)
        return response

    async def cancel(self, response_id: str) -> Response:
        """Ended or not: afterwards it is."""
        follower = self.follower(response_id)
        if follower is not None:
            self._session.cancel(response_id)
        return await self.ended(response_id, follower)

    async def delete(self, response_id: str) -> None:
        """Raises 404; a running one is cancelled."""
        self.response(response_id)
        await self.cancel(response_id)
        self._session.delete_document(RESPONSES, response_id)

    def history(self, response: Response) -> tuple[Item, ...]:
        """Everything said up to the end of `response`, oldest first; 404 for a broken chain."""
        turns: list[tuple[Item, ...]] = []
        turn: Response | None = response
        while turn is not None:
            kept = self._session.documents(CONVERSATIONS).get(turn.conversation or "")
            if kept is not None:
                turns.append(_until(conversation_from_json(kept).items, turn.output_id))
                break
            turns.append(self._turn(turn))
            param = "previous_response_id"
            turn = self.response(turn.previous, param=param) if turn.previous else None
        return tuple(item for items in reversed(turns) for item in items)

    def _turn(self, response: Response) -> tuple[Item, ...]:
        if response.ending is None:
            message = f"Response '{response.id}' has not ended yet."
            raise invalid(message, param="previous_response_id", code="response_not_ended")
        said = self.said(response)
        items = output_items(response, said) if said.text or said.calls else ()
        return (*response.items, *items)

    # -- conversations --

    def conversation(self, conversation_id: str, *, param: str | None = None) -> Conversation:
        """Raises 404."""
        value = self._session.documents(CONVERSATIONS).get(conversation_id)
        if value is None:
            code = "conversation_not_found"
            raise not_found("conversation", conversation_id, param=param, code=code)
        return conversation_from_json(value)

    def keep(self, conversation: Conversation) -> None:
        document = conversation_to_json(conversation)
        self._session.put_document(CONVERSATIONS, conversation.id, document)

    def forget(self, conversation_id: str) -> None:
        """Its responses stay, as OpenAI has it."""
        self._session.delete_document(CONVERSATIONS, conversation_id)

    # -- following --

    def adopt(self) -> None:
        """After a start: follow what a pause or a crash left."""
        waiting = {stream.request.id: stream for stream in self._session.restored()}
        for value in list(self._session.documents(RESPONSES).values()):
            response = response_from_json(value)
            stream = waiting.pop(response.id, None)
            if response.ending is not None:
                if stream is not None:
                    self._session.release(response.id)
                if not response.stored:
                    self._forget_later(response.id)
            elif stream is None:
                self._end(response, EndReason.FAILED, tokens=(), message=LOST)
            elif is_whole(stream.request):
                # nobody was told its id, and who waited for it asks anew
                tokens = tuple(event.token for event in stream.events)
                self._end(response, EndReason.CANCELLED, tokens=tokens, message="")
                self._session.release(response.id)
            else:
                self._follow(response, stream, restored=True)
        for stream in waiting.values():
            # stateless: a stream waits to be taken up again, as long as the session lets it
            # what has no form is of a response that was forgotten just before the process died
            if is_whole(stream.request) or form_of(stream.request) is None:
                self._session.release(stream.request.id)

    async def stop(self) -> None:
        """Give up following, for the end of the process."""
        for timer in self._timers:
            timer.cancel()
        followers = list(self._followers.values())
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    def _follow(self, response: Response, stream: Stream, *, restored: bool = False) -> None:
        if response.conversation is not None:
            self._busy[response.id] = response.conversation
        following = self._see_through(response, stream, restored=restored)
        task = asyncio.get_running_loop().create_task(following)
        self._followers[response.id] = task
        task.add_done_callback(lambda _: self._followers.pop(response.id, None))
        task.add_done_callback(lambda _: self._busy.pop(response.id, None))

    async def _see_through(
        self, response: Response, stream: Stream, *, restored: bool
    ) -> Response | None:
        """Wait for the end and write it down."""
        watch = Stopwatch(self._metrics, seen=len(stream.events) if restored else 0)
        reader = stream.reader(lead=None, watch=True)
        reason, message = EndReason.STOP, ""
        try:
            while events := await reader.batch():
                watch.tokens(events)
            reason = _REASONS[stream.finish]
        except StreamClosed as closed:
            if str(closed) != "Cancelled":
                return None  # paused, or the engine gave up: the next process goes on with it
            reason = EndReason.CANCELLED
            watch.ended(reason.value)
        finally:
            reader.close()
        if self._session.pausing:
            return None  # the store is being closed; the next process finds it ended and writes it
        if reason is EndReason.FAILED:
            message = STUCK
        origin, cached = stream.origin, stream.cached_tokens
        self._metrics.prompt(tokens=response.prompt_tokens, cached=cached, origin=origin)
        response = replace(response, cached_tokens=cached, origin=origin)
        tokens = tuple(event.token for event in stream.events)
        ended = self._end(response, reason, tokens=tokens, message=message)
        if not ended.stored and restored:
            self._forget_later(ended.id)
        elif not ended.stored:
            self._session.delete_document(RESPONSES, ended.id)
        self._session.release(response.id)
        return ended

    def _end(
        self, response: Response, reason: EndReason, *, tokens: Iterable[int], message: str
    ) -> Response:
        ending = Ending(reason=reason, at=self._clock(), tokens=tuple(tokens), message=message)
        response = replace(response, ending=ending)
        # the conversation first: a crash between the two repeats this, and `_extend` notices
        self._extend(response)
        self._put(response)
        return response

    def _forget_later(self, response_id: str) -> None:
        """Not to be stored, but its reader was cut by a pause and may come back for the rest."""
        forget = self._session.delete_document
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(FORGET_SECONDS, forget, RESPONSES, response_id))

    def _extend(self, response: Response) -> None:
        """The turn joins its conversation, unless it failed or the conversation is gone."""
        value = self._session.documents(CONVERSATIONS).get(response.conversation or "")
        if value is None or response.ending is None:
            return
        if response.ending.reason not in (EndReason.STOP, EndReason.LENGTH):
            return
        conversation = conversation_from_json(value)
        if any(item.id == response.output_id for item in conversation.items):
            return
        self.keep(conversation.extended(self._turn(response)))

    def _put(self, response: Response) -> None:
        self._session.put_document(RESPONSES, response.id, response_to_json(response))


def splitter(response: Response) -> Splitter:
    """What tells the text of `response` from its calls of tools."""
    return Splitter(response.id.removeprefix("resp_"), active=response.tools)


def _until(items: Sequence[Item], last: str) -> tuple[Item, ...]:
    """The items up to the one called `last`; all when there is none."""
    for index, item in enumerate(items):
        if item.id == last:
            return tuple(items[: index + 1])
    return tuple(items)
