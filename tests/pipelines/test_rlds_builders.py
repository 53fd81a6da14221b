"""Every RLDS builder of TFDS whose fields are known offline, and every recorded dataset, in every layout.

Each is read beside this module's own plain reading of the RLDS rules over what TFDS itself decodes. The
builders' episodes are made by a tool that stands beside the repository; without it the tests are skipped.
"""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines import load_rlds
from replayfeed.pipelines.field_rules import Bytes, CropTo, PadTo

tfds = pytest.importorskip("tensorflow_datasets")

CORE = ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal")

# Steps of the episodes: truncated, terminal, and too short for a transition.
LENGTHS = (4, 3, 1)

INSTRUCTION = {"observation/natural_language_instruction": Bytes(16)}

RULES = {
    "bc_z": INSTRUCTION,
    "bridge": INSTRUCTION,
    "fractal20220817_data": INSTRUCTION,
    "taco_play": {**INSTRUCTION, "observation/structured_language_instruction": Bytes(16)},
    "viola": INSTRUCTION,
    "spoc_robot": {"observation/last_action_str": Bytes(16)},
    "vima_converted_externally_to_rlds": {
        "observation/segmentation_obj_info/obj_name": [PadTo(3), Bytes(16)],
        "observation/segmentation_obj_info/segm_id": PadTo(3),
        "observation/segmentation_obj_info/texture_name": [CropTo(3), Bytes(16)],
    },
}
"""What a string or a field of variable length needs; no other builder needs any."""

BUILDERS = {
    "bc_z": None,
    "berkeley_gnm_recon": None,
    "bridge": None,
    "d4rl_adroit_door": "v0-human",
    "d4rl_adroit_hammer": "v0-human",
    "d4rl_adroit_pen": "v0-human",
    "d4rl_adroit_relocate": "v0-human",
    "d4rl_antmaze": "umaze-v0",
    "d4rl_mujoco_ant": "v2-medium",
    "d4rl_mujoco_halfcheetah": "v1-full-replay",
    "d4rl_mujoco_hopper": "v0-expert",
    "d4rl_mujoco_walker2d": "v1-expert",
    "fractal20220817_data": None,
    "locomotion": "ant_sac_1M_single_policy_stochastic",
    "mt_opt": "rlds",
    "plex_robosuite": None,
    "rlu_atari": "Alien_run_1",
    "rlu_atari_checkpoints": "Alien_run_1",
    "rlu_atari_checkpoints_ordered": "Alien_run_1",
    "rlu_control_suite": "cartpole_swingup",
    "rlu_dmlab_explore_object_rewards_few": "training_0",
    "rlu_dmlab_explore_object_rewards_many": "training_0",
    "rlu_dmlab_rooms_select_nonmatching_object": "training_0",
    "rlu_dmlab_rooms_watermaze": "training_0",
    "rlu_dmlab_seekavoid_arena01": "training_0",
    "rlu_locomotion": "humanoid_corridor",
    "rlu_rwrl": "cartpole_swingup_combined_challenge_none_1_percent",
    "robomimic_mg": "lift_mg_image",
    "robomimic_mh": "lift_mh_image",
    "robomimic_ph": "lift_ph_image",
    "robosuite_panda_pick_place_can": "human_dc29b40a",
    "spoc_robot": None,
    "taco_play": None,
    "uiuc_d3field": None,
    "vima_converted_externally_to_rlds": None,
    "viola": None,
}

# Decoding these takes seconds for each layout.
ONE_LAYOUT = ("uiuc_d3field", "vima_converted_externally_to_rlds", "mt_opt")

WITHOUT_REWARD = {"mt_opt"}
WITHOUT_DISCOUNT = {"bc_z", "bridge", "fractal20220817_data", "mt_opt", "taco_play", "viola"}


