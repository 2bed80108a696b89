"""The engine suite on the real SGLang: a tied head in bf16 on one worker, an untied one in fp32 on two that draft."""

from __future__ import annotations

import asyncio
import pickle
import socket as socketlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_rollout
import tiny_qwen2
import torch
from engine_weight_sync import EngineWeightSync, Weights, nudge, publish

from slipstream.core.weights import EngineFailedError, Publisher, PublisherSettings
from slipstream.core.weights.chain import ChainWriter
from slipstream.plugins.sglang import control, messages
from slipstream.plugins.sglang.drafter import ALGORITHM, GROUP, engine_arguments
from slipstream.plugins.sglang.messages import COMMAND, LOADER, Outcome, Sync, command_tensor, encode_command

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPTS = [[5, 9, 17, 33, 2], list(range(40, 70))]
WIDTH = 7
"""Tokens that a step with drafts verifies, the certain one included."""
GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


class SglangRollout:
    """A `RolloutEngine` over `sglang.Engine`."""

    def __init__(self, folder: Path, tied: bool, dtype: str, workers: int, **more: Any) -> None:
        self._folder, self._tied, self._dtype, self.workers = folder, tied, dtype, workers
        self.checkpoint = tiny_qwen2.save(tiny_qwen2.build(tied, seed=99), folder / "start", tied, torch.bfloat16)
        self.engine = sglang_rollout.start(self.checkpoint, dtype, workers, **more)
        greedy(self.engine)  # SGLang sets up its event loop in the thread of the first call
        self._fresh, self.second = 0, None

    def sync(self, endpoint: str) -> None:
        control.synchronise(self.engine, [endpoint], 60.0)

    def follow(self, url: str) -> list[Outcome]:
        return control.follow(self.engine, url)

    def checksums(self) -> list[dict[str, str]]:
        return checksums(self.engine)

    def fresh_engine(self, weights: Weights) -> tuple[list[dict[str, str]], list[list[int]]]:
        """One second engine, which no delta ever reaches, loads each checkpoint from disk by SGLang's own means."""
        self._fresh += 1
        folder = self._folder / f"fresh{self._fresh}"
        tiny_qwen2.save(weights, folder, self._tied, getattr(torch, self._dtype))
        if self.second is None:
            self.second = sglang_rollout.start(folder, self._dtype, self.workers)
        else:
            assert self.second.update_weights_from_disk(str(folder))[0]
        return checksums(self.second), greedy(self.second)

    def stop(self) -> None:
        for engine in (self.engine, self.second):
            if engine is not None:
                engine.shutdown()

    def lose_weights(self) -> None:
        self.engine.collective_rpc("slipstream_test_lose")

    def break_loader(self) -> Callable[[], None]:
        self.engine.collective_rpc("slipstream_test_break_writes", broken=True)
        return lambda: self.engine.collective_rpc("slipstream_test_break_writes", broken=False)

    def generate(self) -> list[list[int]]:
        self.engine.flush_cache()
        return greedy(self.engine)


def greedy(engine) -> list[list[int]]:
    """Tokens for the fixed prompts."""
    return [output["output_ids"] for output in engine.generate(input_ids=PROMPTS, sampling_params=GREEDY)]


def checksums(engine) -> list[dict[str, str]]:
    """SGLang's own checksums of every worker."""
    from sglang.srt.managers.io_struct import CheckWeightsReqInput

    request = CheckWeightsReqInput(action="checksum")
    success, message, ranks, _ = run(engine, engine.tokenizer_manager.check_weights(request))
    assert success, message
    return [rank["checksums"] for rank in ranks]


def run(engine, call):
    return engine.loop.run_until_complete(call)


class SglangSuite(EngineWeightSync):
    """Parameters of one engine; subclasses are collected."""

    tied, dtype, workers = True, "bfloat16", 1
    more: dict[str, Any] = {}  # noqa: RUF012

    @pytest.fixture(scope="class")
    def engine(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangRollout]:
        rollout = SglangRollout(tmp_path_factory.mktemp("sglang"), self.tied, self.dtype, self.workers, **self.more)
        yield rollout
        rollout.stop()

    @pytest.fixture
    def weights(self) -> Weights:
        return tiny_qwen2.build(self.tied)


