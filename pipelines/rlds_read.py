"""Any RLDS dataset as the episodes of a buffer: one call, whatever and wherever the dataset is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from replayfeed.buffers.nests import Nest

from .episodes import Episodes
from .layouts import Layout, PolicyInfo
from .load_options import Compat, LoadOptions, OnBadEpisode, ZeroObservation
from .rlds_fields import Decoders, Fields
from .rlds_open import Source, open_source
from .rlds_steps import Alignment


def load_rlds(
    source: Source,
    split: str | None = None,
    *,
    layout: Layout = "trajectory",
    fields: Fields = None,
    decoders: Decoders | None = None,
    limit: int | None = None,
    seed: int | None = None,
    on_bad_episode: OnBadEpisode = "error",
    alignment: Alignment = "sar",
    policy_info: PolicyInfo = None,
    reward_dtype: Any = tf.float32,
    episode_fields: Sequence[str] = (),
    return_to_go: float | None = None,
    zero_observation: ZeroObservation = "keep",
    absorbing: bool = False,
    agent_field: str | None = None,
    compat: Compat | None = None,
    data_dir: str | None = None,
    download: bool = True,
) -> Episodes:
    """The episodes of an RLDS dataset as frames of a buffer; no episode is read yet.

    An episode of `N + 1` steps has `N` transitions. Terminal and truncated are kept apart:
    `is_terminal` decides, the transition into a terminal step gets discount 0, every other
    one the stored discount, or 1 when there is none. A last step's action, reward and
    discount are never used. `layouts.py` tells what the frames hold.

    What an episode may have, and what becomes of it:

    | finding | `'error'` | `'skip'` | `'repair'` |
    | --- | --- | --- | --- |
    | no step, or one step, so no transition | dropped | dropped | dropped |
    | last step without `is_last`, first without `is_first` | loaded: the nesting decides | loaded | loaded |
    | `is_terminal` or `is_last` before the last step | error | dropped | ends there |
    | `is_first` after the first step | error | dropped | ends before it |
    | flagged `invalid`; fields of different lengths; reward or discount not finite | error | dropped | dropped |

    All that is dropped or repaired is counted and named in the report. It is found before a
    frame of that episode is delivered.

    Args:
      source: one of
        the name of a TFDS dataset, `'d4rl_mujoco_hopper/v2-medium'`, or its folder (the one that
        holds `features.json`; EnvLogger writes such folders too);
        TFRecord or array_record files of one, by path or pattern, `'folder/*-train.*'`;
        a `tf.data.Dataset` of episodes, `{'steps': ..., ...}`, where `steps` is a dataset of steps
        or a nest of arrays `[N + 1, ...]`;
        an HDF5 file (D4RL's, robomimic's), an NPZ file, a Minari folder or id (`hdf5_source`,
        `npz_source`, `minari_source` and `arrays_source` have settings, and give an `EpisodeSource`);
        an `EpisodeSource`, or `Episodes`;
        several of these with weights, `{'folder': 0.9, 'another': 0.1}` or pairs: each episode
        comes from one that is drawn with these odds, while it lasts.
        Names and folders need `replayfeed[rlds]`.
      split: by default `'train'`; TFDS's slices (`'train[:10]'`) work. Only for names and folders.
      layout: `'trajectory'`, `'transition'` or `'step'`.
      fields: by default the fields that RLDS gives a meaning, and all step metadata of fixed width
        (in trajectories what `policy_info` names). A sequence of places (`['observation/state',
        'action', 'reward']`) takes these alone, flags and discount with them; a mapping gives
        rules, `{'observation/words': Drop(), 'observation/depth': PadTo([64, 64]), 'tags':
        CropTo(8), 'language': Bytes(64), 'observation': Cast('float32')}`. Fields of variable length
        and strings are an error without a rule where they are part of observation, action or
        reward; as step metadata they stay behind.
      decoders: by place how encoded fields are decoded: a function of one step's bytes, or False,
        which keeps the bytes for later.
      limit: at most so many episodes.
      seed: of a shuffled order of episodes, shuffled before anything is decoded (with a `limit` a
        random choice); None reads in the source's order. TensorFlow's global seed, where one is
        set, is part of it.
      on_bad_episode: see above.
      alignment: of the source: `'ars'` and `'rsa'` are turned into RLDS' `'sar'` (`rlds_steps.aligned`).
      policy_info: of trajectories: names of step metadata, or a function of step columns (`layouts.to_trajectory`).
      reward_dtype: of rewards and discounts, float32 (which rounds integers beyond 2**24) or float64.
        All else keeps its dtype.
      episode_fields: names of the episodes' own fields that each frame shall hold, as
        `'episode_metadata'`. `Episode.metadata` has all of them, once for each episode.
      return_to_go: adds to each frame the discounted sum of the rewards that follow, with this discount.
      zero_observation: an all-zero observation behind a terminal transition, which D4RL files have
        where none was recorded, is kept; `'mark'` tells it by a field, `'repeat'` puts the one before in its place.
      absorbing: the end of terminal episodes becomes an absorbing state (`step_additions.with_absorbing_state`).
      agent_field: a field of the episodes or of the steps that names the agent, for buffers of many.
      compat: `'tf_agents'`: trajectories with the numbers of TF-Agents' own converter, which writes
        the discount 0 of a terminal episode one frame late.
      data_dir: where TFDS keeps datasets that are given by name.
      download: let TFDS download and prepare a named dataset that is not there.

    Raises:
      TypeError: `source` is none of these.
      FileNotFoundError: a path leads to no dataset.
      ImportError: what reads the source, or for trajectories TF-Agents, cannot be imported.
      ValueError: `split` is given with a source that has none, or is unknown.
      ValueError: the source has no episodes, its steps lack a field, or a field has no fixed width.
      ValueError: an option is unknown or does not fit the source.

    >>> steps = {"observation": [0, 1, 2], "action": [10, 11, 0], "reward": [0.5, 1.0, 0.0],
    ...          "is_first": [True, False, False], "is_last": [False, False, True], "is_terminal": [False, False, True]}
    >>> episodes = load_rlds(tf.data.Dataset.from_tensors({"steps": steps}), layout="transition")
    >>> for episode in episodes:
    ...     print(episode["observation"], episode["action"], episode["discount"], episode["next_observation"])
    [0 1] [10 11] [1. 0.] [1 2]
    """
    options = LoadOptions(
        layout=layout,
        on_bad_episode=on_bad_episode,
        limit=limit,
        seed=seed,
        alignment=alignment,
        policy_info=policy_info,
        reward_dtype=reward_dtype,
        episode_fields=_names("episode_fields", episode_fields),
        return_to_go=return_to_go,
        zero_observation=zero_observation,
        absorbing=absorbing,
        agent_field=agent_field,
        compat=compat,
    )
    opened = open_source(
        source,
        split=split,
        fields=fields,
        decoders=decoders,
        metadata=_metadata_of_use(options),
        kept=() if agent_field is None else (agent_field,),
        data_dir=data_dir,
        download=download,
    )
    return Episodes(opened, options)


def rlds_spec(
    source: Source,
    layout: Layout = "trajectory",
    *,
    split: str | None = None,
    fields: Fields = None,
    decoders: Decoders | None = None,
    policy_info: PolicyInfo = None,
    reward_dtype: Any = tf.float32,
    episode_fields: Sequence[str] = (),
    data_dir: str | None = None,
    download: bool = True,
) -> Nest:
    """The `data_spec` of a buffer for the episodes of a dataset; no data is read.

    Args:
      source: as for `load_rlds`, as are the others.
      layout: of the frames.
      split: of a name or folder.
      fields: what is loaded, and how.
      decoders: of encoded fields.
      policy_info: of trajectories.
      reward_dtype: of rewards and discounts.
      episode_fields: that each frame holds.
      data_dir: where TFDS keeps its datasets.
      download: let TFDS download what is not there.

    Returns:
      A nest of `tf.TensorSpec`, of one frame.

    Raises:
      As `load_rlds`.

    >>> dataset = tf.data.Dataset.from_tensors({"steps": {"observation": [0.0, 1.0], "is_terminal": [False, True]}})
    >>> rlds_spec(dataset, "transition")["next_observation"]
    TensorSpec(shape=(), dtype=tf.float32, name=None)
    """
    return load_rlds(
        source,
        split,
        layout=layout,
        fields=fields,
        decoders=decoders,
        policy_info=policy_info,
        reward_dtype=reward_dtype,
        episode_fields=episode_fields,
        data_dir=data_dir,
        download=download,
    ).element_spec


def _metadata_of_use(options: LoadOptions) -> tuple[str, ...] | None:
    """Step metadata that the frames can hold; None: all."""
    if options.layout != "trajectory" or callable(options.policy_info):
        return None
    return (*(options.policy_info or ()), *([options.agent_field] if options.agent_field else []))


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ValueError(f"{what} takes several names: write [{names!r}] for one.")
    return tuple(names)
