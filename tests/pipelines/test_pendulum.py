import numpy as np
import pytest
import tensorflow as tf
from tf_agents.environments import suite_gym

from replayfeed.buffers import ReverbReplayBuffer, TFUniformReplayBuffer, Window
from replayfeed.pipelines.cartpole import job as command
from replayfeed.pipelines.cartpole.monitor import BufferPoint
from replayfeed.pipelines.cartpole.report import CurvePoint, PartResult, RecordedReturns, picture
from replayfeed.pipelines.fill import fill
from replayfeed.pipelines.pendulum import job
from replayfeed.pipelines.pendulum.agents import CloningSettings, CqlSettings, cql_agent
from replayfeed.pipelines.pendulum.environments import make_environment, play
from replayfeed.pipelines.pendulum.expert import RANDOM, Behaviour, swing_up
from replayfeed.pipelines.pendulum.recording import Recording, record
from replayfeed.pipelines.pendulum.training import Schedule, train
from replayfeed.pipelines.rlds_read import load_rlds

# TF-Agents asks whether a state `is ()`; Python remarks on it when AutoGraph compiles that. As an error it would keep
# AutoGraph from converting what users see converted.
pytestmark = [
    pytest.mark.filterwarnings('ignore:"is( not)?" with a literal:SyntaxWarning'),
    pytest.mark.usefixtures("quiet_gym"),
]

_FEW = {Behaviour("careful", 0.2): 3, Behaviour("sloppy", 0.8): 2}


@pytest.fixture(scope="module")
def recording(quiet_gym, tmp_path_factory):
    return record(tmp_path_factory.mktemp("rlds") / "pendulum", 0, _FEW, progress=False)


def _returns(behaviour, num_episodes):
    rng = np.random.default_rng(0)
    episodes = play(make_environment(num_episodes, 0), lambda step: behaviour.choose(step.observation, rng))
    return np.array([episode.total_reward for episode in episodes])


# -- what is recorded --------------------------------------------------------------------------


def test_the_controller_brings_the_pendulum_up_and_random_actions_do_not():
    assert _returns(Behaviour("expert", 0.0), 10).mean() > -250
    assert _returns(RANDOM, 10).mean() < -1000


def test_the_controller_pumps_holds_and_brakes():
    hanging_still, too_fast, upright_falling = [-1.0, 0.0, 0.0], [0.5, 0.866, 6.0], [1.0, 0.0, 0.5]
    torques = swing_up(np.array([hanging_still, too_fast, upright_falling], np.float32))
    assert torques.tolist() == [[2.0], [-2.0], [-1.5]]


def test_a_time_limit_is_no_terminal_here_and_one_through_suite_gym_load():
    (episode,) = play(make_environment(1, 0), lambda step: np.zeros([1, 1], np.float32))
    assert (len(episode.actions), episode.is_terminal) == (200, False)
    loaded = suite_gym.load("Pendulum-v1")
    for _ in range(201):
        time_step = loaded.step(np.zeros(1, np.float32))
    # Why the environment is not made that way.
    assert (bool(time_step.is_last()), float(time_step.discount)) == (True, 0.0)


def test_the_recorded_dataset_is_truncated_throughout_and_says_who_played(recording):
    import tensorflow_datasets as tfds

    episodes = load_rlds(recording.folder, layout="transition")
    frames = list(episodes)
    assert (episodes.report.truncations, episodes.report.terminals, episodes.report.frames) == (5, 0, 1000)
    # A truncated end goes on: its discount stays 1, and the observation after the last action is there.
    assert all(episode["discount"].tolist() == [1.0] * 200 for episode in frames)
    assert all(episode["is_truncated"].tolist() == [False] * 199 + [True] for episode in frames)
    np.testing.assert_allclose([episode["reward"].sum() for episode in frames], recording.returns, rtol=1e-5)
    dataset = tfds.builder_from_directory(str(recording.folder)).as_dataset("train")
    metadata = [(episode["behaviour"].numpy(), float(episode["episode_return"])) for episode in dataset]
    assert [name for name, _ in metadata] == [b"careful"] * 3 + [b"sloppy"] * 2
    np.testing.assert_allclose([value for _, value in metadata], recording.returns, rtol=1e-5)


def test_the_same_seed_records_the_same_episodes(recording, tmp_path):
    again = record(tmp_path / "again", 0, _FEW, progress=False)
    assert again.returns.tolist() == recording.returns.tolist()
    assert again.random_return == recording.random_return


# -- both buffers ------------------------------------------------------------------------------


def _transitions(buffer, episodes):
    """The transitions of one pass as rows `[N, 9]`, in the order of their values."""
    fill(buffer, episodes, progress=False)
    rows = [
        tf.concat(
            [
                items.observation[:, 0],
                items.action[:, 0],
                items.reward[:, :1],
                items.discount[:, :1],
                items.observation[:, 1],
            ],
            axis=1,
        ).numpy()
        for items, _ in buffer.as_dataset(64, window=Window(2, stride=1), single_deterministic_pass=True)
    ]
    joined = np.concatenate(rows)
    return joined[np.lexsort(joined.T)]


