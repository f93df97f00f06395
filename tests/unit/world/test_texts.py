"""Four languages that say the same: messages, variables, plural forms, digits, direction, style."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from babel import Locale
from fluent.syntax import FluentParser, ast
from fluent.syntax.visitor import Visitor

from web_world import pages
from web_world.countries import country_name, is_country, middles
from web_world.texts import BY_CODE, LANGUAGES, TextMissingError, choose, sources_of, texts_of

CODES = [language.code for language in LANGUAGES]
DIGITS = re.compile(r"\d")  # of any script
SOURCES = Path(pages.__file__).parent / "src"


class Message(Visitor):
    """What one message uses: its variables, its plural forms, and its own words."""

    def __init__(self, message: ast.Message) -> None:
        self.variables: set[str] = set()
        self.forms: list[set[str]] = []
        self.words = ""
        self.visit(message)

    def visit_VariableReference(self, node: Any) -> None:  # noqa: N802 - named by the library
        self.variables.add(node.id.name)

    def visit_SelectExpression(self, node: Any) -> None:  # noqa: N802
        self.forms.append({variant.key.name for variant in node.variants})
        self.generic_visit(node)

    def visit_TextElement(self, node: Any) -> None:  # noqa: N802
        self.words += node.value


def messages(code: str) -> dict[str, Message]:
    found: dict[str, Message] = {}
    for name, source in sources_of(BY_CODE[code]).items():
        for entry in FluentParser().parse(source).body:
            assert not isinstance(entry, ast.Junk), f"{code}/{name}: {entry.content}"
            if isinstance(entry, ast.Message):
                assert entry.id.name not in found, f"{code}: {entry.id.name} twice"
                found[entry.id.name] = Message(entry)
    return found


MESSAGES = {code: messages(code) for code in CODES}


@pytest.mark.parametrize("code", CODES)
def test_every_language_has_the_same_messages_with_the_same_variables(code: str) -> None:
    assert set(MESSAGES[code]) == set(MESSAGES["en"])
    for key, message in MESSAGES[code].items():
        assert message.variables == MESSAGES["en"][key].variables, key


@pytest.mark.parametrize("code", CODES)
def test_plural_forms_are_those_of_the_language(code: str) -> None:
    expected = set(Locale(code).plural_form.rules) | {"other"}
    for key, message in MESSAGES[code].items():
        for forms in message.forms:
            assert forms == expected, f"{code}: {key}"


@pytest.mark.parametrize("code", CODES)
def test_no_digit_stands_in_a_translation(code: str) -> None:
    for key, message in MESSAGES[code].items():
        assert not DIGITS.search(message.words), f"{code}: {key}"


def test_plurals_come_out_right() -> None:
    arabic, polish = texts_of("ar"), texts_of("pl")
    assert arabic.text("macs", count=2) == "جهازا ماك"
    assert arabic.text("macs", count=3).endswith("أجهزة ماك")
    assert arabic.text("macs", count=11).endswith("جهاز ماك")
    assert [polish.text("headline", count=count).split()[0] for count in (1, 2, 5, 22, 25)] == [
        "Mac",
        "Maki",
        "Maców",
        "Maki",
        "Maców",
    ]


def test_numbers_and_sizes_follow_the_language_with_pinned_digits() -> None:
    assert {code: texts_of(code).number(1_234_567) for code in CODES} == {
        "en": "1,234,567",
        "ar": "1,234,567",
        "pl": "1\xa0234\xa0567",
        "ur": "1,234,567",
    }
    assert texts_of("ur").short(1_200_000) == "12\xa0\u0644\u0627\u06a9\u06be"
    isolated = re.compile("[\u2068\u2069]")
    assert isolated.sub("", texts_of("en").memory(1536 << 30)) == "1.5\xa0TB"
    assert isolated.sub("", texts_of("pl").memory(1536 << 30)) == "1,5\xa0TB"
    assert isolated.sub("", texts_of("en").bandwidth(819 * 10**9)) == "819\xa0GB/s"


def test_countries_are_called_what_cldr_calls_them() -> None:
    assert [country_name("PL", code) for code in CODES] == ["Poland", "بولندا", "Polska", "پولینڈ"]
    assert country_name("ZZ", "en") != ""
    assert {"PL", "PK", "MT", "BH", "SG", "MV", "XK", "TW", "PS", "EH"} <= set(middles())
    assert not is_country("XX")
    assert len(middles()) > 230


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(TextMissingError, match="no message nothing"):
        texts_of("en").text("nothing")
    with pytest.raises(TextMissingError, match="stars"):
        texts_of("en").text("stars")


@pytest.mark.parametrize(
    ("cookie", "accepted", "expected"),
    [
        (None, None, "en"),
        (None, "pl,en;q=0.7", "pl"),
        (None, "de-DE,ur-PK;q=0.8,en;q=0.9", "en"),
        (None, "ar-EG", "ar"),
        ("ur", "pl", "ur"),
        ("xx", "pl;q=no,ar", "ar"),
        (None, "pl;q=nan,ar;q=1_0,ur;q=0.1", "ur"),
    ],
)
def test_the_readers_choice_goes_before_the_browsers(
    cookie: str | None, accepted: str | None, expected: str
) -> None:
    assert choose(cookie, accepted).code == expected


@pytest.mark.parametrize("path", sorted((SOURCES / "styles").glob("*.css")), ids=lambda path: path.name)
def test_style_uses_logical_directions_alone(path: Path) -> None:
    physical = re.compile(
        r"(?<![\w-])(?:(?:margin|padding|border|inset)-(?:left|right|top|bottom)|left|right|top|bottom"
        r"|width|height|(?:min|max)-(?:width|height)|float)\s*:|text-align:\s*(?:left|right)"
    )
    style = re.sub(r"@media[^{]*\{", "{", path.read_text())
    assert not physical.findall(style)