@pytest.fixture(scope="module")
def mocking(shared_folder):
    """The tool that makes well-formed random episodes of a builder's features."""
    path = shared_folder / "tools" / "mock_all_rlds.py"
    if not path.exists():
        pytest.skip(f"no {path}")
    spec = importlib.util.spec_from_file_location("mock_all_rlds", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(features, folder, mocking):
    """A TFRecord file of mocked episodes, as TFDS writes it; its path."""
    rng = np.random.default_rng(0)
    path = folder / "mock-train.tfrecord-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for index, length in enumerate(LENGTHS):
            episode = mocking._random_episode(features, length, index % 2 == 1, rng)
            writer.write(features.serialize_example(episode))
    features.save_config(str(folder))
    return path


def decoded(features, path):
    """Every episode as TFDS itself decodes it: a list of steps, nests of tensors."""
    dataset = tf.data.TFRecordDataset(str(path)).map(features.deserialize_example)
    return [list(episode["steps"]) for episode in dataset]


def fitted(value, spec):
    """A step's value in the shape that a rule gives it: zeros behind its end."""
    if value.dtype == tf.string:
        texts = [np.frombuffer(text, np.uint8) for text in np.ravel(value.numpy())]
        *outer, width = spec.shape
        rows = np.zeros([max(1, int(np.prod(outer))), width], np.uint8)
        for row, text in zip(rows, texts, strict=False):
            row[: len(text)] = text
        return rows.reshape(spec.shape)
    array = value.numpy()
    if array.shape == tuple(spec.shape):
        return array
    padded = np.zeros(spec.shape, array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


def assert_rows(column, values, spec):
    """A field's rows are those values, of its dtypes."""

    def check(rows, leaf_spec, *leaves):
        assert rows.dtype == (leaves[0].dtype if leaves[0].dtype != tf.string else np.uint8)
        np.testing.assert_array_equal(rows, np.stack([fitted(leaf, leaf_spec) for leaf in leaves]))

    tf.nest.map_structure(check, column, spec, *values)


def one_number(value):
    return np.float32(np.reshape(value.numpy(), []))


def assert_frames_follow_the_rules(frames, spec, steps, layout):
    """The frames of an episode against RLDS' rules, said in plain words; `steps` are all of its steps."""
    transitions = len(steps) - 1
    rows = transitions if layout == "transition" else len(steps)
    assert {len(leaf) for leaf in tf.nest.flatten(frames)} == {rows}
    # An observation is that of its own step; the last one is there as well, as what the last action led to.
    assert_rows(frames["observation"], [step["observation"] for step in steps[:rows]], spec["observation"])
    if layout == "transition":
        assert_rows(frames["next_observation"], [step["observation"] for step in steps[1:]], spec["observation"])
    if "action" in steps[0]:
        actions = tf.nest.map_structure(lambda leaf: leaf[:transitions], frames["action"])
        assert_rows(actions, [step["action"] for step in steps[:-1]], spec["action"])
    # The reward and discount of a step are those that followed; a last step has none.
    if "reward" in steps[0]:
        assert frames["reward"].dtype == np.float32
        assert frames["reward"][:transitions].tolist() == [one_number(step["reward"]) for step in steps[:-1]]
    discounts = [one_number(step["discount"]) if "discount" in step else 1.0 for step in steps[:-1]]
    if bool(steps[-1]["is_terminal"]):
        discounts[-1] = 0.0
    assert frames["discount"].dtype == np.float32
    assert frames["discount"][:transitions].tolist() == discounts


def check_layout(source, episodes_of_steps, layout, rules):
    """Loads in one layout and compares; gives the Episodes."""
    episodes = load_rlds(source, layout=layout, fields=rules)
    sound = [steps for steps in episodes_of_steps if len(steps) > 1]
    for frames, steps in zip(episodes, sound, strict=True):
        spec = episodes.element_spec
        spec, frames = (each if isinstance(each, dict) else each._asdict() for each in (spec, frames))
        tf.nest.map_structure(assert_same_kind, frames, spec)
        assert_frames_follow_the_rules(frames, spec, steps, layout)
        if layout == "trajectory":
            assert frames["step_type"].tolist() == [0, *[1] * (len(steps) - 2), 2]
            assert frames["next_step_type"].tolist() == [*[1] * (len(steps) - 2), 2, 0]
            continue
        rows = len(frames["discount"])
        for name in frames.keys() - {*CORE, "next_observation", "is_truncated"}:
            assert_rows(frames[name], [step[name] for step in steps[:rows]], spec[name])
        is_terminal = bool(steps[-1]["is_terminal"])
        assert frames["is_terminal"].tolist() == [False] * (rows - 1) + [is_terminal]
        if layout == "transition":
            assert frames["is_truncated"].tolist() == [False] * (rows - 1) + [not is_terminal]
    return episodes


def assert_same_kind(leaf, spec):
    assert leaf.shape[1:] == tuple(spec.shape)
    assert leaf.dtype == spec.dtype


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_s_episodes_load_by_the_rules_alone_in_every_layout(mocking, tmp_path, name):
    features = mocking.features_of(name, BUILDERS[name])
    path = written(features, tmp_path, mocking)
    steps = decoded(features, path)
    assert ("reward" in steps[0][0]) == (name not in WITHOUT_REWARD)
    assert ("discount" in steps[0][0]) == (name not in WITHOUT_DISCOUNT)
    rules = RULES.get(name)
    if rules:
        with pytest.raises(ValueError, match="which (has no fixed width|is of variable length)") as error:
            load_rlds(path, layout="transition")
        assert all(f"step field {place!r}" in str(error.value) for place in rules)
    for layout in ["step"] if name in ONE_LAYOUT else ["transition", "trajectory", "step"]:
        episodes = check_layout(path, steps, layout, rules)
        report = episodes.report
        assert (report.episodes, report.terminals, report.truncations, report.num_dropped) == (2, 1, 1, 1)
        assert report.frames == (5 if layout == "transition" else 7)


@pytest.mark.parametrize(
    "name",
    [
        "bc_z",
        "robomimic_ph",
        "rlu_rwrl",
        "rlu_locomotion",
        "d4rl_mujoco_halfcheetah",
    ],
)
def test_a_dataset_of_a_builder_s_episodes_loads_like_its_file(mocking, tmp_path, name):
    features = mocking.features_of(name, BUILDERS[name])
    path = written(features, tmp_path, mocking)
    dataset = tf.data.TFRecordDataset(str(path)).map(features.deserialize_example)
    options = {"layout": "transition", "fields": RULES.get(name)}
    for one, other in zip(load_rlds(dataset, **options), load_rlds(path, **options), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def test_odd_rewards_and_discounts_of_builders_become_float32_numbers(mocking, tmp_path):
    """int32 discounts (robomimic), float64 ones (D4RL's replays), one of shape (1,) (rlu_rwrl)."""
    for name in "robomimic_ph", "d4rl_mujoco_halfcheetah", "rlu_rwrl":
        folder = tmp_path / name
        folder.mkdir()
        features = mocking.features_of(name, BUILDERS[name])
        spec = load_rlds(written(features, folder, mocking), layout="transition").element_spec
        assert spec["reward"] == spec["discount"] == tf.TensorSpec([], tf.float32)


RECORDED = {
    # name: (step metadata of fixed width, the episodes' own fields)
    "array_record": (set(), set()),
    "cartpole": (set(), set()),
    "d4rl_hopper": (set(), set()),
    "edge_lengths": (set(), {"kind"}),
    "envlogger_catch": (set(), set()),
    "envlogger_dm_control": ({"time"}, {"agent_id"}),
    "metadata": ({"infos", "log_prob"}, {"episode_id", "policy", "seed", "success"}),
    "minari_cartpole": (set(), {"minari_id"}),
    "nested_images": (set(), set()),
    "spec_generated": (set(), set()),
}


def as_tfds_decodes(folder):
    """Every episode of a folder: its steps, nests of tensors, and its own fields."""
    builder = tfds.builder_from_directory(str(folder))
    if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
        dataset = builder.as_data_source("train")
    else:
        dataset = builder.as_dataset(split="train", read_config=tfds.ReadConfig(interleave_cycle_length=1))
    for episode in dataset:
        about = {name: value for name, value in episode.items() if name not in ("steps", "invalid")}
        yield [tf.nest.map_structure(tf.convert_to_tensor, step) for step in episode["steps"]], about


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_dataset_loads_as_steps_with_its_metadata(shared_data, name):
    of_steps, of_episodes = RECORDED[name]
    expected = list(as_tfds_decodes(shared_data / name))
    episodes = check_layout(shared_data / name, [steps for steps, _ in expected], "step", None)
    assert episodes.element_spec.keys() - set(CORE) == of_steps
    sound = [about for steps, about in expected if len(steps) > 1]
    for episode, about in zip(episodes.start_pass(), sound, strict=True):
        assert episode.metadata.keys() == of_episodes
        for field, value in episode.metadata.items():
            tf.nest.map_structure(np.testing.assert_array_equal, value, tf.nest.map_structure(np.asarray, about[field]))
