"""The garbage collector pauses while something large is built."""

import gc
import threading
from collections.abc import Generator

import pytest

from perdure.collector import paused_collector


@pytest.fixture(autouse=True)
def collector() -> Generator[None]:
    """Whatever a test does to it, it goes on as before."""
    was_enabled = gc.isenabled()
    yield
    if was_enabled:
        gc.enable()


def test_it_pauses_and_goes_on() -> None:
    """Also within a pause, and after a failure."""
    gc.enable()
    with paused_collector():
        assert not gc.isenabled()
        with pytest.raises(ValueError, match="broken"), paused_collector():
            raise ValueError("broken")
        assert not gc.isenabled(), "the outer one is not over"
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    """Whoever runs without it is left alone."""
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()


def test_threads_overlap() -> None:
    """The last one to end lets it go on, whichever was first."""
    gc.enable()
    inside, over = threading.Event(), threading.Event()

    def build() -> None:
        with paused_collector():
            inside.set()
            over.wait(10)

    thread = threading.Thread(target=build)
    with paused_collector():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    over.set()
    thread.join()
    assert gc.isenabled()
