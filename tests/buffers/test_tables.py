"""TableConfig: what it refuses, and what it builds."""

from __future__ import annotations

import pytest
import tensorflow as tf

from replayfeed.buffers import Fifo, Lifo, MinSize, TableConfig

COUNTER = tf.TensorSpec([], tf.int64)

WRONG = {
    "name": ({"name": ""}, ValueError, "TableConfig.name must be a name"),
    "name of a scan table": ({"name": "a__scan"}, ValueError, "does not end in '__scan'"),
    "name of a mirror": ({"name": "a__max"}, ValueError, "does not end in '__scan', '__max', '__min', got 'a__max'"),
    "name is no str": ({"name": 3}, TypeError, "TableConfig.name must be a str, got 3"),
    "max_size": ({"max_size": 0}, ValueError, "TableConfig.max_size must be at least 1, got 0"),
    "max_size is no int": ({"max_size": 1.5}, TypeError, "TableConfig.max_size must be an int, got 1.5"),
    "sequence_length": ({"sequence_length": 0}, ValueError, "TableConfig.sequence_length must be at least 1"),
    "stride": ({"stride": -1}, ValueError, "TableConfig.stride must be at least 1, got -1"),
    "max_times_sampled": ({"max_times_sampled": -1}, ValueError, "TableConfig.max_times_sampled must be at least 1"),
    "sampler": ({"sampler": None}, TypeError, "TableConfig.sampler must be one of Uniform, Prioritized, .*, got None"),
    "remover": ({"remover": 1}, TypeError, "TableConfig.remover must be one of Uniform, Prioritized, .*, got 1"),
    "limiter": (
        {"rate_limiter": 3},
        TypeError,
        "TableConfig.rate_limiter must be one of MinSize, .*, got 3: .*MinSize",
    ),
    "limiter above size": (
        {"rate_limiter": MinSize(11)},
        ValueError,
        "could never be sampled: its limiter asks for 11",
    ),
    "layout": ({"layout": "rows"}, ValueError, "TableConfig.layout must be 'packed' or 'plain', got 'rows'"),
    "spec": ({"data_spec": tf.TensorSpec([], tf.string)}, ValueError, "string has no fixed width"),
    "scan and Lifo": ({"scannable": True, "remover": Lifo()}, ValueError, r"scannable=True needs remover Fifo\(\)"),
    "scan and once": (
        {"scannable": True, "max_times_sampled": 1},
        ValueError,
        "scannable=True needs max_times_sampled=0",
    ),
    "scan and plain": ({"scannable": True, "layout": "plain"}, ValueError, "scannable=True needs layout='packed'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_refused_when_it_is_made(case):
    change, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        TableConfig(**{"name": "replay", "data_spec": COUNTER, "max_size": 10, **change})


def test_min_size_is_at_least_one():
    with pytest.raises(ValueError, match="min_size_to_sample must be at least 1, got 0"):
        MinSize(0)


def test_a_config_cannot_be_changed():
    with pytest.raises(AttributeError):
        TableConfig("replay", COUNTER, 10).max_size = 11  # type: ignore[misc]


def test_a_config_builds_the_table_that_it_says():
    config = TableConfig("replay", COUNTER, 10, Fifo(), Lifo(), MinSize(3), 2, 4, 2)
    (table,) = config.build()
    info = table.info
    assert info.name == "replay" and info.max_size == 10 and info.max_times_sampled == 2
    assert info.rate_limiter_info.min_size_to_sample == 3
    assert info.sampler_options.fifo and info.remover_options.lifo


def test_one_config_builds_any_number_of_tables():
    """R2: a selector object that two tables share kills the server."""
    config = TableConfig("replay", COUNTER, 10)
    assert config.build()[0].internal_table is not config.build()[0].internal_table


def test_a_scannable_config_builds_a_second_table_of_the_same_size():
    tables = TableConfig("replay", COUNTER, 10, scannable=True).build()
    assert [(table.name, table.info.max_size) for table in tables] == [("replay", 10), ("replay__scan", 10)]


def test_the_signature_holds_plain_columns_where_others_write():
    (table,) = TableConfig("replay", {"a": COUNTER}, 10, sequence_length=3, layout="plain").build()
    assert table.info.signature["a"].shape == [3]