class TestTiedBf16(SglangSuite):
    """The common case, and what is SGLang's own."""

    def test_an_engine_that_follows_a_chain(self, engine, weights, publisher, socket, tmp_path):
        """Deltas from files, then a trainer that is back: each way of writing makes the other start anew."""
        chain = ChainWriter(str(tmp_path), dtype=getattr(torch, self.dtype))
        moved = weights
        for step in range(3):
            moved = nudge(moved, 0.02, step)
            chain.publish(moved.items())
            assert engine.follow(str(tmp_path)) == [Outcome(step + 1)] * engine.workers
        held = engine.checksums()
        assert publish(publisher, engine, weights, socket).seeded_workers == engine.workers
        assert engine.checksums() != held
        assert publish(publisher, engine, moved, socket).seeded_workers == 0
        assert engine.checksums() == held

    def test_a_command_by_broadcast(self, engine, weights, socket):
        """For engines that are driven by `update_weights_from_distributed`, where SGLang asks no custom loader."""
        from sglang.srt.utils.common import init_custom_process_group

        publisher = Publisher(PublisherSettings(timeout=60.0, audit_every=1))
        port, group = free_port(), {"group_name": "commands", "backend": "gloo"}
        command = command_tensor(Sync([f"ipc://{socket}"], 60.0))
        channel = control_channel(socket)
        with ThreadPoolExecutor(3) as pool:
            joined = pool.submit(
                engine.engine.init_weights_update_group, "127.0.0.1", port, rank_offset=1, world_size=2, **group
            )
            ours = init_custom_process_group(
                init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=0, **group
            )  # fmt: skip
            assert joined.result()[0]
            try:
                engine.engine.begin_weight_update()
                delivered = pool.submit(publisher.sync, weights.items(), channel, engine.workers)
                answer = pool.submit(
                    engine.engine.update_weights_from_distributed,
                    [COMMAND],
                    ["uint8"],
                    [list(command.shape)],
                    "commands",
                )
                torch.distributed.broadcast(command, src=0, group=ours)
                assert control._outcomes(*answer.result()) == [Outcome(1)]
                assert delivered.result().audited_tensors > 0
            finally:
                engine.engine.end_weight_update()
                engine.engine.destroy_weights_update_group("commands")
                channel.close()

    def test_an_answer_of_sglang_itself_is_an_error(self, engine):
        """A payload that is no command, and an update outside a session: both come back as (False, message)."""
        manager = engine.engine.tokenizer_manager
        with pytest.raises(EngineFailedError, match=f"expected one tensor named {COMMAND}"):
            control._outcomes(*send(engine.engine, pickle.dumps([("model.norm.weight", messages._Plain(b"1"))])))
        request = update(encode_command(Sync(["ipc:///nowhere"], 1.0)))
        with pytest.raises(EngineFailedError, match="must run between begin_weight_update"):
            control._outcomes(*run(engine.engine, manager.update_weights_from_tensor(request)))

    def test_an_open_session_is_an_error_and_the_engine_goes_on(self, engine):
        engine.engine.begin_weight_update()
        with pytest.raises(EngineFailedError, match="already open"):
            control.synchronise(engine.engine, ["ipc:///nowhere"], 1.0)
        engine.engine.end_weight_update()
        assert not engine.engine.tokenizer_manager.is_pause
        assert greedy(engine.engine)

    def test_another_writer_makes_the_next_sync_a_seed(self, engine, weights, publisher, socket):
        publish(publisher, engine, weights, socket)
        assert publish(publisher, engine, weights, socket).seeded_workers == 0
        assert engine.engine.update_weights_from_disk(str(engine.checkpoint))[0]
        assert publish(publisher, engine, weights, socket).seeded_workers == engine.workers

    def test_a_sync_in_the_middle_of_requests(self, engine, weights, socket):
        """Requests that run are retracted and go on: no token is lost, no prefix of the old weights is used again, and
        each token is known by the version that wrote it."""
        publisher = Publisher(PublisherSettings(timeout=60.0))
        publish(publisher, engine, weights, socket)
        moved = {name: weight.flip(0).contiguous() if name.endswith("o_proj.weight") else weight
                 for name, weight in weights.items()}  # fmt: skip
        long = {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}
        manager = engine.engine.tokenizer_manager

        async def generate_and_sync() -> list[dict]:
            from sglang.srt.managers.io_struct import GenerateReqInput

            requests = [GenerateReqInput(input_ids=list(prompt), sampling_params=dict(long)) for prompt in PROMPTS]
            running = await begun(manager, requests)
            await control.sync_workers(manager, [f"ipc://{socket}"], 60.0, weight_version="new")
            return await asyncio.gather(*running)

        outputs = []
        channel = control_channel(socket)
        thread = threading.Thread(target=lambda: publisher.sync(moved.items(), channel, engine.workers))
        thread.start()
        try:
            outputs = run(engine.engine, generate_and_sync())
        finally:
            thread.join(60)
            channel.close()
        for output in outputs:
            spans = output["meta_info"]["weight_versions"]
            assert len(output["output_ids"]) == 200
            assert [span["version"] for span in spans] == [str(publisher.acked - 1), "new"]
            assert [spans[0]["start"], spans[1]["end"]] == [0, 200]
            assert 0 < spans[0]["end"] == spans[1]["start"] < 200
        after = engine.engine.generate(input_ids=PROMPTS, sampling_params=GREEDY)
        assert [output["output_ids"] for output in after] == engine.generate()

    def test_abort_and_resume_elsewhere_in_the_text(self, engine):
        """A request stops where it is, and prompt and tokens together go on; ids of one length hit only themselves."""
        import uuid

        from sglang.srt.managers.io_struct import GenerateReqInput

        manager = engine.engine.tokenizer_manager
        long = {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}

        async def abort_one() -> list[dict]:
            ids = [uuid.uuid4().hex for _ in PROMPTS]
            requests = [
                GenerateReqInput(rid=rid, input_ids=list(prompt), sampling_params=dict(long))
                for rid, prompt in zip(ids, PROMPTS, strict=True)
            ]
            running = await begun(manager, requests)
            manager.abort_request(rid=ids[0])
            return await asyncio.gather(*running)

        stopped, finished = run(engine.engine, abort_one())
        assert stopped["meta_info"]["finish_reason"]["type"] == "abort"
        assert finished["meta_info"]["finish_reason"]["type"] == "length"
        written = stopped["output_ids"]
        assert len(written) < 200
        rest = engine.engine.generate(
            input_ids=[PROMPTS[0] + written], sampling_params={**long, "max_new_tokens": 200 - len(written)}
        )
        assert len(written) + len(rest[0]["output_ids"]) == 200

    def test_what_verls_router_asks_of_a_server(self, engine):
        """Its capacity, how far requests are, and an end to one of them: running, or waiting while the engine pauses,
        or not there yet."""
        import uuid

        from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

        server, manager = verl_server(engine.engine), engine.engine.tokenizer_manager
        long = {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "logprobs": True}
        running, other, waiting, late = (uuid.uuid4().hex for _ in range(4))

        def generate(rid: str) -> asyncio.Future[Any]:
            return asyncio.ensure_future(server.generate(list(PROMPTS[0]), dict(long), rid))

        async def course() -> None:
            await server.launch_server()
            calls = [generate(running), generate(other)]
            while not (await server.slipstream_report()).progress.get(running):
                await asyncio.sleep(0.01)
            report = await server.slipstream_report()
            assert (report.limits.kv_tokens, report.limits.max_running, report.version) == (4096, 8, 3)
            assert report.progress[other] > 0
            await server.slipstream_abort(running)
            stopped, finished = await asyncio.gather(*calls)
            assert (stopped.stop_reason, finished.stop_reason) == ("abort", "length")
            assert 0 < len(stopped.token_ids) == len(stopped.log_probs) < 200 == len(finished.token_ids)
            await manager.pause_generation(PauseGenerationReqInput(mode="retract"))
            call = generate(waiting)
            await asyncio.sleep(0.05)
            await server.slipstream_abort(waiting)
            await server.slipstream_abort(late)
            for refused in (await asyncio.wait_for(call, 10), await asyncio.wait_for(generate(late), 10)):
                assert (refused.stop_reason, refused.token_ids) == ("aborted", [])
            await manager.continue_generation(ContinueGenerationReqInput())
            assert not manager.rid_to_state
            again = await generate(uuid.uuid4().hex)
            assert again.token_ids == finished.token_ids
            assert again.extra_fields["num_cached_tokens"] == len(PROMPTS[0]) - 1

        try:
            run(engine.engine, course())
        finally:
            del manager.generate_request


