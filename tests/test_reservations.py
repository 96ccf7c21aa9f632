"""Reservations: a token fits one thing at one fence, and nothing that is stored is enough to make one."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import reservations
from app.reservations import (
    TOKEN_CHARS,
    Grant,
    claim_digest,
    matches,
    mint_grant,
    present,
    seal,
    settlement_digest,
    token,
    unseal,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
things = st.binary(min_size=16, max_size=16)
fences = st.integers(0, 2**31 - 1)


def fits(text: str, grant: Grant, thing: bytes, fence: int, key: bytes = KEY) -> bool:
    presented = present(text)
    return presented is not None and matches(key, presented, grant.digest, thing, fence)


@given(things, fences)
def test_a_token_fits_its_thing_at_its_fence(thing: bytes, fence: int) -> None:
    grant = mint_grant()
    text = token(KEY, grant, thing, fence)
    assert len(text) == TOKEN_CHARS
    assert fits(text, grant, thing, fence)


@given(things, things, fences, fences)
def test_a_token_fits_no_other_thing_fence_grant_or_installation(
    one: bytes, other: bytes, fence: int, newer: int
) -> None:
    grant, another = mint_grant(), mint_grant()
    text = token(KEY, grant, one, fence)
    assert fits(text, grant, other, newer) == ((one, fence) == (other, newer))
    assert not fits(text, another, one, fence)
    assert not fits(text, grant, one, fence, OTHER_KEY)
    presented = present(text)
    assert presented is not None
    assert not matches(KEY, presented, None, one, fence)


def test_each_grant_has_a_secret_of_its_own_of_256_bits() -> None:
    grants = [mint_grant() for _ in range(1000)]
    assert len({grant.secret for grant in grants}) == len({grant.digest for grant in grants}) == 1000
    assert {len(grant.secret) for grant in grants} == {32}


def test_the_token_of_one_thing_says_nothing_about_anothers() -> None:
    grant = mint_grant()
    one, other = (base64.urlsafe_b64decode(token(KEY, grant, thing, 1) + "==") for thing in (b"a" * 16, b"b" * 16))
    assert one[:32] == other[:32] == grant.secret
    assert one[32:] != other[32:]


def test_what_the_database_keeps_is_not_the_secret() -> None:
    grant = mint_grant()
    assert grant.secret not in grant.digest
    forged = token(KEY, Grant(grant.digest, grant.digest), b"a" * 16, 1)
    assert not fits(forged, grant, b"a" * 16, 1)


@given(st.integers(0, TOKEN_CHARS - 1), st.sampled_from("ABCabc019-_"))
def test_a_token_with_one_other_character_fits_nothing(place: int, letter: str) -> None:
    grant = mint_grant()
    text = token(KEY, grant, b"a" * 16, 1)
    changed = text[:place] + letter + text[place + 1 :]
    # also the last one, of whose bits four carry nothing: a token has one spelling
    assert fits(changed, grant, b"a" * 16, 1) == (changed == text)


@pytest.mark.parametrize("text", ["", "x", "x" * 85, "x" * 87, "é" * 86, "\0" * 86, " " * 86, "=" * 86, "😀" * 86])
def test_what_cannot_be_a_token_is_none(text: str) -> None:
    assert present(text) is None


@given(st.text(max_size=100))
def test_no_text_makes_trouble(text: str) -> None:
    presented = present(text)
    assert presented is None or not matches(KEY, presented, mint_grant().digest, b"a" * 16, 1)


# -- claim ids -------------------------------------------------------------------------------------------------------------


def test_a_sealed_grant_opens_with_its_claim_id_and_api_key_alone() -> None:
    grant = mint_grant()
    sealed = seal(KEY, grant, "key-1", "claim-1")
    assert unseal(KEY, sealed, grant.digest, "key-1", "claim-1") == grant
    for key, key_id, claim_id in (
        (OTHER_KEY, "key-1", "claim-1"),
        (KEY, "key-2", "claim-1"),
        (KEY, "key-1", "claim-2"),
    ):
        assert unseal(key, sealed, grant.digest, key_id, claim_id) is None
    assert unseal(KEY, sealed, mint_grant().digest, "key-1", "claim-1") is None


def test_two_grants_under_one_claim_id_are_masked_otherwise() -> None:
    one, other = mint_grant(), mint_grant()
    masks = {
        bytes(a ^ b for a, b in zip(seal(KEY, grant, "key", "claim"), grant.secret, strict=True))
        for grant in (one, other)
    }
    assert len(masks) == 2


def test_a_claim_id_is_kept_as_a_digest_bound_to_its_api_key() -> None:
    assert claim_digest("key", "claim") == claim_digest("key", "claim")
    assert len({claim_digest("key", "claim"), claim_digest("key", "Claim"), claim_digest("kez", "claim")}) == 3
    assert b"claim" not in claim_digest("key", "claim")


# -- settlements -----------------------------------------------------------------------------------------------------------

parts = st.lists(st.one_of(st.none(), st.binary(max_size=5), st.text(max_size=5), st.integers(-9, 9)), max_size=4)


@given(parts, parts)
def test_settlements_have_one_digest_only_if_their_content_is_the_same(one: list[object], other: list[object]) -> None:
    def as_sent(content: list[object]) -> list[bytes]:
        return [part if isinstance(part, bytes) else repr(part).encode() for part in content]

    same = settlement_digest(*one) == settlement_digest(*other)  # type: ignore[arg-type]
    assert same == (as_sent(one) == as_sent(other))


def test_content_does_not_move_from_one_part_to_the_next() -> None:
    assert settlement_digest("ab", "c") != settlement_digest("a", "bc")
    assert settlement_digest("a", None) != settlement_digest("a")
    assert settlement_digest(None) != settlement_digest("None")


def test_a_grant_is_a_value() -> None:
    grant = mint_grant()
    assert replace(grant) == grant
    assert reservations.SECRET_BYTES * 8 >= 256
