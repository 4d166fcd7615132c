"""Regular expressions of ECMA-262: which are valid, and what they match. The expected answers are those of V8."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.client.registry.pattern_engines import Untranslatable
from pylogd.client.registry.patterns import InvalidPattern, for_python, in_schema, patterns_of, plain
from pylogd.lake.typed.errors import Misfit, NotEncoded
from pylogd.lake.typed.json_codec import _Json
from pylogd.lake.typed.json_schema import JsonReader
from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.formats.json_schema import canonical, conflicts
from pylogd.services.registry.model import Definition
from tests.fakes.registered import json_schema

#: A pattern, texts that it matches, and texts that it does not match.
VALID: list[tuple[str, list[str], list[str]]] = [
    (r"^\p{L}+$", ["é", "λa"], ["1", "", "a\n"]), (r"^\P{L}$", ["1"], ["a"]), (r"^[\p{Lu}\d]$", ["A", "7"], ["a"]),
    (r"^[^\p{Lu}a]$", ["b", "-"], ["A", "a"]), (r"^\p{Letter}\p{gc=Nd}$", ["é٣"], ["1a"]),
    (r"^\p{General_Category=Uppercase_Letter}$", ["Ä"], ["ä"]), (r"^\p{ASCII}$", ["a"], ["é"]),
    (r"^\p{AHex}$", ["F"], ["g"]), (r"^(?<year>\d{4})-\k<year>$", ["2026-2026"], ["2026-2027"]),
    (r"^(?:(?<n>a)|(?<n>b))\k<n>$", ["aa", "bb"], ["ab"]), (r"^\u{1F600}$", ["😀"], ["u"]), (r"^\u0041$", ["A"], ["a"]),
    (r"^\uD83D\uDE00$", ["😀"], []), (r"^\x41\cJ$", ["A\n"], ["AJ"]), (r"^[^]$", ["\n", "a"], [""]),
    (r"^[]", [], ["", "a"]),
    (r"a$", ["a", "ba"], ["a\n"]), (r"^\d$", ["1"], ["٣"]), (r"^\w$", ["_"], ["é"]),
    (r"^\s$", ["\ufeff", "\u00a0"], ["\x1c"]),
    (r"^.$", ["a", "\u0085", "😀"], ["\n", "\u2028", "\r"]), (r"\bé", ["aé"], ["é"]), (r"^\0[\b]$", ["\0\b"], ["0b"]),
    (r"^(a)?b\1$", ["b", "aba"], ["ab"]), (r"^\1(a)$", ["a"], ["aa"]), (r"^(?=a)\w(?!b)$", ["a"], ["b"]),
    (r"(?<=a)b", ["ab"], ["b"]), (r"(?<!a)b", ["b"], ["ab"]), (r"^\-\/\_$", ["-/_"], []), (r"^{}]$", ["{}]"], []),
    (r"^[a&&b[]$", ["&", "["], ["c"]), (r"^[\w-]$", ["-", "a"], ["+"]), (r"^a{2,3}?$", ["aa"], ["a"]),
    (r"^a{2,}$", ["aaaa"], ["a"]), (r"^(?i:a)b$", ["Ab"], ["AB"]), (r"^(?i:a(?-i:b))$", ["Ab"], ["AB"]),
    (r"(?m:^b$)", ["a\nb", "b\u2028"], ["ab"]), (r"^(?s:.)$", ["\n"], []), (r"^[\cA-\x03]$", ["\x02"], ["\x04"]),
]  # fmt: skip
#: References to groups that took no part, which match nothing at all in ECMA-262, and don't match in Rust's engine.
LATE_GROUPS = (r"^(?:(?<n>a)|(?<n>b))\k<n>$", r"^(a)?b\1$")
#: Valid patterns that Python's engine can't try.
NOT_FOR_PYTHON = [r"^\p{Script=Greek}$", r"\p{sc=Latn}", r"\p{scx=Deva}", r"\p{Emoji}", r"\P{ID_Start}", r"(?<=a+)b"]
#: What Python, or another engine, has and ECMA-262 has not; and what nobody has.
INVALID = [
    "(?P<x>a)", "(?P<x>a)(?P=x)", "(?#c)a", "(?>a)", "(?i)a", "(?(1)a|b)", "(?<x>a)(?P>x)", r"\Aa", r"a\Z", r"a\z",
    r"\h", r"\N{DIGIT ONE}", r"\e", r"\a", r"\G", r"\Qa\E", r"\U0001F600", "a++", "a**", "a?+", "a{2}{3}", "a{,3}",
    "[a", "(a", "a)", "(", "[b-a]", r"[a-\d]", r"[\d-z]", "*a", "+", "?", "a|*", "^*", "(?=a)*", "{1}", "a{2,1}", "\\",
    r"\1", r"(a)\2", r"(?<n>a)\k<m>", r"(?<n>a)\k", "(?<1>a)", "(?<>a)", "(?<n>a)(?<n>b)", r"\x4", r"\u004", r"\u{}",
    r"\u{110000}", r"\p", r"\p{}", r"\p{Foo}", r"\p{Script=Klingon}", r"\p{IsGreek}", r"\p{letter}", r"\pL", r"\01",
    r"\c", r"\c1", "(?ii:a)", "(?i-i:a)", "(?-:a)", "(?x:a)", r"[\B]",
]  # fmt: skip


def schema_of(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


@pytest.mark.parametrize(("pattern", "matching", "others"), VALID)
def test_valid_patterns_in_all_engines(pattern: str, matching: list[str], others: list[str]) -> None:
    """The registry takes them; Python's engine, jsonschema-rs, `produce` and typed tables agree on what they match."""
    text = json.dumps(schema_of(pattern))
    assert json.loads(canonical((Definition("", text),), normalize=False)) == schema_of(pattern)
    engine = jsonschema_rs.Draft7Validator({"pattern": plain(pattern)})
    written, reader = _Json(json_schema(schema_of(pattern))), JsonReader(json_schema(schema_of(pattern)))
    for value in [*matching, *others]:
        expected = value in matching
        body = json.dumps(value).encode()
        assert (re.search(for_python(pattern), value) is not None) == expected, value
        if pattern not in LATE_GROUPS:
            assert engine.is_valid(value) == expected, value
            assert _fits(lambda: reader.read(body)) == expected, value  # noqa: B023
        assert _fits(lambda: written.write(value)) == expected, value  # noqa: B023


