"""The engine behind an event loop: what is streamed, who waits for whom, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from dataclasses import replace

import pytest

from draftproof.async_engine import AsyncEngine, DrainingError, RequestError
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from tests.folders import make_folder, said


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("model"))
    return LLM(str(folder), dtype="float32", speculative_config={"method": "ngram"}, max_num_seqs=3)


def sampled(seed: int, **kwargs) -> SamplingParams:
    return SamplingParams(**{"seed": seed, "max_tokens": 40} | kwargs)


def test_streams_give_what_each_request_says_alone(llm):
    known = [llm.start("abcabc", sampled(seed)).result() for seed in range(6)]

    async def read(engine: AsyncEngine, seed: int) -> tuple[str, tuple[int, ...]]:
        stream = engine.stream("abcabc", sampled(seed))
        text = "".join([delta.text async for delta in stream])
        done = await stream.completion()
        assert done.text == text
        return text, done.token_ids

    async def main() -> list:
        async with AsyncEngine(llm) as engine:
            return await asyncio.gather(*(read(engine, seed) for seed in range(6)))

    assert asyncio.run(main()) == [(done.text, done.token_ids) for done in known]
    assert llm.engine.memory.peak > 0


def test_the_loop_goes_on_while_rounds_run(llm):
    async def main() -> int:
        ticks, over = 0, False

        async def tick() -> None:
            nonlocal ticks
            while not over:
                ticks += 1
                await asyncio.sleep(0)

        async with AsyncEngine(llm) as engine:
            ticking = asyncio.create_task(tick())
            await engine.generate("abcabc", sampled(1))
            over = True
            await ticking
        return ticks

    assert asyncio.run(main()) > 100


def test_a_reader_who_falls_behind_lets_his_request_rest_and_no_other(llm):
    known = llm.start("abcabc", sampled(1, max_tokens=200)).result()

    async def main() -> None:
        async with AsyncEngine(llm, max_ahead=4) as engine:
            slow = engine.stream("abcabc", sampled(1, max_tokens=200))
            await anext(slow)
            await engine.generate("abcabc", sampled(2, max_tokens=100))
            await asyncio.sleep(0.1)
            mailbox = slow._mailbox
            assert mailbox.rests
            assert mailbox.given - mailbox.read == 4
            assert (await slow.completion()).token_ids == known.token_ids

    asyncio.run(main())


def test_a_stream_that_is_dropped_or_closed_is_cancelled(llm):
    async def main() -> None:
        async with AsyncEngine(llm) as engine:
            for how in ("aclose", "drop", "cancel"):
                stream = engine.stream("abcabc", sampled(1, max_tokens=400))
                await anext(stream)
                if how == "aclose":
                    await stream.aclose()
                elif how == "cancel":
                    reading = asyncio.create_task(stream.completion())
                    await asyncio.sleep(0)
                    reading.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await reading
                del stream
                gc.collect()
                for _ in range(200):
                    if not engine._replies:
                        break
                    await asyncio.sleep(0.01)
                assert not engine._replies
                await asyncio.sleep(0.05)  # the round under way
                assert not llm.engine.busy

    asyncio.run(main())


def test_a_wrong_request_and_a_failing_one_end_alone(llm):
    async def main() -> None:
        async with AsyncEngine(llm) as engine:
            fine = engine.stream("abcabc", sampled(1))
            with pytest.raises(ValueError, match="prompt: it is empty"):
                await engine.generate("")
            first = engine.stream("abc", sampled(1, max_tokens=300), request_id="x")
            with pytest.raises(ValueError, match="name: a request 'x' is under way already"):
                await engine.generate("abc", sampled(1), request_id="x")
            await first.aclose()
            poisoned = engine.stream("abcabc", sampled(1), request_id="poisoned")
            await anext(poisoned)
            reply, _ = engine._replies["poisoned"]

            def broken(token: int) -> str:
                raise OSError("the disk is on fire")

            reply.request.output.detokenizer.add = broken
            with pytest.raises(RequestError, match="request poisoned: the disk is on fire"):
                await poisoned.completion()
            assert (await fine.completion()).token_ids == llm.start("abcabc", sampled(1)).result().token_ids

    asyncio.run(main())


def test_a_signal_lets_those_finish_who_are_there_and_no_other_begin(llm):
    async def main() -> list:
        async with AsyncEngine(llm) as engine:
            engine.drain_on(signal.SIGTERM)
            streams = [engine.stream("abcabc", sampled(seed)) for seed in range(5)]  # more than run at once
            await anext(streams[0])
            os.kill(os.getpid(), signal.SIGTERM)
            while not engine.draining:
                await asyncio.sleep(0.001)
            with pytest.raises(DrainingError, match="takes no more requests"):
                engine.stream("abc")
            return [(await stream.completion()).token_ids for stream in streams]

    assert asyncio.run(main()) == [llm.start("abcabc", sampled(seed)).result().token_ids for seed in range(5)]


def test_draining_does_not_wait_for_readers_and_closing_tells_them(llm):
    async def main() -> None:
        engine = AsyncEngine(llm, max_ahead=1)
        unread = engine.stream("abcabc", sampled(1))
        await engine.drain()
        assert len((await unread.completion()).token_ids) == 40
        engine = AsyncEngine(llm)
        stream = engine.stream("abcabc", sampled(1, max_tokens=400))
        await anext(stream)
        await engine.close()
        with pytest.raises(RequestError, match="it was closed before the request ended"):
            await stream.completion()
        with pytest.raises(DrainingError):
            engine.stream("abc")
        assert not llm.engine.busy

    asyncio.run(main())


def test_an_engine_that_breaks_tells_its_readers(llm, monkeypatch):
    async def main() -> None:
        engine = AsyncEngine(llm)
        stream = engine.stream("abcabc", sampled(1, max_tokens=400))
        await anext(stream)

        def broken() -> list:
            raise RuntimeError("out of luck")

        monkeypatch.setattr(llm.engine, "step", broken)
        with pytest.raises(RequestError, match="engine: RuntimeError: out of luck"):
            await stream.completion()
        with pytest.raises(RequestError, match="out of luck"):
            await engine.drain()

    asyncio.run(main())
    monkeypatch.undo()
    assert said(llm, "abcabc", sampled(1)).token_ids == llm.start("abcabc", sampled(1)).result().token_ids


def test_readers_who_never_come_do_not_stop_the_others(llm, tmp_path):
    """Memory for one request, and nobody reads the first."""
    small = LLM(str(make_folder(tmp_path)), dtype="float32", max_num_seqs=1, kv_cache_memory_bytes=1 << 16)
    known = small.start("bbb", sampled(2)).result().token_ids

    async def main() -> None:
        engine = AsyncEngine(small, max_ahead=1)
        unread = [engine.stream("aaa", sampled(i)) for i in range(3)]
        assert (await engine.generate("bbb", sampled(2))).token_ids == known
        assert small.engine.counts.most_running == 1
        for i, stream in enumerate(unread):
            assert (await stream.completion()).token_ids == small.start("aaa", sampled(i)).result().token_ids
        await engine.drain()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_old_stream_does_not_end_a_new_request_of_its_name(llm):
    async def main() -> None:
        async with AsyncEngine(llm) as engine:
            old = engine.stream("abc", sampled(1, max_tokens=3), request_id="x")
            while not (await anext(old)).step.tokens or engine._replies:
                await asyncio.sleep(0.01)
                if not engine._replies:
                    break
            new = engine.stream("abc", sampled(1), request_id="x")
            await anext(new)
            await old.aclose()
            assert len((await new.completion()).token_ids) == 40
            numbered = engine.stream("abc", sampled(1), request_id="0")
            assert (await engine.generate("abc", sampled(1))).token_ids == (await numbered.completion()).token_ids

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_prompt_is_what_it_was_when_it_was_given(llm):
    async def main() -> None:
        async with AsyncEngine(llm) as engine:
            ids = [1, 2, 3]
            stream = engine.stream(ids, sampled(1))
            ids.append(99)
            done = await stream.completion()
            assert done.token_ids == llm.start([1, 2, 3], sampled(1)).result().token_ids

    asyncio.run(main())


def test_a_reader_who_is_cancelled_does_not_take_the_rest_for_the_end(llm):
    async def main() -> None:
        async with AsyncEngine(llm) as engine:
            stream = engine.stream("abc", sampled(1, max_tokens=300))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_read_all(stream), 0.05)
            with pytest.raises(RequestError, match="its reader was cancelled"):
                await anext(stream)

    asyncio.run(main())


async def _read_all(stream) -> None:
    async for _ in stream:
        pass


def test_a_generator_that_is_left_leaves_nothing_in_the_engine(llm):
    reply = llm.reply("abc", sampled(1, max_tokens=300))
    deltas = llm.stream(reply)
    next(deltas)
    with pytest.raises(ValueError, match="mine"):
        deltas.throw(ValueError("mine"))
    assert not llm.engine.busy
    answers = llm.answer([llm.reply("abc", sampled(i)) for i in range(3)])
    next(answers)
    answers.close()
    assert not llm.engine.busy
    assert said(llm, "abc", sampled(1)).token_ids == llm.start("abc", sampled(1)).result().token_ids


def test_an_llm_in_use_is_refused(llm):
    async def main() -> None:
        async with AsyncEngine(llm):
            with pytest.raises(RuntimeError, match="engine: it runs other requests"):
                llm.generate("abc")
            with pytest.raises(RuntimeError, match="engine: it runs other requests"):
                AsyncEngine(llm)

    asyncio.run(main())
    assert said(llm, "abc", replace(sampled(1), max_tokens=3)).text


def test_how_far_ahead_must_be_a_number(llm):
    with pytest.raises(ValueError, match="max_ahead: 0 is not allowed"):
        AsyncEngine(llm, max_ahead=0)
