"""Backends of several devices in one group, as of "cpu:dovetail,cuda:nccl": here torch's "fake" on device meta."""

import pytest

pytestmark = pytest.mark.needs("torch")


@pytest.fixture(params=["native", "python"])
def start(request, monkeypatch):
    import torch.distributed as dist
    import torch.testing._internal.distributed.fake_pg  # noqa: F401  (registers "fake")

    import dovetail.torch  # noqa: F401
    from dovetail.torch import backend

    if request.param == "python":
        monkeypatch.setattr(backend, "native_group", lambda: None)

    def call(asked):
        dist.init_process_group(asked, store=dist.HashStore(), rank=0, world_size=1)
        return dist.group.WORLD

    yield call
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("asked", ["cpu:dovetail,meta:fake", "meta:fake,cpu:dovetail"])
def test_tensors_go_to_the_backend_of_their_device(start, asked):
    import torch
    import torch.distributed as dist

    group = start(asked)
    calls = []
    group.others = Recording(group.others, calls)
    for device in ("cpu", "meta"):
        tensor = torch.ones(4, device=device)
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0, async_op=True).wait()
        dist.all_gather_single(torch.empty(4, device=device), tensor)
        dist.all_to_all_single(torch.empty(4, device=device), tensor)
    assert calls == ["allreduce", "broadcast", "all_gather_single", "all_to_all_single"]
    assert [each.type for each in group._device_types] == ["cpu", "meta"]
    assert group._get_backend(torch.device("meta")).name() == "fake"
    dist.all_gather_object(found := [None], "object")
    assert found == ["object"]
    assert len(dist.distributed_c10d._world.pg_map) == 1


class Recording:
    def __init__(self, inner, calls):
        self._inner, self._calls = inner, calls

    def __getattr__(self, name):
        self._calls.append(name)
        return getattr(self._inner, name)


def test_a_device_without_backend_is_refused(start):
    import torch
    import torch.distributed as dist

    from dovetail.core import OperatorError

    start("cpu:dovetail")
    with pytest.raises(OperatorError, match="takes CPU tensors"):
        dist.all_reduce(torch.ones(4, device="meta"))


def test_dovetail_for_another_device_is_refused(start):
    from dovetail.core import EnvironmentFault

    with pytest.raises(EnvironmentFault, match='"cpu:dovetail,meta:BACKEND"'):
        start("cpu:fake,meta:dovetail")
