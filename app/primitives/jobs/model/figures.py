"""Amounts that are kept per flow and minute, and the buckets that durations are counted in."""

from __future__ import annotations

from enum import IntEnum


class Figure(IntEnum):
    """Amounts kept per flow and minute. Durations: sum in microseconds, and counts by power-of-two buckets from 32 on."""

    CLAIMED = 0
    SUCCEEDED = 1
    FAILED = 2
    RETRIED = 3
    DEAD = 4
    ABANDONED = 5
    DURATION = 6
    DUPLICATE = 7  # answers for an attempt that another attempt had followed: the work ran twice


DURATION_BUCKET = 32


def duration_bucket(duration: int) -> int:
    """The figure that counts this duration: an eighth of a power of two wide, so a percentile is within 10 %."""
    if duration < 8:
        return DURATION_BUCKET + max(0, duration)
    power = duration.bit_length() - 1
    return DURATION_BUCKET + 8 * (power - 2) + ((duration >> (power - 3)) & 7)


def bucket_ceiling(figure: int) -> int:
    """The longest duration that `duration_bucket` puts there."""
    place = figure - DURATION_BUCKET
    if place < 8:
        return place
    power, eighth = place // 8 + 2, place % 8
    return ((8 + eighth + 1) << (power - 3)) - 1
