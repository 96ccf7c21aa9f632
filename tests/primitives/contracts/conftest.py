"""Fixtures of the tests of contracts: those of jobs, since contracts are about jobs."""

from __future__ import annotations

from tests.primitives.jobs.conftest import host, jobs

__all__ = ["host", "jobs"]
