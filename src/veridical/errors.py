"""Every error and warning that veridical raises on purpose."""

from __future__ import annotations

import difflib
import errno
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_HIDDEN = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Control characters of a terminal, and those that turn the direction of what is read."""


def visible(text: str) -> str:
    """The text with its control characters written out, so that a name is no command to a terminal.

    >>> visible(chr(27) + "[31mred") == chr(92) + "x1b[31mred"
    True
    """
    return text.translate(_HIDDEN)


class VeridicalError(Exception):
    """The root of the hierarchy: catch it to catch everything raised on purpose."""

    def __str__(self) -> str:
        return visible(super().__str__())


class InputError(VeridicalError, ValueError):
    """A value the caller gave cannot be used."""


class ShapeError(InputError):
    """A tensor has another shape than was expected; the message repeats both."""


class UnknownNameError(InputError, LookupError):
    """A name is not registered; the message suggests the nearest one."""


class OutOfRangeError(InputError, IndexError):
    """A sample that a task does not have."""


class ArgumentsError(InputError, TypeError):
    """The arguments of a call are not those it takes; the message lists these."""


class NotApplicableError(VeridicalError, TypeError):
    """A method cannot work on this task; the message names those that can."""


class ModelError(VeridicalError, RuntimeError):
    """The model returned something that is not one finite row of outputs per sample."""


class MemoryLimitError(VeridicalError, MemoryError):
    """What was wanted does not fit into memory; the message says what to take less of."""


class ModelChangedError(ModelError):
    """The model is no longer the one a task was made for; the message says how to go on."""


class FormatError(VeridicalError, ValueError):
    """A stored file is not one of ours, or was written by a newer format."""


class StorageError(VeridicalError, OSError):
    """A file could not be written or read; the message says what to do."""

    read_only = False

    @classmethod
    def of(cls, done: str, path: object, error: OSError | ValueError) -> StorageError:
        """The sentence for what the system said."""
        number, words = getattr(error, "errno", None), getattr(error, "strerror", None)
        made = cls(f"{path} cannot be {done}: {words or error}{_REMEDIES.get(number or 0, '')}")
        made.errno, made.read_only = number, number in _READ_ONLY
        return made


_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; free some space and go on, what is finished is kept"),
    **dict.fromkeys(_READ_ONLY, "; choose a folder that you may write to"),
}


class StudyError(VeridicalError, RuntimeError):
    """A study cannot go on: its workers die one after the other, or its folder is taken."""


class MissingExtraError(VeridicalError, ImportError):
    """An optional package is needed; the message gives the command that installs it."""


class VeridicalWarning(UserWarning):
    """Something works, but perhaps not as the caller believes."""


def warn(message: str) -> None:
    """Warn at the line of the caller: the nearest that is not of this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "veridical":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, VeridicalWarning, stacklevel=level + (frame is not None))


ELSEWHERE = {
    "activation_patching": "occlusion",
    "attribution_patching": "input_x_gradient",
    "contextcite": "lime",
    "eap": "input_x_gradient",
    "eap_ig": "integrated_gradients",
    "leave_one_out": "occlusion",
}
"""What explainers of language models are called elsewhere, and here."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for an unregistered name, with the nearest registered one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    if ELSEWHERE.get(name) in names:
        hint = (
            f"; here it is '{ELSEWHERE[name]}' on a task of switches (vd.models.Generation, vd.data.switch)."
        )
    return UnknownNameError(f"no {kind} is called '{name}'{hint} Known: {', '.join(names)}")


def wrong_arguments(
    who: str, signature: inspect.Signature, given: Iterable[str], why: object
) -> ArgumentsError:
    """Build the error for a call whose arguments do not fit: the nearest name, and those there are."""
    kinds = {one.kind for one in signature.parameters.values()}
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [name for name, one in signature.parameters.items() if one.kind in plain and name != "self"]
    every = inspect.Parameter.VAR_KEYWORD in kinds
    unknown = [] if every else [name for name in given if name not in names]
    near = [hit for name in unknown for hit in difflib.get_close_matches(name, names, n=1, cutoff=0.4)]
    said = f"does not take {', '.join(map(repr, unknown))}" if unknown else f"cannot be called so: {why}"
    hint = f"; did you mean {', '.join(map(repr, near))}?" if near else "."
    return ArgumentsError(f"{who} {said}{hint} It takes: {', '.join(names) or 'nothing'}")


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """Build the error for an optional package, with the one command that installs it."""
    return MissingExtraError(f"this needs the package '{package}': pip install 'veridical[{extra}]'")


def check_arity(function: Callable[..., Any], count: int, named: Mapping[str, Any], wanted: str) -> None:
    """Refuse a user's function that cannot be called with so many arguments, before it is."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count, **named)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(f"{wanted}; '{name}' is called so and {error}") from error
