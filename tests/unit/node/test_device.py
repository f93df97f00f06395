"""Which Mac this is: what is read, and that no two coordinators are told the same."""

from __future__ import annotations

import re

import pytest

from node_agent.hardware import device
from node_agent.protocol import messages as wire

# Abridged, with a UUID and a serial number of nobody's.
IOREG = """+-o J375d  <class IOPlatformExpertDevice, id 0x100000233, registered, matched, active, busy 0>
    {
      "IOPlatformSerialNumber" = "X00XX0XX0X"
      "IOBusyInterest" = "IOCommand is not serializable"
      "target-type" = <"J375d">
      "IOPlatformUUID" = "0A1B2C3D-4E5F-6071-8293-A4B5C6D7E8F9"
      "model" = <"Mac15,14">
    }
"""
UUID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"


def test_the_uuid_is_found_and_the_serial_number_is_not_taken_for_it() -> None:
    assert device.parse_platform_uuid(IOREG) == UUID


@pytest.mark.parametrize("text", ["", "{}", '"IOPlatformUUID" = "short"', IOREG.replace("UUID", "Name")])
def test_without_a_uuid_there_is_none(text: str) -> None:
    assert device.parse_platform_uuid(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0123456789abcdef0123456789abcdef\n", "0123456789abcdef0123456789abcdef"),
        ("uninitialized\n", None),
        ("", None),
    ],
)
def test_machine_ids(text: str, found: str | None) -> None:
    assert device.parse_machine_id(text) == found


def test_each_coordinator_is_told_another_digest_and_none_shows_the_identity() -> None:
    digests = [device.device_digest(origin, UUID) for origin in ("https://a.example", "https://b.example")]
    assert len(set(digests)) == 2
    for digest in digests:
        assert re.fullmatch(r"[0-9a-f]{64}", digest)
        assert UUID not in digest
    assert device.device_digest("https://a.example", UUID) == digests[0]


def test_an_identity_can_be_given_to_machines_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.IDENTITY_VARIABLE, "container 7")
    assert device.device_of("https://a.example") == device.device_digest("https://a.example", "container 7")


def test_a_hello_of_an_older_node_has_no_device() -> None:
    hello = wire.Hello(
        node_id="node_1",
        public_key="k",
        nonce="n" * 16,
        signature="s",
        agent_version="0.1",
        hardware=wire.Hardware(memory_bytes=1, lent_bytes=1, bandwidth_bytes_per_second=1),
    )
    text = wire.encode(hello).replace('"device":null,', "")
    assert "device" not in text
    assert wire.parse_to_coordinator(text) == hello
