"""Moments and durations: whole microseconds, UTC, of a clock that nobody in this process can set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clock import MAX_MOMENT, MICROS, Clock, from_datetime, micros, seconds, steady_micros, to_text

moments = st.integers(0, MAX_MOMENT)


@given(moments)
def test_a_moment_as_text_is_exact_to_the_microsecond(moment: int) -> None:
    text = to_text(moment)
    assert len(text) == 27
    assert text.endswith("Z")
    assert from_datetime(datetime.fromisoformat(text)) == moment


@given(moments, moments)
def test_moments_as_texts_sort_as_they_do(one: int, other: int) -> None:
    assert (to_text(one) < to_text(other)) == (one < other)


def test_the_ends_of_time_can_be_told() -> None:
    assert to_text(0) == "1970-01-01T00:00:00.000000Z"
    assert to_text(MAX_MOMENT) == "9999-12-31T23:59:59.999999Z"


@given(st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1)), st.integers(-14 * 60, 14 * 60))  # noqa: DTZ001
def test_an_offset_changes_the_text_and_not_the_moment(naive: datetime, minutes: int) -> None:
    aware = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert from_datetime(aware) == from_datetime(aware.astimezone(UTC))


@pytest.mark.parametrize(("fold", "text"), [(0, "2026-10-25T00:30:00.000000Z"), (1, "2026-10-25T01:30:00.000000Z")])
def test_the_hour_that_comes_twice_is_two_moments(fold: int, text: str) -> None:
    """db-scheduler#803 (scenario 16): times break over the change of summer time."""
    twice = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    assert to_text(from_datetime(twice)) == text


@given(st.integers(0, 10**15))
def test_durations_come_back_as_they_were(duration: int) -> None:
    assert micros(seconds(duration)) == duration


def test_durations_are_rounded_to_the_nearest_microsecond() -> None:
    assert [micros(value) for value in (0, 0.1, 1.5, 0.0000014, 0.0000016, 3600)] == [
        0,
        100_000,
        1_500_000,
        1,
        2,
        3600 * MICROS,
    ]


def test_the_steady_clock_never_goes_back() -> None:
    seen = [steady_micros() for _ in range(1000)]
    assert seen == sorted(seen)


def test_a_clock_that_was_not_measured_tells_no_time() -> None:
    clock = Clock()
    assert not clock.measured
    with pytest.raises(RuntimeError):
        clock.now()


def test_a_clock_tells_the_databases_time_and_by_how_much_it_stepped() -> None:
    clock = Clock()
    database = 1_800_000_000 * MICROS
    steady = steady_micros()
    assert clock.adopt(steady, database) == 0
    assert clock.measured
    assert database <= clock.now() <= database + 60 * MICROS
    assert clock.adopt(steady + 5 * MICROS, database + 7 * MICROS) == 2 * MICROS
    assert clock.adopt(steady + 6 * MICROS, database + 7 * MICROS) == -MICROS


def test_a_shift_moves_what_the_process_sees_and_not_the_measurement() -> None:
    clock = Clock()
    steady = steady_micros()
    clock.adopt(steady, 0)
    clock.shift_micros = 3600 * MICROS
    assert clock.now() >= 3600 * MICROS
    assert clock.adopt(steady, 0) == 0
