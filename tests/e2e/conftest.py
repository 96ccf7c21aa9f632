"""Fixtures of the end-to-end tests: Tenure as real processes on every engine.

service         one process on a migrated database
start_service   call it for one more, on any URL and with any settings; all are ended after the test
producers       call it for threads that enqueue until they are stopped, and write down every acknowledgement
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ServiceProcess
from tests.e2e.producers import Producers


@pytest.fixture
def start_service() -> Iterator[Callable[..., ServiceProcess]]:
    with ExitStack() as stack:

        def start(url: str, *arguments: str, **settings: Any) -> ServiceProcess:
            return stack.enter_context(ServiceProcess(url, *arguments, **settings))

        yield start


@pytest.fixture
def service(migrated_url: str, start_service: Callable[..., ServiceProcess]) -> ServiceProcess:
    return start_service(migrated_url)


@pytest.fixture
def producers(tmp_path: Path) -> Iterator[Callable[..., Producers]]:
    made: list[Producers] = []

    def start(*services: ServiceProcess, threads: int = 4) -> Producers:
        made.append(Producers([service.url for service in services], tmp_path / f"acks-{len(made)}", threads))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()