def test_a_reverb_table_gives_the_same_transitions_as_the_memory_of_this_process(recording):
    episodes = load_rlds(recording.folder, layout="trajectory")
    with TFUniformReplayBuffer(episodes.element_spec, 1, 2000, seed=0) as local:
        here = _transitions(local, episodes)
    with ReverbReplayBuffer.local(episodes.element_spec, max_size=2000, sequence_length=2) as served:
        there = _transitions(served, episodes)
    frames = list(load_rlds(recording.folder, layout="transition"))
    names = ("observation", "action", "reward", "discount", "next_observation")
    columns = [np.concatenate([episode[name] for episode in frames]).reshape(1000, -1) for name in names]
    recorded = np.concatenate(columns, axis=1)
    # 5 episodes of 200, and none that joins two of them.
    np.testing.assert_array_equal(here, recorded[np.lexsort(recorded.T)])
    np.testing.assert_array_equal(there, here)


def test_each_agent_trains_from_each_buffer(recording):
    layers, schedule = (8,), Schedule(updates=4, evaluate_every=2, bar=-2000.0)
    results = job.run(
        recording,
        0,
        cloning=CloningSettings(schedule, sample_batch_size=8, layers=layers),
        cql=CqlSettings(schedule, sample_batch_size=8, layers=layers),
    )
    assert [result.name for result in results] == [job.CLONING_NAME, job.LOCAL_NAME, job.SERVED_NAME]
    for result in results:
        assert (result.steps, result.updates, result.is_met) == (1005, 4, True)
        assert [point.position for point in result.curve] == [0, 2, 4]
        assert result.mean_return == result.curve[-1].mean_return


def test_training_goes_on_after_its_updates_until_an_evaluation_reaches_the_bar_or_it_is_given_up():
    schedule = Schedule(updates=4, evaluate_every=2, bar=-250.0, max_updates=8)
    # Positions and returns of evaluations.
    assert schedule.goes_on(0, -1300.0)
    assert schedule.goes_on(2, -100.0)
    assert not schedule.goes_on(4, -250.0)
    assert schedule.goes_on(4, -250.1)
    assert schedule.goes_on(6, -251.0)
    assert not schedule.goes_on(8, -1300.0)
    assert not Schedule(updates=4, evaluate_every=2, bar=-250.0).goes_on(4, -1300.0)


@pytest.mark.parametrize(
    ("updates", "max_updates", "evaluate_every"), [(5, 8, 2), (4, 7, 2), (4, 2, 2), (0, 2, 2), (4, 8, 0)]
)
def test_a_schedule_ends_with_an_evaluation(updates, max_updates, evaluate_every):
    found = f"updates={updates}, max_updates={max_updates}, evaluate_every={evaluate_every}"
    with pytest.raises(ValueError, match=f"both multiples of evaluate_every, got {found}"):
        Schedule(updates=updates, evaluate_every=evaluate_every, bar=0.0, max_updates=max_updates)


@pytest.mark.slow
@pytest.mark.parametrize("is_served", [False, True], ids=["in process", "Reverb"])
def test_cql_learns_what_was_good_in_a_dataset_that_is_bad_on_average(is_served, tmp_path):
    recording = record(tmp_path / "pendulum", 3, progress=False)
    assert recording.mean_return < -600
    settings = CqlSettings()
    episodes = load_rlds(recording.folder, layout="trajectory")
    spec = episodes.element_spec
    buffer = (
        ReverbReplayBuffer.local(spec, max_size=20_100, sequence_length=2)
        if is_served
        else TFUniformReplayBuffer(spec, 1, 20_100, seed=3)
    )
    with buffer:
        fill(buffer, episodes, progress=False)
        tf.random.set_seed(3)
        samples = buffer.as_dataset(settings.sample_batch_size, num_steps=2)
        curve, _ = train("CQL", cql_agent(settings, 3), samples, settings.schedule, seed=4, progress=False)
    assert curve[0].mean_return < -800
    assert curve[-1].mean_return >= settings.schedule.bar


# -- its place in the main job -----------------------------------------------------------------


def _result(name, mean_return, bar):
    curve = [CurvePoint(0, -1300.0), CurvePoint(500, mean_return)]
    return PartResult(name, 1005, 500, mean_return, bar, 3.0, 9.0, 9.0, 1.0, curve, [BufferPoint(0.1, 0.5, 3.0)])


@pytest.mark.parametrize(("learnt", "met"), [(-200.0, True), (-300.0, False)])
def test_the_main_job_shows_the_part_and_fails_with_it(learnt, met, tmp_path, capsys, monkeypatch):
    returns = np.array([-150.0, -1000.0])

    def record_two(folder, seed):
        assert (folder, seed) == (tmp_path / "pendulum_rlds", 7)
        return Recording(folder, returns, -1200.0)

    monkeypatch.setattr(command, "record_pendulum", record_two)
    monkeypatch.setattr(job, "run", lambda recording, seed: [_result("CQL", learnt, -250.0)])
    assert command.run_parts(["pendulum"], 7, tmp_path) == met
    printed = capsys.readouterr().out
    assert "2 episodes, average return -575.0, random actions -1200.0" in printed
    assert ("Bar missed: CQL: return -300.0, bar -250" in printed) != met
    assert (tmp_path / "cartpole.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_takes_the_dataset_alone(tmp_path):
    picture([], [], None, tmp_path / "x.png", pendulum_data=RecordedReturns([-1.0, -2.0], -3.0))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
