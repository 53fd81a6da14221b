"""Which fields of a dataset's steps are loaded, and what becomes of each: decided from the specs alone.

No list of known datasets anywhere: what a field is follows from its spec, and what a caller
wants of it from `fields`. Core fields (`LOADED_FIELDS`) that no buffer can hold are refused
by name, with the ways out; step metadata of that kind stays behind, and the report says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from replayfeed.buffers.nests import Nest, field_path, leaves_with_paths

from .field_rules import Cast, Drop, FieldRule, Keep, apply_rules, as_rules, spec_after
from .rlds_steps import DISCOUNT, FLAGS, LOADED_FIELDS, REWARD

_COME_ALONG = (*FLAGS, DISCOUNT)

Fields = Mapping[str, FieldRule | Sequence[FieldRule]] | Sequence[str] | Literal["all"] | None
"""What a caller says of fields, by place (`'observation/image'`; a place above stands for all below it).

None takes everything that has a fixed width. A sequence of places takes those alone, and the
flags and the discount, without which the same transitions would mean something else. A
mapping gives rules for some, the others are taken as with None. `'all'` takes everything as
it is, for checks and for writing: no rules, no refusal.
"""

Decoders = Mapping[str, Callable[[tf.Tensor], tf.Tensor] | Literal[False]]
"""By place, how an encoded field is decoded: a function of one encoded value, or False to keep the bytes."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is wanted of a dataset's steps, for readers.

    Attributes:
      fields: as the caller gave them.
      decoders: of encoded fields, as the caller gave them.
      metadata: names of the step metadata that is of use, where that is known; the rest is not
        loaded unless `fields` names it.
      kept: names of step metadata that is loaded even if it is a string.
    """

    fields: Fields = None
    decoders: Decoders | None = None
    metadata: tuple[str, ...] | None = None
    kept: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PlannedField:
    """A leaf of the steps that is loaded.

    Attributes:
      path: its place, `'observation/image'`.
      given: spec of one step's value as the dataset has it.
      loaded: spec of one step's value after the rules.
      rules: from left to right.
    """

    path: str
    given: Any
    loaded: Any
    rules: tuple[FieldRule, ...] = ()


@dataclasses.dataclass(frozen=True)
class FieldPlan:
    """What is loaded of the steps of a dataset.

    Attributes:
      fields: for each loaded field of a step a nest of `PlannedField`.
      not_loaded: places of the others, each with why where that is not plain.
    """

    fields: Mapping[str, Nest]
    not_loaded: tuple[str, ...]

    @property
    def step_spec(self) -> dict[str, Nest]:
        """Specs of one step, after the rules."""
        return {name: _map_planned(lambda leaf: leaf.loaded, nest) for name, nest in self.fields.items()}

    def select(self, columns: Mapping[str, Nest], load: Callable[[PlannedField, Any], Any] | None = None) -> Nest:
        """The loaded columns of an episode, `[N + 1, ...]`, from all of its columns.

        Args:
          columns: as the dataset gives them.
          load: makes a loaded column of one given; by default `apply_rules`.
        """
        load = load or (lambda leaf, column: apply_rules(leaf.rules, leaf.path, column))
        return {name: _select(load, nest, columns[name]) for name, nest in self.fields.items()}


def plan_fields(name: str, step_spec: Mapping[str, Nest], wanted: Choice = Choice()) -> FieldPlan:
    """Decides which fields are loaded, and how.

    Args:
      name: the dataset's, for messages.
      step_spec: specs of one step, all fields.
      wanted: what the caller said.

    Raises:
      TypeError: `fields` is no mapping, no sequence of places, nor `'all'`.
      ValueError: a place in `fields` is none of the dataset's; the message names those that are.
      ValueError: a rule does not fit its field.
      ValueError: core fields have no fixed width, and no rule gives them one; all of them are named.

    >>> spec = {"observation": tf.TensorSpec([2], tf.float32), "words": tf.TensorSpec([], tf.string)}
    >>> plan_fields("mine", spec).not_loaded
    ('words (a string)',)
    >>> from replayfeed.pipelines.field_rules import Bytes
    >>> plan_fields("mine", spec, Choice({"words": Bytes(8)})).step_spec["words"]
    TensorSpec(shape=(8,), dtype=tf.uint8, name=None)
    """
    chosen = _Chosen(name, step_spec, wanted)
    planned, not_loaded = {}, list[str]()
    for field, nest in step_spec.items():
        kept = _plan(chosen, not_loaded, nest, (field,))
        if kept is not None:
            planned[field] = kept
    if chosen.refused:
        raise ValueError(f"{name}: " + ";\n".join(chosen.refused) + ".")
    return FieldPlan(planned, tuple(sorted(not_loaded)))


class _Chosen:
    """What the caller says of a place."""

    def __init__(self, name: str, step_spec: Mapping[str, Nest], wanted: Choice) -> None:
        fields = wanted.fields
        self.name = name
        self.refused: list[str] = []
        undecoded = [place for place, decoder in (wanted.decoders or {}).items() if decoder is False]
        self.kept = (*wanted.kept, *undecoded)
        self._of_use = None if wanted.metadata is None else (*LOADED_FIELDS, *wanted.metadata)
        self.takes_all = isinstance(fields, str) and fields == "all"
        if isinstance(fields, str) and not self.takes_all:
            raise TypeError(
                f"fields must be places such as ['observation', 'action'], a mapping, or 'all': {fields!r}."
            )
        self._rules: dict[str, tuple[FieldRule, ...]] = {}
        self._only: tuple[str, ...] | None = None
        if isinstance(fields, Mapping):
            self._rules = {str(path): as_rules(path, rules) for path, rules in fields.items()}
        elif fields is not None and not self.takes_all:
            if not isinstance(fields, Sequence):
                raise TypeError(f"fields must be places, a mapping, or 'all', got {type(fields).__name__}.")
            self._only = (*(str(path) for path in fields), *_COME_ALONG, *wanted.kept)
        places = {field_path(path) for path, _ in _spec_leaves(step_spec)}
        for path in (*self._rules, *(self._only or ())):
            if path not in (*_COME_ALONG, *wanted.kept) and not any(_is_at_or_below(place, path) for place in places):
                raise ValueError(f"{name}: fields names {path!r}, which the steps do not have; found {sorted(places)}.")

    def of(self, path: str) -> tuple[FieldRule, ...] | None:
        """The rules of a leaf; None: not wanted."""
        if self._only is not None and not any(_is_at_or_below(path, place) for place in self._only):
            return None
        for place in sorted(self._rules, key=len, reverse=True):
            if _is_at_or_below(path, place):
                rules = self._rules[place]
                return None if any(isinstance(rule, Drop) for rule in rules) else rules
        if self._only is None and self._of_use is not None and path.split("/")[0] not in self._of_use:
            return None
        return ()


def _plan(chosen: _Chosen, not_loaded: list[str], nest: Nest, path: tuple[str, ...]) -> Nest | None:
    """The nest of planned leaves; None when nothing of it is loaded."""
    if isinstance(nest, Mapping):
        planned = {key: _plan(chosen, not_loaded, child, (*path, str(key))) for key, child in nest.items()}
        return {key: child for key, child in planned.items() if child is not None} or (None if nest else {})
    if isinstance(nest, list | tuple) and not isinstance(nest, tf.TensorShape):
        names = getattr(nest, "_fields", [str(index) for index in range(len(nest))])
        children = [_plan(chosen, not_loaded, child, (*path, key)) for key, child in zip(names, nest, strict=True)]
        kept = [child for child in children if child is not None]
        if len(kept) < len(children):
            if not kept:
                return None
            raise ValueError(
                f"{chosen.name}: step field {field_path(path)!r} is a tuple, of which no part can be left out."
            )
        return type(nest)(*kept) if hasattr(nest, "_fields") else tuple(kept)
    return _plan_leaf(chosen, not_loaded, nest, path)


def _plan_leaf(chosen: _Chosen, not_loaded: list[str], spec: Any, path: tuple[str, ...]) -> PlannedField | None:
    place = field_path(path)
    if path[0] in (REWARD, DISCOUNT) and any(isinstance(rule, Cast) for rule in chosen.of(place) or ()):
        raise ValueError(f"{chosen.name}: the dtype of rewards and discounts is reward_dtype=, not a rule of fields.")
    if chosen.takes_all:
        return PlannedField(place, spec, spec)
    rules = chosen.of(place)
    if rules is None:
        not_loaded.append(place)
        return None
    loaded = spec_after(rules, place, spec)
    keeps_strings = place in chosen.kept or any(isinstance(rule, Keep) for rule in rules)
    fault = spec_fault(loaded, keeps_strings=keeps_strings)
    if fault is None:
        return PlannedField(place, spec, loaded, rules)
    if path[0] in LOADED_FIELDS or rules:
        chosen.refused.append(f"step field {place!r} {fault}; {_ways_out(place, loaded)}")
        return None
    not_loaded.append(f"{place} ({fault.split(', which')[0].removeprefix('is ').removeprefix('has ')})")
    return None


def rules_for_writing(step_spec: Mapping[str, Nest]) -> dict[str, FieldRule]:
    """Rules by place that let through all that arrays of one shape can hold: strings stay, variable lengths go.

    >>> rules_for_writing({"words": tf.TensorSpec([], tf.string), "tags": tf.TensorSpec([None], tf.int64)})
    {'tags': Drop(), 'words': Keep()}
    """
    rules: dict[str, FieldRule] = {}
    for path, spec in _spec_leaves(step_spec):
        if spec_fault(spec, keeps_strings=True):
            rules[field_path(path)] = Drop()
        elif spec.dtype == tf.string:
            rules[field_path(path)] = Keep()
    return rules


def spec_fault(spec: Any, *, keeps_strings: bool = False) -> str | None:
    """Why no buffer can hold values of a spec, or None.

    >>> spec_fault(tf.TensorSpec([None, 3], tf.float32))
    'has the shape (None, 3), which is of variable length'
    """
    if not isinstance(spec, tf.TensorSpec):
        return f"is a {type(spec).__name__.removesuffix('Spec')}, which is of variable length"
    if not spec.shape.is_fully_defined():
        return f"has the shape {spec.shape}, which is of variable length"
    if 0 in spec.shape.as_list():
        return f"has the shape {spec.shape}, which holds no number"
    if spec.dtype == tf.string:
        return None if keeps_strings else "is a string, which has no fixed width"
    if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool or spec.dtype.is_complex):
        return f"is {spec.dtype.name}, which holds no number"
    return None


def _ways_out(place: str, spec: Any) -> str:
    """The sentence that an error ends with."""
    drop = f"fields={{{place!r}: Drop()}} leaves it out"
    if not isinstance(spec, tf.RaggedTensorSpec | tf.TensorSpec):
        return drop
    rank = spec.shape.rank
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
        sizes = ", ".join("8" if size is None else str(size) for size in spec.shape.as_list()) if rank else "8"
        return f"{drop}, PadTo([{sizes}]) pads it with zeros, CropTo([{sizes}]) cuts it as well"
    if spec.dtype == tf.string:
        return f"{drop}, Bytes(64) stores up to 64 bytes of it, Keep() keeps it where no buffer has to hold it"
    return drop


def _select(load: Callable[[PlannedField, Any], Any], planned: Nest, column: Nest) -> Nest:
    if isinstance(planned, PlannedField):
        return load(planned, column)
    if isinstance(planned, Mapping):
        return {key: _select(load, child, column[key]) for key, child in planned.items()}
    children = [_select(load, child, part) for child, part in zip(planned, column, strict=True)]
    return type(planned)(*children) if hasattr(planned, "_fields") else tuple(children)


def _map_planned(function: Callable[[PlannedField], Any], planned: Nest) -> Nest:
    return tf.nest.map_structure(function, planned)


def _spec_leaves(nest: Nest) -> Iterator[tuple[tuple[str, ...], Any]]:
    return iter(leaves_with_paths(nest, ()))


def _is_at_or_below(place: str, above: str) -> bool:
    return place == above or place.startswith(f"{above}/")
