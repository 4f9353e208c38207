"""The engine behind an event loop: requests stream to whoever awaits them, while a thread of its own runs the rounds.

    async with AsyncEngine(llm) as engine:
        async for delta in engine.stream("The sky is blue because"):
            print(delta.text, end="")

The thread alone touches the engine. It is told what to do through an inbox, and puts what comes of it into the mailbox
of each request, in the loop of whoever reads it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from copy import deepcopy
from threading import Condition, Thread

import torch

from .engine import Engine, Event
from .inputs import Prompt
from .kernels import use_threads
from .llm import LLM
from .replies import Completion, Delta, Reply
from .sampling import SamplingParams, check_integer


class RequestError(RuntimeError):
    """A request ended without an answer; the message names it. Others are not concerned."""


class DrainingError(RuntimeError):
    """No more requests are taken: the engine ends when those it has are answered."""


class _Mailbox:
    """What lies between the engine's thread, which gives, and a loop, which reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.name = loop, ""
        self.items: asyncio.Queue[Delta | Completion | Exception] = asyncio.Queue()
        self.given = 0  # deltas; counted by the thread
        self.read = 0  # counted by the loop
        self.rests = False  # set by the thread: the request waits for its reader

    def give(self, item: Delta | Completion | Exception) -> None:
        """In the engine's thread."""
        with suppress(RuntimeError):  # a loop that has ended reads no more
            self.loop.call_soon_threadsafe(self.items.put_nowait, item)


class Stream:
    """One request's deltas, as rounds commit them; made by `AsyncEngine.stream`. Iterate once, from one task.

    A reader who falls behind lets the request rest until he has caught up. One who stops reading (`aclose`, or the
    stream is dropped, or his task is cancelled) cancels it.
    """

    def __init__(self, engine: AsyncEngine, mailbox: _Mailbox) -> None:
        self._engine, self._mailbox = engine, mailbox
        self._completion: Completion | None = None
        self._over = False  # nothing more is to come
        self._broken = False  # its reader was cancelled

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        if self._broken:
            raise RequestError("stream: its reader was cancelled while it waited, and the request with it")
        if self._over:
            raise StopAsyncIteration
        try:
            item = await self._mailbox.items.get()
        except asyncio.CancelledError:
            self._broken = True
            self._stop()
            raise
        if isinstance(item, Delta):
            self._mailbox.read += 1
            if self._mailbox.rests:
                self._engine._caught_up(self._mailbox)
            return item
        self._over = True
        if isinstance(item, Exception):
            raise item
        self._completion = item
        raise StopAsyncIteration

    async def completion(self) -> Completion:
        """The whole answer; what has not been read is read and dropped."""
        async for _ in self:
            pass
        if self._completion is None:
            raise RequestError("completion: the request was cancelled or failed before it ended; start it again")
        return self._completion

    async def aclose(self) -> None:
        """Cancel what is left of it."""
        self._stop()

    def __del__(self) -> None:
        self._stop()

    def _stop(self) -> None:
        if not self._over:
            self._over = True
            self._engine._cancel(self._mailbox)


