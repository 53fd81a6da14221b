"""Tables as text: what is written comes back the same, and what cannot is refused with the reason."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    ReplayServer,
    SampleToInsertRatio,
    Stack,
    TableConfig,
    Transition,
    Uniform,
    load_tables,
    save_tables,
)
from replayfeed.buffers.spec_text import spec_from_plain, spec_to_plain

SCALAR = tf.TensorSpec([], tf.float32)
SPEC = {"observation": tf.TensorSpec([84, 84], tf.uint8), "reward": SCALAR}

YAML = """\
name: replay
data_spec:
  observation: uint8[84, 84]
  reward: float32[]
max_size: 1000
sampler:
  kind: Prioritized
  priority_exponent: 0.6
remover: Fifo
rate_limiter:
  kind: SampleToInsertRatio
  samples_per_insert: 4.0
  min_size_to_sample: 100
  error_buffer: 50.0
max_times_sampled: 0
sequence_length: 5
stride: 1
scannable: false
layout: packed
burn_in: 0
short: drop
max_episode_length: null
over_long: error
initial: max
tracks_least: true
fields: null
"""
CONFIG = TableConfig(
    "replay",
    SPEC,
    1000,
    Prioritized(0.6),
    Fifo(),
    SampleToInsertRatio(4, 100, 50),
    sequence_length=5,
    initial="max",
    tracks_least=True,
)


def plain(**changes: Any) -> dict[str, Any]:
    return {"name": "replay", "data_spec": "float32[]", "max_size": 10, **changes}


# -- what is written ---------------------------------------------------------------------------


def test_a_table_is_written_with_every_setting_and_comes_back():
    assert CONFIG.to_yaml() == YAML
    assert TableConfig.from_yaml(YAML) == CONFIG


def test_json_holds_the_same():
    assert json.loads(CONFIG.to_json()) == CONFIG.to_dict()
    assert TableConfig.from_json(CONFIG.to_json()) == CONFIG


def test_what_has_a_default_may_be_left_out():
    text = "{name: replay, data_spec: {reward: float32}, max_size: 10, sampler: Prioritized}"
    assert TableConfig.from_yaml(text) == TableConfig("replay", {"reward": SCALAR}, 10, Prioritized())


def test_a_table_from_text_serves():
    with ReplayServer([TableConfig.from_yaml(YAML)]) as server:
        assert server.table_names == ("replay", "replay__max", "replay__min")


SELECTORS = st.one_of(
    st.sampled_from([Uniform(), Fifo(), Lifo(), MinHeap(), MaxHeap()]),
    st.floats(0, 3).map(Prioritized),
)
NUMBERS = st.floats(-20, 60, allow_nan=False)
LIMITERS = st.one_of(
    st.integers(1, 5).map(MinSize),
    st.integers(1, 5).map(Queue),
    st.integers(1, 5).map(Stack),
    st.tuples(st.floats(0.125, 8), st.integers(1, 5), st.one_of(NUMBERS, st.tuples(NUMBERS, NUMBERS))),
)
LEAVES = st.builds(
    tf.TensorSpec,
    st.lists(st.integers(1, 4), max_size=3),
    st.sampled_from([tf.bool, tf.uint8, tf.int64, tf.bfloat16, tf.float32, tf.complex64]),
    st.sampled_from([None, "a name"]),
)
KEYS = st.text("abc: #-'\"é1", min_size=1, max_size=4)
SPECS = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.dictionaries(KEYS, parts, min_size=1, max_size=3),
        st.lists(parts, min_size=1, max_size=3),
        st.lists(parts, min_size=1, max_size=3).map(tuple),
        st.dictionaries(KEYS, parts, min_size=1, max_size=3).map(collections.OrderedDict),
        st.lists(parts, min_size=6, max_size=6).map(lambda six: Transition(*six)),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    spec=SPECS,
    selectors=st.tuples(SELECTORS, SELECTORS),
    limiter=LIMITERS,
    times=st.integers(0, 2),
    items=st.sampled_from(
        [
            {},
            {"sequence_length": 4, "stride": 2, "burn_in": 1, "short": "pad"},
            {"sequence_length": None, "max_episode_length": 9, "over_long": "cut"},
            {"scannable": True},
            {"layout": "plain"},
        ]
    ),
    priorities=st.sampled_from([{}, {"initial": 0.5}, {"initial": "max", "tracks_least": True}, {"initial": "random"}]),
)
def test_every_table_comes_back_from_json_and_yaml(spec, selectors, limiter, times, items, priorities):
    try:
        limiter = SampleToInsertRatio(*limiter) if isinstance(limiter, tuple) else limiter
        config = TableConfig("replay", spec, 5, *selectors, limiter, times, **items, **priorities)
    except ValueError:
        assume(False)
    for back in (TableConfig.from_json(config.to_json()), TableConfig.from_yaml(config.to_yaml())):
        assert back == config
        tf.nest.assert_same_structure(back.data_spec, config.data_spec, check_types=True)
        assert back.describe() == config.describe()


# -- data_spec ---------------------------------------------------------------------------------


def test_a_tuple_is_a_list_in_text_and_a_list_says_so():
    spec = {"pair": (SCALAR, tf.TensorSpec([2], tf.bool)), "several": [SCALAR]}
    text = {"pair": ["float32[]", "bool[2]"], "several": {"$list": ["float32[]"]}}
    assert spec_to_plain(spec) == text and spec_from_plain(text) == spec


def test_tf_agents_trajectories_come_back_as_trajectories():
    time_step = pytest.importorskip("tf_agents.trajectories.time_step")
    trajectory = pytest.importorskip("tf_agents.trajectories.trajectory")
    tensor_spec = pytest.importorskip("tf_agents.specs.tensor_spec")
    spec = trajectory.Trajectory(
        step_type=tf.TensorSpec([], tf.int32, name="step_type"),
        observation={"image": tf.TensorSpec([4, 4], tf.uint8)},
        action=tensor_spec.BoundedTensorSpec([], tf.int64, 0, 3, name="action"),
        policy_info=(),
        next_step_type=tf.TensorSpec([], tf.int32),
        reward=SCALAR,
        discount=tensor_spec.BoundedTensorSpec([], tf.float32, 0.0, 1.0),
    )
    text = spec_to_plain(spec)
    assert text["$Trajectory"]["action"] == {"$spec": "int64[]", "name": "action", "minimum": 0, "maximum": 3}
    assert text["$Trajectory"]["policy_info"] == []
    back = spec_from_plain(json.loads(json.dumps(text)))
    assert isinstance(back, trajectory.Trajectory) and back == spec
    assert back.action.maximum == 3
    step = time_step.TimeStep(SCALAR, SCALAR, SCALAR, {"o": SCALAR})
    assert spec_from_plain(spec_to_plain(step)) == step


def test_a_range_that_does_not_fit_is_refused():
    pytest.importorskip("tf_agents")
    with pytest.raises(ValueError, match=r"data_spec field 'a': minimum or maximum does not fit 'int32\[2\]'"):
        spec_from_plain({"a": {"$spec": "int32[2]", "minimum": [0, 0, 0], "maximum": 1}})


def test_tf_agents_is_loaded_only_when_one_of_its_own_is_read():
    code = (
        "import sys\n"
        "from replayfeed.buffers.spec_text import spec_from_plain\n"
        "spec_from_plain({'$Transition': {'observation': 'float32', 'action': 'int32', 'reward': 'float32',"
        " 'discount': 'float32', 'next_observation': 'float32', 'num_steps_used': 'int32'}})\n"
        "assert not [name for name in sys.modules if name.startswith('tf_agents')]\n"
        "sys.modules['tf_agents'] = None\n"
        "try: spec_from_plain({'$TimeStep': {}})\n"
        "except ValueError: raise\n"
        "except ImportError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "TimeStep is TF-Agents', which cannot be imported" in ran.stdout
    assert "install 'replayfeed[agents]'" in ran.stdout


class MyStep(NamedTuple):
    observation: Any


def test_a_transition_may_leave_out_what_has_a_default():
    spec = Transition(SCALAR, SCALAR, SCALAR, SCALAR, SCALAR, tf.TensorSpec([], tf.int32))
    text = spec_to_plain(spec)
    assert text["$Transition"].pop("extras") == []
    assert spec_from_plain(text) == spec


UNWRITABLE = {
    "an unknown namedtuple": ({"step": MyStep(SCALAR)}, TypeError, "field 'step': a file cannot tell .*MyStep"),
    "a key that is a mark": ({"$spec": SCALAR}, ValueError, r"data_spec: key '\$spec' cannot be written"),
    "a key that is no str": ({"a": {1: SCALAR}}, ValueError, "data_spec field 'a': key 1 cannot be written"),
    "an open shape": ({"a": tf.TensorSpec([None])}, ValueError, r"field 'a': shape \(None,\) is not fully known"),
    "another spec": ({"a": tf.RaggedTensorSpec([2])}, TypeError, "field 'a': a RaggedTensorSpec cannot be written"),
    "another mapping": (collections.UserDict(a=SCALAR), TypeError, "data_spec: a UserDict cannot be written"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_spec_that_would_not_come_back_is_refused(case):
    spec, kind, message = UNWRITABLE[case]
    with pytest.raises(kind, match=message):
        spec_to_plain(spec)


UNREADABLE = {
    "no dtype": ("float31[2]", ValueError, r"data_spec: 'float31\[2\]' is no dtype with a shape"),
    "strings": ({"a": "string[]"}, ValueError, r"data_spec field 'a': 'string\[\]' is no dtype"),
    "no shape": ("float32[2", ValueError, r"is no dtype with a shape, as 'float32\[\]'"),
    "a number": ({"a": ["int32", 3]}, TypeError, "data_spec field 'a/1' must be text as .*, got 3"),
    "unknown mark": ({"$Step": {}}, ValueError, r"'\$Step' is not known; known are .*\$Trajectory"),
    "a mark among keys": ({"$list": [], "a": "int32"}, ValueError, r"'\$list' must be the only key"),
    "no list": ({"$list": 3}, TypeError, r"'\$list' must hold a list, got 3"),
    "no mapping": ({"$Transition": []}, TypeError, r"'\$Transition' must hold a mapping"),
    "fields": ({"$Transition": {"action": "int32", "x": "int32"}}, ValueError, r"unknown \['x'\], missing \['obs"),
    "beside a leaf": ({"$spec": "int32", "max": 3}, ValueError, r"unknown \['max'\] beside '\$spec'"),
    "half a range": ({"$spec": "int32", "minimum": 3}, ValueError, "minimum and maximum go together"),
    "a name": ({"$spec": "int32", "name": 3}, TypeError, "name must be text, got 3"),
    "a leaf's text": ({"$spec": 3}, TypeError, r"'\$spec' must hold text"),
    "a key": ({"a": {3: "int32"}}, TypeError, "data_spec field 'a': key 3 must be text"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_text_that_is_no_spec_is_refused(case):
    text, kind, message = UNREADABLE[case]
    with pytest.raises(kind, match=message):
        spec_from_plain(text)


# -- settings ----------------------------------------------------------------------------------

WRONG = {
    "no mapping": ([1], TypeError, r"a table must be a mapping of settings, got \[1\]"),
    "unknown": (
        plain(capacity=3),
        ValueError,
        r"table 'replay' has unknown settings \['capacity'\]; allowed .* max_size",
    ),
    "missing": ({"name": "replay"}, ValueError, "table 'replay' lacks data_spec, max_size"),
    "a count": (plain(max_size="1e6"), TypeError, "TableConfig.max_size must be an int, got '1e6'"),
    "kind": (plain(sampler="Random"), ValueError, "table 'replay': sampler must be one of Uniform, .*got 'Random'"),
    "kind of a limiter": (plain(rate_limiter="Fifo"), ValueError, "rate_limiter must be one of MinSize, Sample"),
    "no kind": (plain(sampler={"priority_exponent": 1}), ValueError, "such a 'kind' and its settings"),
    "its settings": (
        plain(sampler={"kind": "Prioritized", "alpha": 1}),
        ValueError,
        r"sampler Prioritized has the settings priority_exponent; unknown \['alpha'\]",
    ),
    "settings of none": (plain(remover={"kind": "Fifo", "n": 1}), ValueError, r"settings \(none\); unknown \['n'\]"),
    "missing settings": (plain(rate_limiter="Queue"), ValueError, r"Queue has the settings size; .*missing \['size'\]"),
    "their values": (
        plain(sampler={"kind": "Prioritized", "priority_exponent": -1}),
        ValueError,
        "table 'replay': sampler: Prioritized.priority_exponent must be finite and at least 0, got -1",
    ),
    "their types": (
        plain(rate_limiter={"kind": "Queue", "size": "2"}),
        TypeError,
        "table 'replay': rate_limiter: Queue.size must be an int, got '2'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_settings_that_are_wrong_are_named(case):
    settings_, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        TableConfig.from_dict(settings_)


def test_a_key_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match="the same key stands twice in one place: 'max_size'"):
        TableConfig.from_yaml("{name: a, data_spec: int32, max_size: 1, max_size: 2}")
    with pytest.raises(ValueError, match="the same key stands twice in one place: 'max_size'"):
        TableConfig.from_json('{"name": "a", "max_size": 1, "max_size": 2}')


def test_text_that_is_neither_is_refused():
    with pytest.raises(ValueError, match="this is no JSON"):
        TableConfig.from_json("{")
    with pytest.raises(ValueError, match="this is no YAML that can be read"):
        TableConfig.from_yaml("{")


def test_yaml_makes_no_objects():
    with pytest.raises(ValueError, match="could not determine a constructor"):
        TableConfig.from_yaml("!!python/object/apply:os.getcwd []")


def test_without_pyyaml_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    for use in (CONFIG.to_yaml, lambda: TableConfig.from_yaml(YAML)):
        with pytest.raises(ImportError, match=r"pip install 'replayfeed\[yaml\]', or use JSON"):
            use()
    assert TableConfig.from_json(CONFIG.to_json()) == CONFIG


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tables.yaml", "tables.yml", "tables.json"])
def test_several_tables_live_in_one_file(tmp_path, name):
    tables = [CONFIG, TableConfig("queue", SPEC, 8, Fifo(), rate_limiter=Queue(8), max_times_sampled=1)]
    save_tables(tmp_path / name, tables)
    assert load_tables(str(tmp_path / name)) == tables
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_tables_of_one_file_may_share_a_spec(tmp_path):
    path = tmp_path / "tables.yaml"
    path.write_text(
        "x-spec: &spec {reward: float32}\n"
        "tables:\n"
        "- {name: a, data_spec: *spec, max_size: 10}\n"
        "- {name: b, data_spec: *spec, max_size: 20, sampler: Prioritized}\n"
    )
    assert [(table.name, table.data_spec) for table in load_tables(path)] == [
        ("a", {"reward": SCALAR}),
        ("b", {"reward": SCALAR}),
    ]


def test_a_file_may_hold_one_table_alone(tmp_path):
    path = tmp_path / "replay.yaml"
    path.write_text(YAML)
    assert load_tables(path) == [CONFIG]


WRONG_FILES = {
    "nothing": ("", TypeError, "there must be 'tables' with a list of tables"),
    "no list": ("tables: 3", TypeError, "'tables' must be a list of tables, got 3"),
    "no table": ("tables: []", ValueError, "there is no table"),
    "something beside": ("{tables: [], table: 3}", ValueError, r"unknown \['table'\] beside 'tables'"),
    "one name": (
        "tables: [{name: a, data_spec: int32, max_size: 1}, {name: a, data_spec: int32, max_size: 2}]",
        ValueError,
        r"two tables have the same name: \['a', 'a'\]",
    ),
    "a wrong table": ("tables: [{name: a, data_spec: int32, max_size: 0}]", ValueError, "max_size must be at least 1"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_file_is_refused_with_its_path(tmp_path, case):
    text, kind, message = WRONG_FILES[case]
    path = tmp_path / "tables.yaml"
    path.write_text(text)
    with pytest.raises(kind, match=f"tables.yaml: .*{message}"):
        load_tables(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="tables.toml: tables are read from and written to .json, .yaml and .yml"):
        save_tables(tmp_path / "tables.toml", [CONFIG])
    with pytest.raises(ValueError, match=r"tables are read from"):
        load_tables(tmp_path / "tables.txt")


def test_only_tables_are_saved(tmp_path):
    with pytest.raises(TypeError, match="save_tables writes TableConfigs, got 3"):
        save_tables(tmp_path / "tables.json", [3])
    with pytest.raises(ValueError, match="two tables have the same name"):
        save_tables(tmp_path / "tables.json", [CONFIG, CONFIG])