class TestDraftingFp32OnTwoWorkers(SglangSuite):
    """A separate output head; each worker holds its shards, and both commit or neither. The engine drafts, and the one
    that its tokens are compared with does not."""

    tied, dtype, workers, more = False, "float32", 2, engine_arguments(WIDTH - 1)

    def test_drafts_change_no_token_and_history_outlives_a_flush(self, engine, weights, publisher, socket, monkeypatch):
        from sglang.srt.managers import tokenizer_manager

        publish(publisher, engine, weights, socket)
        long = {**GREEDY, "max_new_tokens": 60}
        engine.fresh_engine(weights)
        expected = [output["output_ids"] for output in engine.second.generate(input_ids=PROMPTS, sampling_params=long)]
        # The settings of this process are those of the engine that was started last, which does not draft.
        drafting = SimpleNamespace(speculative_algorithm=ALGORITHM, speculative_num_draft_tokens=WIDTH)
        monkeypatch.setattr(tokenizer_manager, "get_spec", lambda: drafting)
        drafted = []
        for _ in range(2):
            engine.engine.flush_cache()
            drafted.append(engine.engine.generate(input_ids=PROMPTS, sampling_params=long))
        for outputs in drafted:
            assert [output["output_ids"] for output in outputs] == expected
        first, again = [[output["meta_info"]["spec_verify_ct"] for output in outputs] for outputs in drafted]
        assert all(steps < 60 for steps in first)
        assert all(steps < 30 for steps in again), "copied from what was written before the flush"

    def test_histories_of_other_engines_and_versions_of_the_policy(self, engine, weights, publisher, socket):
        publish(publisher, engine, weights, socket)
        engine.fresh_engine(weights)
        prompt, long = [7, 7, 3, 90, 12, 41], {**GREEDY, "max_new_tokens": 60}
        (expected,) = engine.second.generate(input_ids=[prompt], sampling_params=long)
        manager = engine.engine.tokenizer_manager
        rollout = ("a group", prompt, expected["output_ids"], 6)
        before = run(engine.engine, control.tell_drafter(manager))["fed"]
        run(engine.engine, control.tell_drafter(manager, 7, [rollout]))
        deadline = time.monotonic() + 20
        while run(engine.engine, control.tell_drafter(manager))["fed"] == before:
            assert time.monotonic() < deadline, "history is fed in the background"
            time.sleep(0.05)
        params = {**long, "custom_params": {GROUP: "a group"}}
        steps = run(engine.engine, control.tell_drafter(manager))["row_steps"]
        (output,) = engine.engine.generate(input_ids=[prompt], sampling_params=params)
        assert output["output_ids"] == expected["output_ids"]
        counters = run(engine.engine, control.tell_drafter(manager))
        assert counters["row_steps"] - steps < 30, "copied from what the other one wrote"
        assert 0 < counters["accepted"] <= counters["verified"]
        assert counters["drafting_seconds"] > 0

        tokens = expected["output_ids"]
        end = next(i for i in range(8, 60) if tokens[i] not in tokens[:i])
        stopped = {**params, "stop_token_ids": [tokens[end]], "ignore_eos": False}
        (output,) = engine.engine.generate(input_ids=[prompt], sampling_params=stopped)
        assert output["output_ids"] == tokens[: end + 1]
        emitted = run(engine.engine, control.tell_drafter(manager))["emitted"] - counters["emitted"]
        assert emitted == end + 1, "drafts that are accepted past the end are not text"
        with pytest.raises(EngineFailedError, match="does not draft with slipstream"):
            run(engine.second, control.tell_drafter(engine.second.tokenizer_manager))


