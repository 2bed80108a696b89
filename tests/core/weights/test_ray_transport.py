"""The Ray object store passes the conformance suite, on a real local Ray."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from transport import LONG_WAIT, TransportConformance, frame_of, meet
from transport_peers import read_frames

pytestmark = pytest.mark.engine
STORE_BYTES = 400 << 20


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False, log_to_driver=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)  # for the processes of the tests
        yield
    ray.shutdown()


class TestRay(TransportConformance):
    name = "ray"

    def test_frames_leave_the_object_store(self, endpoint, workers):
        """Three times its size goes through it."""
        with self.bound(endpoint) as end:
            reader = workers.submit(read_frames, end.invite(), b"w", 40, LONG_WAIT)
            peers = list(meet(end, 1).values())
            for number in range(40):
                end.send_all(peers, frame_of(number, 30 << 20))
            assert [len(frame) for frame in reader.result(LONG_WAIT)] == [(30 << 20) + 4] * 40
