"""A class may have the same names on a device as in a workspace."""

import json
from pathlib import Path

import pytest
from device_parts import frame_of, publish
from hypothesis import given
from hypothesis import strategies as st

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.text import hidden_character
from edge_hpcr.stream import Frame
from edge_hpcr.workspace.records import clean_name
from export.device.errors import BadModel
from export.device.line import as_text, result_line
from export.device.manifest import parse_classes
from export.device.model import Classifier, Label, Result

GOOD = [
    "mug",
    "a",
    "two words",
    "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}",  # a family is one emoji
    "\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a zero width non-joiner
    "caf\u00e9",
    "a\N{NO-BREAK SPACE}b",
    "\u0915\u094d\u200d\u0937",  # Hindi, with a zero width joiner after the virama
    "\N{WOMAN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}\u200d\N{PERSONAL COMPUTER}",
    "\N{WAVING WHITE FLAG}\ufe0f\u200d\N{RAINBOW}",
    "\N{WAVING BLACK FLAG}\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",  # England's
    "box 1\ufe0f\N{COMBINING ENCLOSING KEYCAP}",
    "\u8fbb\U000e0100",  # a variant of a kanji, in names of people
    "\ue000",  # private use: somebody's own font
    "\u0378",  # not assigned here, but perhaps by the Unicode of a newer Python
    "x" * 100,
]
BAD = [
    "",
    " ",
    "\N{EM SPACE}",
    "a\nb",
    "a\tb",
    "a\0b",
    "a\x1b[31mb",
    "a\x85b",
    "a\N{LINE SEPARATOR}b",
    "a\N{PARAGRAPH SEPARATOR}b",
    "a\ud800b",
    "x" * 101,
]
HIDDEN = [
    "m\N{ZERO WIDTH SPACE}ug",
    "mug\N{ZERO WIDTH NO-BREAK SPACE}",
    "m\N{ZERO WIDTH NON-JOINER}ug",
    "mug\N{ZERO WIDTH JOINER}",
    "m\N{VARIATION SELECTOR-16}ug",
    "mug 1\N{VARIATION SELECTOR-16}",
    "a\N{SOFT HYPHEN}b",
    "a\N{WORD JOINER}b",
    "\N{RIGHT-TO-LEFT OVERRIDE}gum",
    "\N{LEFT-TO-RIGHT ISOLATE}mug\N{POP DIRECTIONAL ISOLATE}",
    "mug\N{RIGHT-TO-LEFT MARK}",
    "mug\U000e0067\U000e007f",
    "mug\N{HANGUL FILLER}",
    "mug\N{MONGOLIAN FREE VARIATION SELECTOR ONE}",
    "\N{BRAILLE PATTERN BLANK}",
    "\u0645\N{ARABIC LETTER MARK}\u06cc",
    "\N{MAN}\N{ZERO WIDTH JOINER}",
]


@pytest.mark.parametrize("name", HIDDEN, ids=ascii)
def test_a_name_with_characters_that_nobody_sees_is_no_new_name_but_a_published_model_goes_on(name: str):
    with pytest.raises(
        UserError, match=r"holds a character that nobody sees \(U\+[0-9A-F]{4,5}.*\): write it"
    ):
        clean_name(name)
    (label,) = parse_classes([{"id": 1, "name": name}], "manifest.json")
    assert label.name == name


@given(st.text("abcXYZ 019", min_size=1), st.characters(categories=["Cf"]), st.integers(0, 20))
def test_among_latin_letters_no_format_character_is_taken(name: str, hidden: str, place: int):
    place = min(place, len(name))
    assert hidden_character(name) is None
    assert hidden_character(name[:place] + hidden + name[place:]) == hidden


@pytest.mark.parametrize("name", GOOD, ids=ascii)
def test_a_name_that_a_workspace_takes_is_taken_by_a_device(name: str):
    assert clean_name(name) == name
    (label,) = parse_classes([{"id": 1, "name": name}], "manifest.json")
    assert label.name == name


@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name[:20]))
def test_a_name_that_a_workspace_refuses_is_refused_by_a_device(name: str):
    with pytest.raises(UserError):
        clean_name(name)
    with pytest.raises(BadModel, match=r"classes\[0\]\.name must be text of 1 to 100 characters"):
        parse_classes([{"id": 1, "name": name}], "manifest.json")


def test_a_joined_emoji_comes_through_model_manifest_and_result(tmp_path: Path):
    name = GOOD[3]
    publish(tmp_path / "exports", 1, names=(name, GOOD[5]))
    classifier = Classifier.load(tmp_path / "exports", "cpu", 1)
    assert [each.name for each in classifier.info.classes] == [name, GOOD[5]]
    assert classifier.predict([frame_of("white")])[0].top[0].name in (name, GOOD[5])
    frame = Frame(frame_of("red"), "camera 0", None, None, 0.0)
    result = Result([Label(1, name, 1.0)], False, 1.0)
    line = as_text(result_line(1, frame.at, frame.origin, "cam", result, result.top[0], 1, 1.0))
    assert line.isascii() and json.loads(line)["top"][0]["name"] == name