def verl_server(engine):
    """verl's own server with what the router asks of it, around an engine that has started."""
    from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer

    from slipstream.plugins.verl.routing.sglang_server import RoutedSglangServer

    class Started(SGLangHttpServer):
        def __init__(self) -> None:
            self.tokenizer_manager = engine.tokenizer_manager
            self.config = SimpleNamespace(
                max_model_len=512, prompt_length=64, response_length=256, enable_rollout_routing_replay=False, mtp=None
            )
            self.model_config = SimpleNamespace(lora_rank=0, lora={})
            self._disaggregation_role, self.replica_rank, self.global_steps = "null", 0, 3

        async def launch_server(self, *arguments: Any) -> None:
            pass

    return type("Server", (RoutedSglangServer, Started), {})()


async def begun(manager, requests: list) -> list[asyncio.Future]:
    """The answers to `requests`, which have been given their first tokens by now: with them runs one that streams."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    running = [asyncio.ensure_future(anext(manager.generate_request(each, None))) for each in requests]
    pilot = GenerateReqInput(input_ids=[1, 2, 3], sampling_params={**GREEDY, "max_new_tokens": 3}, stream=True)
    async for _ in manager.generate_request(pilot, None):
        pass
    assert not any(each.done() for each in running)
    return running


def control_channel(socket: str):
    from slipstream.core.weights import ZmqPublisherChannel

    return ZmqPublisherChannel(f"ipc://{socket}", 60.0)


def free_port() -> int:
    with socketlib.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def update(payload: bytes):
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput

    return UpdateWeightsFromTensorReqInput(serialized_named_tensors=[payload], load_format=LOADER, selector="target")


def send(engine, payload: bytes) -> tuple[bool, str]:
    """An update inside a session, through SGLang's own calls."""
    engine.begin_weight_update()
    try:
        return run(engine, engine.tokenizer_manager.update_weights_from_tensor(update(payload)))
    finally:
        engine.end_weight_update()
