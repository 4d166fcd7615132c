"""`pylogd settings`: list and explain the settings."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import click

from pylogd.cli.output import note, output_option, print_document, print_line, print_records
from pylogd.config import PROFILES, SETTINGS, TOPIC_SETTINGS, Profile, Setting
from pylogd.config.lookup import choices_of


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--topic", is_flag=True, help="Show settings of topics instead of brokers.")
@click.option("--profile", metavar="NAME", help=f"Show what a profile sets, and why: {', '.join(PROFILES)}.")
@output_option
def settings(names: Sequence[str], topic: bool, profile: str | None) -> None:
    """List the settings with their defaults, or explain the named ones. The last column names profiles that set it.

    Set them in the settings file or with `pylogd broker --set`; those of topics with `pylogd topics create --config`.
    Names are Kafka's.

    \b
    pylogd settings
    pylogd settings log.segment.bytes
    pylogd settings --topic
    pylogd settings --profile online
    """
    if profile is not None:
        _show_profile(_profile(profile), names)
        return
    table = TOPIC_SETTINGS if topic else SETTINGS
    chosen = [_find(name, topic) for name in names] or list(table.values())
    if print_document([_as_json(setting) for setting in chosen]):
        return
    if names:
        for setting in chosen:
            _explain(setting)
    else:
        rows = [{**_as_json(s), "doc": _first_sentence(s.doc), "profiles": list(choices_of(s.name))} for s in chosen]
        print_records(["name", "default", "doc", "profiles"], rows)


def _profile(name: str) -> Profile:
    if name not in PROFILES:
        raise click.ClickException(f'there is no profile "{name}": the profiles are {", ".join(PROFILES)}')
    return PROFILES[name]


def _show_profile(profile: Profile, names: Sequence[str]) -> None:
    """Print what a profile sets, of all settings or of the named ones."""
    for name in names:
        _find(name, False)
    rows = [
        {"name": name, "value": SETTINGS[name].format(SETTINGS[name].parse(value)) or "",
         "default": _default(SETTINGS[name]), "why": why}
        for name, value, why in profile.choices if not names or name in names
    ]  # fmt: skip
    if print_document({"profile": profile.name, "purpose": profile.purpose, "settings": rows}):
        return
    for line in click.wrap_text(profile.purpose, width=100).splitlines():
        note(line)
    print_records(["name", "value", "default", "why"], rows)


def _find(name: str, topic: bool) -> Setting:
    tables = [TOPIC_SETTINGS, SETTINGS] if topic else [SETTINGS, TOPIC_SETTINGS]
    for table in tables:
        if name in table:
            return table[name]
    near = difflib.get_close_matches(name, [*SETTINGS, *TOPIC_SETTINGS], 1)
    raise click.ClickException(f"there is no setting {name}" + (f"; did you mean {near[0]}?" if near else ""))


def _default(setting: Setting) -> str:
    text = setting.format(setting.default)
    return "" if text is None else text


def _first_sentence(doc: str) -> str:
    return doc.partition(". ")[0].rstrip(".")


def _explain(setting: Setting) -> None:
    print_line(setting.name, bold=True)
    for line in click.wrap_text(setting.doc, width=100, initial_indent="  ", subsequent_indent="  ").splitlines():
        print_line(line)
    for label, value in _as_json(setting).items():
        if label not in ("name", "doc", "profiles") and value not in (None, [], ""):
            print_line(f"  {label.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")
    for name, choice in choices_of(setting.name).items():
        print_line(f"  profile {name}: {setting.format(setting.parse(choice.value))} ({choice.why.rstrip('.')})")


def _as_json(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "doc": setting.doc,
        "type": setting.type.name.lower(),
        "default": setting.format(setting.default),
        "accepts": setting.allowed,
        "or_else": [name for name, _ in setting.synonyms],
        "takes_effect": setting.mode.value,
        "profiles": {
            name: setting.format(setting.parse(choice.value)) for name, choice in choices_of(setting.name).items()
        },
    }
