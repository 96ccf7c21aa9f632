"""Secrets at rest: only the right key and the right row open them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import StartupProblem
from app.outgoing.vault import EncryptionKeyLost, NoEncryptionKey, SealBroken, Vault, new_key, parse_key
from app.settings import load

OLD, NEW = parse_key(new_key()), parse_key(new_key())


@given(secret=st.binary(max_size=200), context=st.text(st.characters(exclude_categories=["Cs"])))
def test_what_was_sealed_opens_as_it_was(secret: bytes, context: str) -> None:
    sealed = Vault([NEW]).seal(secret, context)
    assert Vault([NEW]).open(sealed, context) == secret
    assert len(secret) < 8 or secret not in sealed


def test_a_sealed_secret_does_not_open_in_another_row() -> None:
    vault = Vault([NEW])
    sealed = vault.seal(b"whsec", "destination:a:signing")
    for context in ("destination:b:signing", "destination:a", "", "destination:a:signing "):
        with pytest.raises(SealBroken):
            vault.open(sealed, context)


def test_no_byte_of_a_sealed_secret_can_be_changed() -> None:
    vault = Vault([NEW])
    sealed = vault.seal(b"secret", "x")
    for position in range(len(sealed)):
        changed = sealed[:position] + bytes([sealed[position] ^ 1]) + sealed[position + 1 :]
        with pytest.raises((SealBroken, EncryptionKeyLost)):
            vault.open(changed, "x")
    for short in (b"", sealed[:10], sealed[:-1], sealed + b"x"):
        with pytest.raises((SealBroken, EncryptionKeyLost)):
            vault.open(short, "x")


def test_the_same_secret_is_never_sealed_the_same() -> None:
    assert len({Vault([NEW]).seal(b"secret", "x") for _ in range(100)}) == 100


def test_keys_rotate_without_a_gap_and_the_old_one_is_missed_by_its_name() -> None:
    sealed = Vault([OLD]).seal(b"secret", "x")
    both = Vault([NEW, OLD])
    assert both.open(sealed, "x") == b"secret"
    assert not both.sealed_by_first(sealed)
    anew = both.seal(both.open(sealed, "x"), "x")
    assert both.sealed_by_first(anew)
    assert Vault([NEW]).open(anew, "x") == b"secret"
    with pytest.raises(EncryptionKeyLost, match="TENURE_ENCRYPTION_KEYS"):
        Vault([NEW]).open(sealed, "x")


def test_without_a_key_nothing_is_sealed_and_the_setting_is_named() -> None:
    vault = Vault()
    assert not vault.usable
    with pytest.raises(NoEncryptionKey, match="TENURE_ENCRYPTION_KEYS"):
        vault.seal(b"secret", "x")
    with pytest.raises(NoEncryptionKey):
        vault.open(Vault([NEW]).seal(b"secret", "x"), "x")


def test_keys_come_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    first, second = new_key(), new_key()
    monkeypatch.setenv("TENURE_ENCRYPTION_KEYS", f"{first},{second}")
    settings = load()
    assert first not in repr(settings)
    sealed = Vault.from_settings(settings).seal(b"secret", "x")
    assert Vault([parse_key(first)]).open(sealed, "x") == b"secret"
    monkeypatch.delenv("TENURE_ENCRYPTION_KEYS")
    with open(f"{tmp_path}/keys", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(f"{second}\n{first}\n")
    monkeypatch.setenv("TENURE_ENCRYPTION_KEYS_FILE", f"{tmp_path}/keys")
    assert Vault.from_settings(load()).open(sealed, "x") == b"secret"


@pytest.mark.parametrize("wrong", ["canary", "A" * 43, "A" * 44 + "=", "é" * 44, "QQ==", "A" * 42 + "-_"])
def test_a_malformed_key_stops_the_start_and_is_not_shown(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("TENURE_ENCRYPTION_KEYS", f"{new_key()},{wrong}")
    with pytest.raises(StartupProblem) as stopped:
        Vault.from_settings(load())
    assert str(stopped.value).startswith("setting TENURE_ENCRYPTION_KEYS is wrong: key 2 ")
    assert wrong not in str(stopped.value)


def test_a_key_that_stands_there_twice_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    monkeypatch.setenv("TENURE_ENCRYPTION_KEYS", f"{key} {key}")
    with pytest.raises(StartupProblem, match="twice"):
        Vault.from_settings(load())