def _fits(use: Any) -> bool:
    try:
        use()
    except (Misfit, NotEncoded):
        return False
    return True


@pytest.mark.parametrize("pattern", NOT_FOR_PYTHON)
def test_valid_patterns_that_python_can_not_try(pattern: str) -> None:
    text = json.dumps(schema_of(pattern))
    assert canonical((Definition("", text),), normalize=False)
    with pytest.raises(Untranslatable, match="Python"):
        for_python(pattern)
    assert JsonReader(json_schema(schema_of(pattern)))
    form = _Json(json_schema(schema_of(pattern)))
    assert form.read(b'"a"') == "a"
    with pytest.raises(NotEncoded, match="can't be checked by the schema"):
        form.write("a")
    closed = {"type": "object", "patternProperties": {pattern: {"type": "string"}}, "additionalProperties": False}
    more = {**closed, "properties": {"x": {"type": "string"}}}
    definitions = [(Definition("", json.dumps(each)),) for each in (more, closed)]
    assert conflicts(*definitions) == [], "it is taken as one that matches"


@pytest.mark.parametrize("pattern", INVALID)
@pytest.mark.parametrize(
    "make",
    [
        schema_of,
        lambda pattern: {"patternProperties": {pattern: {}}},
        lambda pattern: {"$schema": "http://json-schema.org/draft-04/schema#", "patternProperties": {pattern: {}}},
        lambda pattern: {"properties": {"pattern": {"items": [{"pattern": pattern}]}}},
    ],
)
def test_patterns_that_are_not_ecma_262(pattern: str, make: Any) -> None:
    with pytest.raises(InvalidPattern):
        plain(pattern)
    with pytest.raises(InvalidSchema, match=r"is not a regular expression of ECMA-262: .*\(at \d+\)|ECMA-262"):
        canonical((Definition("", json.dumps(make(pattern))),), normalize=False)


def test_earlier_schemas_with_other_patterns_can_still_be_followed() -> None:
    """Another registry, whose topic was taken over, may have accepted them."""
    old, new = ((Definition("", json.dumps(each)),) for each in (schema_of("(?i)a"), {"type": "string"}))
    assert conflicts(new, old) == []
    assert conflicts(old, new) == ["PATTERN_ADDED at #/pattern"]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab1-^$|()[]{}*+?\\.dwsbBpPuxck<>=!:,n{L}", max_size=12))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    try:
        found = plain(text)
    except InvalidPattern:
        return
    assert plain(found) is not None, "what is written is valid again"
    with suppress(Untranslatable):
        re.compile(for_python(text))


def test_deep_patterns_are_refused() -> None:
    with pytest.raises(InvalidPattern, match="nested too deeply"):
        plain("(" * 5_000)


def test_patterns_are_found_where_the_drafts_have_schemas() -> None:
    """A property, a value or an extension called `pattern` is no pattern."""
    schema = {
        "pattern": "1", "properties": {"pattern": {"pattern": "2"}, "x": {"default": {"pattern": "("}}},
        "const": {"pattern": "("}, "x-note": {"pattern": "("}, "patternProperties": {"3": {"pattern": "4"}},
        "allOf": [{"not": {"pattern": "5"}}, True], "items": [{"pattern": "6"}],
        "dependencies": {"a": ["b"], "c": {"pattern": "7"}},
    }  # fmt: skip
    assert sorted(patterns_of(schema)) == ["1", "2", "3", "4", "5", "6", "7"]
    assert canonical((Definition("", json.dumps(schema)),), normalize=False)
    changed = in_schema(schema, lambda pattern: f"<{plain(pattern)}>")
    assert sorted(patterns_of(changed)) == [f"<{each}>" for each in "1234567"]
    assert (changed["const"], changed["x-note"]) == (schema["const"], schema["x-note"])
    assert changed["properties"]["x"] == {"default": {"pattern": "("}}


def test_a_misfit_names_the_pattern_as_it_was_written() -> None:
    reader = JsonReader(json_schema(schema_of(r"^\d-(?<n>\w)$")))
    with pytest.raises(Misfit, match=re.escape(r'"^\d-(?<n>\w)$"')):
        reader.read(b'"x"')
