"""The fields of a save are found by their names, whatever their order."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from replayfeed.buffers import TFUniformReplayBuffer


class Ab(NamedTuple):
    a: Any
    b: Any


class Ba(NamedTuple):
    b: Any
    a: Any


def test_fields_in_another_order_keep_their_names_through_saves_that_link(tmp_path):
    counter = tf.TensorSpec([], tf.int64)
    saved = TFUniformReplayBuffer(Ab(counter, counter), 1, 5)
    saved.add_sequence(Ab(a=[[0, 1, 2]], b=[[10, 11, 12]]))
    saved.save(tmp_path)
    for _ in range(2):
        turned = TFUniformReplayBuffer(Ba(counter, counter), 1, 5)
        turned.restore(tmp_path)
        assert turned.gather_all().a.numpy().tolist() == [[0, 1, 2]]
        assert turned.gather_all().b.numpy().tolist() == [[10, 11, 12]]
        turned.save(tmp_path)


def test_fields_whose_paths_are_equal_are_kept_apart(tmp_path):
    counter = tf.TensorSpec([], tf.int64)
    spec = {"a": {"b": counter}, "a/b": counter}
    saved, restored = (TFUniformReplayBuffer(spec, 1, 5) for _ in range(2))
    saved.add_batch({"a": {"b": [1]}, "a/b": [2]})
    saved.save(tmp_path)
    for take in (lambda: restored.restore(tmp_path), lambda: restored.set_state(saved.get_state())):
        take()
        held = restored.gather_all()
        assert (held["a"]["b"].numpy().tolist(), held["a/b"].numpy().tolist()) == ([[1]], [[2]])
