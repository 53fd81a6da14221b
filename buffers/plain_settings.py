"""Settings that come as a plain mapping, from a file or a dict: which of its keys are known. Pure."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Any

# Shorter parts of names stand in too many.
_LEAST_PART = 4


def nearest(name: Any, known: Collection[str]) -> str:
    """`; the nearest is ...` where a known name is near to this one, or has it as a part, else nothing.

    >>> nearest("capacty", ["capacity", "kind"])
    "; the nearest is 'capacity'"
    >>> nearest("newest", ["kind", "newest_fraction"])
    "; the nearest is 'newest_fraction'"
    >>> nearest("x", ["capacity"])
    ''
    """
    text = str(name).lower()
    found = difflib.get_close_matches(text, list(known), n=1)
    if not found and len(text) >= _LEAST_PART:
        found = [other for other in known if text in other or (len(other) >= _LEAST_PART and other in text)]
    return f"; the nearest is {found[0]!r}" if found else ""


def check_known(where: str, plain: Any, known: Collection[str]) -> Mapping[str, Any]:
    """The mapping, where all its keys are known.

    Args:
      where: whose settings they are, for messages.
      plain: a mapping.
      known: the names that may stand there.

    Raises:
      TypeError: it is no mapping.
      ValueError: keys are unknown; all are named, each with the nearest known one.

    >>> check_known("window", {"num_step": 3, "x": 1}, ["num_steps", "stride"])
    Traceback (most recent call last):
    ...
    ValueError: window: unknown 'num_step' (the nearest is 'num_steps'), 'x'; known are num_steps, stride.
    """
    if not isinstance(plain, Mapping):
        raise TypeError(f"{where} must be a mapping of settings, got {plain!r}.")
    unknown = [key for key in plain if key not in known]
    if unknown:
        told = [repr(key) + (f" ({near[2:]})" if (near := nearest(key, known)) else "") for key in unknown]
        raise ValueError(f"{where}: unknown {', '.join(told)}; known are {', '.join(known)}.")
    return plain


def settings_of(kind: type, where: str, plain: Any) -> Any:
    """An object of a dataclass, made of a mapping of its fields; it checks their values itself.

    Raises:
      TypeError, ValueError: as `check_known`, or as the dataclass raises them, with `where` in front.
      ValueError: a field without a default is not there.

    >>> from replayfeed.buffers import Window
    >>> settings_of(Window, "window", {"num_steps": 3, "stride": 2})
    Window(num_steps=3, stride=2)
    >>> settings_of(Window, "window", {"stride": 2})
    Traceback (most recent call last):
    ...
    ValueError: window lacks num_steps.
    """
    fields = dataclasses.fields(kind)
    given = check_known(where, plain, [field.name for field in fields])
    missing = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in given
    ]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}.")
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        told = TypeError if isinstance(error, TypeError) else ValueError
        raise told(f"{where}: {error}") from error
