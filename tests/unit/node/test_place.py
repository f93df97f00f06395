"""What of a place leaves the Mac: a country's code or one coarse cell, and how it is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from node_agent import place as places
from node_agent.identity import load_identity
from node_agent.place import Atlas, Place, PlaceError, choose, parse_atlas, preview, suggested_country
from tests.unit.node.test_cli import mlx_node
from web_world.cells import is_area

ZONE_TAB = (
    "# a comment\nPL\t+5215+02100\tEurope/Warsaw\nPK\t+2452+06703\tAsia/Karachi\n"
    "AR\t-343600-0582700\tAmerica/Argentina/Buenos_Aires\tBuenos Aires (BA, CF)\nbroken\n"
)
ISO3166_TAB = "#\nPL\tPoland\nPK\tPakistan\nAR\tArgentina\n"
ATLAS = parse_atlas(ZONE_TAB, ISO3166_TAB)


def chosen(kind: str, *, country: str | None = None, near: str | None = None, suggestion: str = "") -> Place:
    return choose(kind, country=country, near=near, atlas=ATLAS, suggestion=suggestion)


def test_the_tables_of_time_zones_give_towns_and_countries() -> None:
    assert ATLAS.towns["Europe/Warsaw"] == places.Town("PL", 52.25, 21.0)
    south_west = ATLAS.towns["America/Argentina/Buenos_Aires"]
    assert (south_west.latitude, south_west.longitude) == (-34.6, -58.45)
    assert ATLAS.country_name("PK") == "Pakistan"
    assert ATLAS.country_name("XX") == "XX"


def test_the_suggestion_is_the_country_of_the_time_zone(tmp_path: Path) -> None:
    zone = tmp_path / "localtime"
    zone.symlink_to("/usr/share/zoneinfo/Asia/Karachi")
    assert suggested_country(ATLAS, zone) == "PK"
    assert suggested_country(ATLAS, tmp_path / "missing") == ""
    assert suggested_country(Atlas({}, {}), zone) == ""


@pytest.mark.parametrize(
    ("near", "country", "expected"),
    [
        ("Warsaw", None, "PL"),
        ("buenos aires", None, "AR"),
        ("52.25, 21.0", "PL", "PL"),
        ("24.87 67.05", "pk", "PK"),
    ],
)
def test_an_area_is_one_coarse_cell(near: str, country: str | None, expected: str) -> None:
    found = chosen("area", near=near, country=country)
    assert (found.kind, found.country) == ("area", expected)
    assert is_area(found.cell)
    assert found.cell == chosen("area", near=near, country=country).cell


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        ("town", {}, "--place"),
        ("country", {"country": "Poland"}, "--country"),
        ("country", {"country": "XX"}, "--country"),
        ("country", {}, "--country"),
        ("area", {}, "--near"),
        ("area", {"near": "Atlantis"}, "--near"),
        ("area", {"near": "95,20", "country": "PL"}, "--near"),
        ("area", {"near": "52.2,21.0"}, "--country"),
    ],
)
def test_a_bad_choice_names_the_option(kind: str, options: dict[str, str], field: str) -> None:
    with pytest.raises(PlaceError, match=field):
        chosen(kind, **options)


def test_the_preview_says_what_the_public_sees_and_no_position() -> None:
    assert "at least one Mac" in preview(chosen("country", country="PL"), ATLAS).replace("\n", " ")
    area = preview(chosen("area", near="52.2297,21.0122", country="PL"), ATLAS)
    assert "Poland (PL)" in area.replace("\n", " ")
    assert "52.2297" not in area
    assert "star" in preview(Place(), ATLAS)


def test_what_is_sent_has_no_position(tmp_path: Path) -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"sequence": 4, "kind": "area", "light": None})

    found = chosen("area", near="52.2297,21.0122", country="PL")
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        taken = places.tell(client, "http://c.example", load_identity(tmp_path), found, sequence=4)
    assert taken.sequence == 4
    sent = json.loads(seen[0].content)
    assert sent == {"sequence": 4, "kind": "area", "country": "PL", "cell": found.cell}


def test_a_refusal_is_told_in_words(tmp_path: Path) -> None:
    refusal = {"error": {"message": "A choice must have a number above 9, this one's last."}}
    transport = httpx2.MockTransport(lambda _request: httpx2.Response(409, json=refusal))
    with httpx2.Client(transport=transport) as client, pytest.raises(PlaceError, match="above 9"):
        places.tell(client, "http://c.example", load_identity(tmp_path), Place(), sequence=1)


def test_the_command_needs_a_joined_node_and_says_what_is_shown(tmp_path: Path) -> None:
    assert "has not joined" in mlx_node("place", "country", home=tmp_path).stderr
    config = {"coordinator": "http://127.0.0.1:9", "node_id": "node_x", "name": "mini", "place": "country"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"place_country": "PL"}))
    assert mlx_node("place", home=tmp_path).stdout.strip() == "country PL"
    refused = mlx_node("place", "country", "--country", "PL", home=tmp_path)
    assert refused.returncode == 1
    assert "could not be reached" in refused.stderr
    assert "at least one Mac" in refused.stderr.replace("\n", " ")
