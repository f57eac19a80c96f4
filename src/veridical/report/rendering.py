"""Pages from plain data: templates with autoescape, one style, one script, and a policy that forbids more."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import Tensor

from veridical._version import __version__
from veridical.core.files import read_file, understood, write_file
from veridical.errors import FormatError, InputError, visible
from veridical.report import charts
from veridical.report.charts import number

TEMPLATES = Path(__file__).parent / "templates"
FORMAT = 1
FORMATS = ("html", "md")
KINDS = ("audit", "evaluation", "study")
CONTENTS = "report.json"


def opening(kind: str, name: str) -> dict[str, Any]:
    """What all contents begin with."""
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"kind": kind, "format": FORMAT, "version": __version__, "made": made, "name": name}


def write(contents: Mapping[str, Any], path: str | Path, format: str = "html") -> Path:
    """Render and write atomically: a reader finds the whole page or none."""
    return write_file(path, render(contents, format), private=False)


def save(contents: Mapping[str, Any], path: str | Path) -> Path:
    """The contents as JSON."""
    text = json.dumps(contents, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    return write_file(path, text, private=False)


def read(path: str | Path) -> dict[str, Any]:
    """Contents that `save` wrote; of a folder, those in its report.json."""
    path = Path(path)
    path = path / CONTENTS if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"there is no {path}; an audit with --out writes it")
    try:
        contents = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not the contents of a report: {error}") from error
    if not isinstance(contents, dict) or contents.get("kind") not in KINDS:
        raise FormatError(f"{path} is not the contents of a report")
    if not isinstance(contents.get("format", 0), int):
        raise FormatError(f"{path} does not say which format it has")
    if contents.get("format", 0) > FORMAT:
        raise FormatError(f"{path} has format {contents['format']}, this version reads up to {FORMAT}")
    return contents


def render(contents: Mapping[str, Any], format: str = "html", own: Path | None = None) -> str:
    """The page of these contents; the same contents give the same page, byte for byte.

    Templates are looked for in `own` first, where it is given.
    """
    if format not in FORMATS:
        raise InputError(f"a report is written as {' or '.join(FORMATS)}, got '{format}'")
    name = f"{contents['kind']}.{format}"
    style, script = _asset("style.css"), _asset("script.js")
    from jinja2 import UndefinedError

    frame = {"style": style, "script": script, "policy": policy(style, script)}
    template = environment(format, own).get_template(name)
    try:
        with understood("a report's contents"):
            page: str = template.render({**contents, **frame})
    except UndefinedError as error:
        raise FormatError(f"the contents lack something that a report shows: {error}") from error
    return re.sub(r"\n{3,}", "\n\n", page) if format == "md" else page


def policy(style: str, script: str) -> str:
    """Nothing may be loaded; only this style and this script may act."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def environment(format: str, own: Path | None = None) -> Any:
    """Jinja with autoescape for HTML, and with escaping of its own for Markdown."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([TEMPLATES] if own is None else [own, TEMPLATES]),
        autoescape=format == "html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_text if format == "html" else _markdown,
    )
    made.globals |= {"charts": charts}
    made.filters |= {
        "number": number,
        "tick": charts.tick,
        "xy": charts.coordinate,
        "percent": percent,
        "level": level,
        "p": p_value,
        "soft": soft,
        "short": short,
        "span": span,
        "fenced": fenced,
    }
    return made


@cache
def _asset(name: str) -> str:
    """A style or script that may stand inside its element as it is: it holds no closing tag."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    assert "</" not in text, f"{name} would end its own element"
    return "\n" + text


def _text(value: Any) -> Any:
    return visible(value) if type(value) is str else value


class Raw(str):
    """Text that is Markdown already."""


_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def _markdown(value: Any) -> Any:
    """Text with Markdown's marks escaped, on one line, so that no name can start a link, a tag or a cell."""
    if isinstance(value, Raw) or not isinstance(value, str):
        return value
    return _MARKS.sub(r"\\\1", visible(" ".join(value.split())))


def fenced(text: str, language: str = "") -> Raw:
    """A block of code whose fence is longer than any the text holds."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Raw(f"{fence}{language}\n{text.strip()}\n{fence}")


def percent(share: float | None, digits: int = 0) -> str:
    """A share in percent.

    >>> percent(0.123), percent(None)
    ('12%', '–')
    """
    return "–" if share is None else f"{share:.{digits}%}"


def p_value(p: float | None) -> str:
    """A p-value as papers write it.

    >>> p_value(0.00001), p_value(0.0432), p_value(None)
    ('< 0.001', '0.043', '–')
    """
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def level(share: float | None, steps: int = 20) -> int:
    """A share as one of the style sheet's steps."""
    return 0 if share is None else round(max(0.0, min(1.0, share)) * steps)


def short(value: float | None, digits: int = 2) -> str:
    """A figure with few digits; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def span(low: float | None, high: float | None, digits: int | None = None) -> str:
    """An interval, in percent unless digits are given; nothing where there is none."""
    if low is None or high is None:
        return ""
    if digits is None:
        return f"{low:.0%}–{high:.0%}"
    return f"{low:.{digits}f}–{high:.{digits}f}"


def soft(name: str) -> Markup:
    """A name that may break after its underscores and colons."""
    return Markup("<wbr>").join(re.split(r"(?<=[_:/])(?=[^_:/])", name))


DIGITS = 7
"""Significant digits kept: single precision, and files half as large."""


def plain(value: Any) -> Any:
    """Anything as JSON-able data; floats to seven digits, other things as their text.

    >>> plain({"a": (1.0, float("nan")), 2: None})
    {'a': [1.0, None], '2': None}
    """
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Tensor):
        return plain(value.detach().cpu().tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(held) for held in value]
    return str(value)
