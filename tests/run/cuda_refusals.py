"""What the pretended driver refuses, as a real one does: each misuse, by its entry points (see test_cuda.py)."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import pytest

INVALID_VALUE, TOO_LITTLE_MEMORY, INVALID_CONTEXT, ILLEGAL_STATE = 1, 2, 201, 401
INVALID_HANDLE, NOT_WHILE_CAPTURING, UNJOINED, ISOLATED, CAPTURED_EVENT, TOO_MANY_BLOCKS = 400, 900, 904, 905, 907, 720


class Driver:
    """Its entry points; handles and addresses are numbers."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        assert self.library.cuInit(0) == 0

    def __getattr__(self, name):
        entry = getattr(self.library, name)
        return lambda *given: entry(*(c_void_p(each) if isinstance(each, int) else each for each in given))

    def enter(self, device):
        context = c_void_p()
        assert self.cuDevicePrimaryCtxRetain(byref(context), device) == 0
        assert self.cuCtxSetCurrent(context) == 0

    def made(self, what, *given):
        handle = c_void_p()
        assert getattr(self, what)(byref(handle), *given) == 0
        return handle

    def function(self, name):
        return self.made("cuModuleGetFunction", 0, name)


@pytest.fixture
def driver():
    found = Driver()
    found.enter(0)
    yield found
    found.cuCtxSetCurrent(None)


@pytest.fixture
def stream(driver):
    return driver.made("cuStreamCreate", 0)


def memory(driver, num_bytes):
    address = c_uint64()
    assert driver.cuMemAlloc_v2(byref(address), c_size_t(num_bytes)) == 0
    return address


def test_a_thread_without_a_context(driver, stream):
    event, free, total = driver.made("cuEventCreate", 0), c_size_t(), c_size_t()
    driver.cuCtxSetCurrent(None)
    for refused in (
        driver.cuMemAlloc_v2(byref(c_uint64()), c_size_t(8)),
        driver.cuMemGetInfo_v2(byref(free), byref(total)),
        driver.cuStreamSynchronize(stream),
        driver.cuEventQuery(event),
        driver.cuCtxSynchronize(),
        driver.cuStreamCreate(byref(c_void_p()), 0),
    ):
        assert refused == INVALID_CONTEXT


def test_more_memory_than_there_is(driver):
    assert driver.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1 << 50)) == TOO_LITTLE_MEMORY


def test_an_access_beyond_what_was_taken(driver, stream):
    to, of = memory(driver, 64), memory(driver, 128)
    assert driver.cuMemcpyAsync(to, of, c_size_t(64), stream) == 0
    assert driver.cuMemcpyAsync(to, of, c_size_t(65), stream) == INVALID_VALUE
    assert driver.cuMemsetD8Async(to, 0, c_size_t(65), stream) == INVALID_VALUE


def test_what_may_not_be_done_while_a_stream_is_captured(driver, stream):
    assert driver.cuStreamBeginCapture_v2(stream, 0) == 0
    assert driver.cuStreamBeginCapture_v2(stream, 0) == ILLEGAL_STATE
    for refused in (
        driver.cuStreamSynchronize(stream),
        driver.cuCtxSynchronize(),
        driver.cuMemAlloc_v2(byref(c_uint64()), c_size_t(8)),
    ):
        assert refused == NOT_WHILE_CAPTURING
    assert driver.cuStreamEndCapture(stream, byref(c_void_p())) == 0
    assert driver.cuStreamEndCapture(stream, byref(c_void_p())) == ILLEGAL_STATE


def test_a_captured_stream_that_nobody_joins(driver, stream):
    other, fork = driver.made("cuStreamCreate", 0), driver.made("cuEventCreate", 0)
    to = memory(driver, 64)
    assert driver.cuStreamBeginCapture_v2(stream, 0) == 0
    assert driver.cuEventRecord(fork, stream) == 0
    assert driver.cuStreamWaitEvent(other, fork, 0) == 0
    assert driver.cuMemsetD8Async(to, 1, c_size_t(64), other) == 0
    assert driver.cuEventQuery(fork) == CAPTURED_EVENT
    graph = c_void_p()
    assert driver.cuStreamEndCapture(stream, byref(graph)) == UNJOINED
    assert not graph


def test_an_event_of_another_capture(driver, stream):
    other, event = driver.made("cuStreamCreate", 0), driver.made("cuEventCreate", 0)
    assert driver.cuStreamBeginCapture_v2(stream, 0) == 0
    assert driver.cuEventRecord(event, other) == 0
    assert driver.cuStreamWaitEvent(stream, event, 0) == ISOLATED
    assert driver.cuStreamEndCapture(stream, byref(c_void_p())) == 0


def test_an_event_of_another_device(driver, stream):
    there = driver.made("cuEventCreate", 0)
    driver.enter(1)
    assert driver.cuEventRecord(driver.made("cuEventCreate", 0), stream) == INVALID_HANDLE
    assert driver.cuEventRecord(there, stream) == 0


def test_a_time_that_was_not_taken(driver, stream):
    first, last = driver.made("cuEventCreate", 0), driver.made("cuEventCreate", 0)
    assert driver.cuEventRecord(first, stream) == 0
    assert driver.cuStreamSynchronize(stream) == 0
    assert driver.cuEventElapsedTime_v2(byref(ctypes.c_float()), first, last) == INVALID_HANDLE


def test_launches_that_cannot_be(driver, stream):
    move, interpret = driver.function(b"dovetail_move"), driver.function(b"dovetail_interpret_ll")

    def launch(blocks, threads):
        sizes = map(c_int, (blocks, 1, 1, threads, 1, 1, 0))
        return driver.library.cuLaunchKernel(move, *sizes, stream, None, None)

    assert [launch(0, 32), launch(1, 0), launch(1, 513)] == [INVALID_VALUE] * 3
    sizes = map(c_int, (133, 1, 1, 512, 1, 1, 0))
    assert driver.library.cuLaunchCooperativeKernel(interpret, *sizes, stream, None) == TOO_MANY_BLOCKS
    driver.enter(1)
    assert launch(1, 32) == INVALID_CONTEXT
