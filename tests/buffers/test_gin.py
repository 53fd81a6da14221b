"""Constructors can be bound with gin, as TF-Agents' users do it: `gin.external_configurable(class)`, then a config."""

from __future__ import annotations

import subprocess
import sys

import gin
import pytest
import tensorflow as tf

from replayfeed import buffers
from replayfeed.buffers import Fifo, Lifo, MinSize, Window

VALUE = tf.TensorSpec([], tf.int64)
ROLLOUT = {name: tf.TensorSpec([], tf.float32) for name in ("reward", "value")}


@pytest.fixture(autouse=True)
def _fresh_registry():
    with gin.unlock_config():
        yield
        gin.clear_config()


def configurable(cls):
    """The class under a name of its own for each test: gin registers a name once."""
    name = f"{cls.__name__}_{configurable.count}"
    configurable.count += 1
    return gin.external_configurable(cls, name=name, module="replayfeed"), name


configurable.count = 0


def test_a_uniform_buffer_is_built_from_a_config():
    build, name = configurable(buffers.TFUniformReplayBuffer)
    _, fifo = configurable(Fifo)
    gin.parse_config(f"""
        {name}.max_length = 5
        {name}.batch_size = 2
        {name}.sampler = @{fifo}()
        {name}.max_times_sampled = 1
        {name}.seed = 7
    """)
    buffer = build(VALUE)
    assert isinstance(buffer, buffers.TFUniformReplayBuffer)
    assert buffer.capacity == 10
    buffer.add_batch([4, 5])
    assert buffer.sample(2)[0].numpy().tolist() == [4, 5]


CONFIGS = {
    "TFUniformReplayBuffer": ("batch_size = 2\nmax_length = 5", {"data_spec": VALUE}),
    "TFPrioritizedReplayBuffer": ("batch_size = 2\nmax_length = 5\nalpha = 0.9", {"data_spec": VALUE}),
    "EpisodicReplayBuffer": ("capacity = 5\nseed = 1", {"data_spec": VALUE}),
    "ReservoirReplayBuffer": ("capacity = 10\nbatch_size = 2", {"data_spec": VALUE}),
    "RolloutBuffer": ("batch_size = 2\nnum_steps = 10", {"data_spec": ROLLOUT}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_buffer_in_process_is_built_from_a_config(name):
    build, bound = configurable(getattr(buffers, name))
    settings, arguments = CONFIGS[name]
    gin.parse_config("".join(f"{bound}.{line}\n" for line in settings.split("\n")))
    buffer = build(**arguments)
    assert isinstance(buffer, getattr(buffers, name))
    buffer.close()


@pytest.mark.parametrize("name", ["Window", "TableConfig"])
def test_settings_are_built_from_a_config(name):
    build, bound = configurable(getattr(buffers, name))
    if name == "Window":
        gin.parse_config(f"{bound}.num_steps = 3\n{bound}.burn_in = 1")
        assert repr(build()) == repr(Window(3, burn_in=1))
    else:
        _, lifo = configurable(Lifo)
        _, min_size = configurable(MinSize)
        gin.parse_config(f"""
            {bound}.name = "stack"
            {bound}.max_size = 20
            {bound}.sampler = @{lifo}()
            {bound}.rate_limiter = @{min_size}()
            {min_size}.min_size_to_sample = 3
        """)
        table = build(data_spec=VALUE, remover=Fifo())
        assert (table.name, table.max_size) == ("stack", 20)
        assert isinstance(table.sampler, Lifo)
        assert isinstance(table.rate_limiter, MinSize)
        assert table.rate_limiter.min_size_to_sample == 3


def test_served_buffers_are_built_from_a_config():
    frames = buffers.TableConfig("frames", VALUE, 10)
    episodes = buffers.TableConfig("episodes", VALUE, 10, sequence_length=None, max_episode_length=5)
    served, served_name = configurable(buffers.ReverbReplayBuffer)
    episodic, episodic_name = configurable(buffers.ReverbEpisodicReplayBuffer)
    gin.parse_config(f"""
        {served_name}.table_name = "frames"
        {served_name}.sequence_length = 1
        {episodic_name}.table_name = "episodes"
    """)
    with buffers.ReplayServer([frames, episodes]) as server:
        for build, cls in ((served, buffers.ReverbReplayBuffer), (episodic, buffers.ReverbEpisodicReplayBuffer)):
            with build(VALUE, server_address=server.address) as buffer:
                assert isinstance(buffer, cls)


def test_an_argument_that_does_not_exist_is_refused():
    build, bound = configurable(buffers.TFUniformReplayBuffer)
    with pytest.raises(ValueError, match="max_lenght"):
        gin.parse_config(f"{bound}.max_lenght = 5")
    assert build(VALUE, 1, 3).capacity == 3


def test_importing_the_buffers_does_not_import_gin():
    code = "import sys, replayfeed.buffers; sys.exit('gin' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