class AsyncEngine:
    """Many requests at once, for asyncio. Use it in `async with`, which drains it at the end.

    llm: nobody else runs its engine meanwhile. max_ahead: deltas that a request may be ahead of its reader.
    """

    def __init__(self, llm: LLM, *, max_ahead: int = 16) -> None:
        check_integer("max_ahead", max_ahead, lambda n: n >= 1, ">= 1")
        self._llm, self._max_ahead = llm, max_ahead
        self._threads = torch.get_num_threads()
        self._wake = Condition()
        self._inbox: deque[Callable[[Engine], object]] = deque()
        self._draining = self._closed = self._ended = False
        self._failure: BaseException | None = None  # of the engine itself
        self._replies: dict[str, tuple[Reply, _Mailbox]] = {}  # under way; the thread's
        self._stack = ExitStack()
        engine = self._stack.enter_context(llm.running())  # an LLM that is in use is refused here
        self._thread = Thread(target=self._run, args=(engine,), name="draftproof engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            await self.drain()
        else:
            await self.close()

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> Stream:
        """Start a request. prompt: a text, tokens, or a conversation (see `inputs.Prompt`). request_id: what errors
        call it.

        A wrong request raises when the stream is first read; DrainingError is raised here, once it drains.
        """
        mailbox = _Mailbox(asyncio.get_running_loop())
        if isinstance(sampling_params, SamplingParams) and sampling_params.prompt_logprobs is not None:
            told = sampling_params.prompt_logprobs
            raise ValueError(f"prompt_logprobs: {told} is not allowed here; LLM.generate tells them")
        prompt = deepcopy(prompt)  # read later, and the caller's list may change

        def add(engine: Engine) -> None:
            try:
                reply = self._llm.reply(prompt, sampling_params, request_id)
                engine.add(reply.request)
            except Exception as error:
                mailbox.give(error)
                return
            mailbox.name = reply.request.name
            self._replies[mailbox.name] = reply, mailbox

        if self._draining or not self._tell(add):
            raise DrainingError("stream: the engine takes no more requests; it ends when those it has are answered")
        return Stream(self, mailbox)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> Completion:
        """The whole answer at once; see `stream`."""
        return await self.stream(prompt, sampling_params, request_id=request_id).completion()

    def drain_on(self, *signals: int) -> None:
        """Take no more requests when one of these signals comes; `drain`, or the end of `async with`, waits for the
        rest."""
        loop = asyncio.get_running_loop()
        for each in signals:
            loop.add_signal_handler(each, self._refuse)

    @property
    def draining(self) -> bool:
        return self._draining

    async def drain(self, timeout: float | None = None) -> None:
        """Take no more requests, answer those there are, and end; what is not answered after `timeout` seconds, or is
        not read, is cancelled then. A RequestError if the engine itself failed."""
        self._refuse()
        await asyncio.to_thread(self._thread.join, timeout)
        if self._thread.is_alive():
            await self.close()
        if self._failure is not None:
            raise self._problem()

    async def close(self) -> None:
        """End now. Who still reads gets a RequestError."""
        self._closed = True
        self._refuse()
        await asyncio.to_thread(self._thread.join)

    # told by loops

    def _refuse(self) -> None:
        """From now on nobody rests either: what is under way ends as fast as it can."""
        self._draining = True
        self._tell(lambda engine: [self._let_rest(engine, mailbox, False) for _, mailbox in self._replies.values()])

    def _caught_up(self, mailbox: _Mailbox) -> None:
        if mailbox.given - mailbox.read <= self._max_ahead // 2:
            self._tell(lambda engine: self._let_rest(engine, mailbox, False))

    def _cancel(self, mailbox: _Mailbox) -> None:
        def cancel(engine: Engine) -> None:
            if self._is_under_way(mailbox):
                del self._replies[mailbox.name]
                engine.cancel(mailbox.name)

        self._tell(cancel)

    def _tell(self, what: Callable[[Engine], object]) -> bool:
        """False if the thread has ended."""
        with self._wake:
            if not self._ended:
                self._inbox.append(what)
                self._wake.notify()
            return not self._ended

    # the thread

    def _run(self, engine: Engine) -> None:
        use_threads(self._threads)  # numba counts them for each thread
        with self._stack:
            try:
                while self._listen(engine):
                    for event in engine.step() if engine.busy else ():
                        self._deliver(engine, event)
            except BaseException as error:  # a reader must not wait for ever, whatever ends the thread
                self._failure = error
                engine.clear()
            self._end(engine)

    def _end(self, engine: Engine) -> None:
        """Tell all who still read or have just asked; leave nothing in the engine."""
        with self._wake:
            self._draining = self._ended = True
        while self._inbox:
            self._inbox.popleft()(engine)
        for name, (_, mailbox) in self._replies.items():
            mailbox.give(self._problem())
            engine.cancel(name)

    def _problem(self) -> RequestError:
        why = self._failure
        text = "it was closed before the request ended" if why is None else f"{type(why).__name__}: {why}"
        error = RequestError(f"engine: {text}")
        error.__cause__ = why
        return error

    def _listen(self, engine: Engine) -> bool:
        """Do what the inbox asks; sleep while there is nothing to do. False when it is time to end."""
        with self._wake:
            while not (self._inbox or engine.busy or self._closed or (self._draining and not self._replies)):
                self._wake.wait()
            inbox = []
            while self._inbox:  # one by one: a stream that is dropped meanwhile may put something in
                inbox.append(self._inbox.popleft())
        for what in inbox:
            what(engine)
        return not self._closed and (bool(self._replies) or not self._draining or bool(self._inbox))

    def _deliver(self, engine: Engine, event: Event) -> None:
        reply, mailbox = self._replies[event.request.name]
        if event.step is not None:
            mailbox.given += 1
            mailbox.give(reply.add(event.step))
        if event.error is not None:
            reply.fail(event.error)
            failed = RequestError(f"request {mailbox.name}: {event.error}")
            failed.__cause__ = event.error
            mailbox.give(failed)
        elif event.ended:
            mailbox.give(reply.completion())
        if event.ended:
            del self._replies[mailbox.name]
        elif mailbox.loop.is_closed():
            self._cancel(mailbox)
        elif mailbox.given - mailbox.read >= self._max_ahead and not self._draining:
            self._let_rest(engine, mailbox, True)
            if mailbox.given - mailbox.read <= self._max_ahead // 2:  # read meanwhile
                self._let_rest(engine, mailbox, False)

    def _let_rest(self, engine: Engine, mailbox: _Mailbox, rests: bool) -> None:
        if self._is_under_way(mailbox):
            mailbox.rests = rests
            engine.hold(mailbox.name, rests)

    def _is_under_way(self, mailbox: _Mailbox) -> bool:
        """It, and not a later request of the same name."""
        return mailbox.name in self._replies and self._replies[mailbox.name][1] is mailbox
