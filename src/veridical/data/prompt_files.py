"""A language model on prompts of a .jsonl file: every line is checked before the model is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from veridical.data.files import existing_file, json_lines, require, some_rows
from veridical.data.generation import Generation
from veridical.data.huggingface import CAUSAL, ENCODING, quietly, reading_errors
from veridical.data.model_files import HUB
from veridical.errors import FormatError, InputError

OTHERS = ("arch", "train", "labels", "masks", "text", "classes", "image")
"""What describes the data of other models."""
FIELDS = ("prompt", "question", "answer", "foil", "units", "id")
EXAMPLE = (
    '{"prompt": "Ann has a cat. Bob has a dog. ", "question": "Ann has a", "answer": " cat", "foil": " dog"}'
)


def read_prompts(data: Any) -> dict[str, Any]:
    """Prompts from a .jsonl file, or from a list of texts or of mappings with the same fields.

    Returns one list per field, or None where no prompt has it: `prompt` (texts, or lists of chat messages),
    `question` (texts behind the prompts that are never switched off), `answer` (None lets the model answer),
    `foil` (what might have been answered instead), `units` (where those of each prompt begin and end), `id`.
    """
    rows = _lines(Path(data)) if isinstance(data, str | Path) else _given(data)
    if not rows:
        raise FormatError(f"{data if isinstance(data, str | Path) else 'the data'} holds no prompt")
    first_where, first = rows[0]
    for where, row in rows:
        unknown = [name for name in row if name not in FIELDS]
        if unknown:
            raise FormatError(f"{where} has the field {unknown[0]!r}; fields are {', '.join(FIELDS)}")
        if "prompt" not in row:
            raise FormatError(f"{where} has no 'prompt'; a line is {EXAMPLE}")
        if row.keys() != first.keys():
            raise FormatError(f"{where} has the fields {list(row)}, {first_where} has {list(first)}")
        for name in ("prompt", "question", "answer", "foil"):
            value = row.get(name, " ")
            if not value or not isinstance(value, str | list if name == "prompt" else str):
                raise FormatError(f"the {name} of {where} is {value!r:.60}; it is a text that is not empty")
    columns = {name: [row[name] for _, row in rows] if name in first else None for name in FIELDS}
    if columns["units"] is not None:
        columns["units"] = [_spans(where, row["prompt"], row["units"]) for where, row in rows]
    if columns["id"] is not None and len({*map(str, columns["id"])}) < len(rows):
        raise FormatError("two prompts have the same id; give each its own, or none")
    return columns


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    if path.suffix.lower() != ".jsonl":
        raise InputError(f"prompts are read from a .jsonl file with lines such as {EXAMPLE}; got {path.name}")
    return list(json_lines(existing_file(path)))


def _given(data: Any) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(data, Sequence):
        raise InputError(
            f"a language model takes prompts: a .jsonl file, or a list; got {type(data).__name__}"
        )
    rows = [dict(row) if isinstance(row, Mapping) else {"prompt": row} for row in data]
    return [(f"prompt {number}", row) for number, row in enumerate(rows)]


def _spans(where: str, prompt: Any, units: Any) -> list[tuple[int, int]]:
    """Units given as texts of the prompt, in their order, or as pairs of places in it."""
    if not isinstance(prompt, str) or not isinstance(units, list) or not units:
        raise FormatError(f"the units of {where} are a list of its parts, and its prompt is a text")
    found, at = [], 0
    for unit in units:
        if isinstance(unit, str) and unit:
            start = prompt.find(unit, at)
            if start < 0:
                raise FormatError(
                    f"unit {unit!r:.60} of {where} is not in its prompt, or not behind the unit before it"
                )
            at = start + len(unit)
            found.append((start, at))
        elif isinstance(unit, list) and len(unit) == 2:
            found.append((unit[0], unit[1]))
        else:
            raise FormatError(f"unit {unit!r:.60} of {where} is neither a text nor a pair [start, end]")
    return found


def is_language_model(model: Any) -> bool:
    """Whether this is a GGUF file, or a folder (or a name on the hub) of a language model that answers."""
    if not isinstance(model, str | Path):
        return False
    if Path(model).suffix.lower() == ".gguf":
        return True
    return any(kind.endswith(CAUSAL + ENCODING) for kind in _architectures(model))


def _architectures(model: str | Path) -> list[str]:
    """What a folder's config.json, or one on the hub, says it holds; nothing where there is none."""
    if isinstance(model, str) and model.startswith(HUB):
        require("transformers")
        from transformers import AutoConfig

        name = model.removeprefix(HUB)
        with quietly(), reading_errors(name):
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        return list(config.architectures or ())
    try:
        found = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # whoever reads the folder as a classifier says what is wrong with it
    return [str(kind) for kind in found or ()]


def from_prompts(
    model: str | Path, data: Any, samples: int | None, seed: int, device: Any, settings: dict[str, Any]
) -> Generation:
    """The task of a language model on the prompts of a file."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name in OTHERS:
        if name in given:
            raise InputError(
                f"{Path(model).name} is a language model, which takes prompts; {name} goes with other models"
            )
    columns = read_prompts(data)
    rows = some_rows(len(columns["prompt"]), samples, seed).tolist()
    fields = {name: None if each is None else [each[i] for i in rows] for name, each in columns.items()}
    if fields["units"] is not None and "units" in given:
        raise InputError(
            f"the prompts have units of their own, and units={given['units']!r} was asked for; leave one of "
            "them out"
        )
    source = str(model).removeprefix(HUB)
    about = f" on {Path(data).stem}" if isinstance(data, str | Path) else ""
    return Generation.from_huggingface(
        source,
        fields["prompt"],
        fields["answer"],
        foils=fields["foil"],
        questions=fields["question"],
        device=device,
        **{
            "ids": fields["id"] or rows,
            "name": Path(source).name.removesuffix(".gguf") + about,
            "units": fields["units"] or "sentence",
            **given,
        },
    )
