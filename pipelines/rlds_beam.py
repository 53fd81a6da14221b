"""Large sources to one TFDS dataset on Apache Beam, TFDS's own engine: as `write_rlds`, in many processes.

An element of the pipeline is a source: a file, or a slice of a dataset. The worker that gets
it opens it, and writes its episodes, by the functions that `write_rlds` is made of, into files
of its own; nothing but counts goes through Beam. Then the files get their names, in the order
of the sources, and the dataset appears as a whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from .progress_bar import progress_bar
from .rlds_folder import import_tfds
from .rlds_write import Writable, episode_source_of
from .rlds_write_dataset import Counts, DatasetSettings, WrittenSplit, check_splits, finish_dataset, write_episodes
from .rlds_write_folder import NewFolder
from .rlds_write_format import EncodeImages, EpisodeFormat, episode_format
from .rlds_write_metadata import EpisodeMetadata, add_metadata
from .rlds_write_report import WriteReport
from .rlds_write_shards import FileFormat, ShardWriter

BeamSource = str | os.PathLike[str] | Callable[[], Writable]
"""What one element of the pipeline reads: a file, a folder or a name; or a function that opens it in the worker."""

_RESULTS = "results.json"
# What the data are to blame for would fail again: it is written there, for the sources that have not begun and the
# process that waits. Anything else is raised, and Beam tries again.
_FAILURE = "failure.json"

_DONE = "done"
_POLL_SECONDS = 0.5


def write_rlds_with_beam(
    sources: Sequence[BeamSource],
    path: str | os.PathLike[str],
    *,
    name: str,
    pipeline: Any = None,
    episode_metadata: EpisodeMetadata | None = None,
    file_format: FileFormat = "tfrecord",
    split: str = "train",
    encode_images: EncodeImages = "png",
    overwrite: bool = False,
    description: str = "",
    citation: str = "",
    version: str = "1.0.0",
    progress: bool = True,
) -> WriteReport:
    """Writes episodes as `write_rlds` does, each source in whatever process Beam gives it to.

    The dataset is the one that `write_rlds` writes of the sources one after the other: the same
    episodes in the same order, with the same features. Each source has files of its own (one
    for about 256 MB each), so that is how many there are. It appears at `path` when all of it is on
    the disk; until then, and after an error, nothing is there.

    Args:
      sources: in the order of the dataset: files, folders or names that `open_source` takes, or
        functions without arguments that give what `write_rlds` takes, and can be sent to other
        processes: `functools.partial(open_source, 'big', split='train[:1000]', fields='all')`.
        `split_slices` names the slices. All have the same fields.
      path: the folder of the dataset, on a disk that all workers see under this path.
      name: the dataset's, letters, digits and underscores.
      pipeline: a `beam.Pipeline` with the runner and the options to use, which is run here. None:
        the DirectRunner in this process, which writes one source after the other; with the options
        `--direct_running_mode=multi_processing --direct_num_workers=0` it takes all cores.
      episode_metadata: as in `write_rlds`; a function has to be one that can be sent to other processes.
      file_format: as in `write_rlds`, as are all that follow.
      split: the split's name.
      encode_images: which fields are written as PNG.
      overwrite: whether a dataset that is at `path` is replaced.
      description: for the dataset's info.
      citation: for the dataset's info.
      version: of the dataset.
      progress: a bar on stderr, of the sources that are done.

    Returns:
      What was written.

    Raises:
      TypeError: `sources` are none of these.
      ValueError: there are no sources, or an argument cannot be, see `write_rlds`.
      ImportError: Apache Beam or TensorFlow Datasets cannot be imported.
      FileExistsError: something is at `path` that may not be replaced.
      ValueError: the sources differ in their fields, an episode is not as its source says, or there are no episodes.
      RuntimeError: the pipeline did not finish, or a worker failed in another way, then with Beam's own message.

    >>> import tempfile
    >>> import numpy as np, tensorflow as tf
    >>> def opened(first):
    ...     steps = {"observation": np.array([first, first + 1]), "is_terminal": np.array([False, True])}
    ...     return tf.data.Dataset.from_tensors({"steps": steps})
    >>> sources = [functools.partial(opened, 10), functools.partial(opened, 20)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = write_rlds_with_beam(sources, os.path.join(folder, "mine"), name="mine", progress=False)
    >>> report.episodes, report.steps, report.shards
    (2, 4, 2)
    """
    checked = _check_sources(sources)
    check_splits([split])
    settings = DatasetSettings(
        name=name, file_format=file_format, description=description, citation=citation, version=version
    )
    beam = _import_beam()
    import_tfds()
    started = time.perf_counter()
    folder = NewFolder(os.fspath(path), overwrite=overwrite)
    try:
        # The first source tells the format, so that a field that cannot be written is found here and not in a worker.
        source_name, fmt = _format_of(checked[0], episode_metadata, encode_images)
        job = _Job(checked, folder.temporary, fmt, episode_metadata, file_format, encode_images)
        run = _default_pipeline(beam) if pipeline is None else pipeline
        (
            run
            | f"sources of {name}" >> beam.Create(range(len(checked)))
            # Without it a runner may give all sources to one worker.
            | f"deal out {name}" >> beam.Reshuffle()
            | f"write {name}" >> beam.Map(functools.partial(_write_source, job))
            | f"gather {name}" >> beam.combiners.ToList()
            | f"tell of {name}" >> beam.Map(functools.partial(_keep_results, folder.temporary))
        )
        with _Progress(folder.temporary, len(checked), name, progress):
            _run(run)
        _raise_failure(folder.temporary)
        parts = _take_results(folder.temporary, len(checked))
        lengths = _rename_shards(folder.temporary, parts, f"{name}-{split}.{file_format}")
        if not lengths:
            raise ValueError(f"{source_name}: there are no episodes; TFDS does not read a split without any.")
        counts = sum((part.counts for part in parts), start=Counts())
        names = ", ".join(dict.fromkeys(part.source_name for part in parts))
        report = finish_dataset(folder, os.fspath(path), names, fmt, [WrittenSplit(split, lengths, counts)], settings)
    except BaseException:
        folder.discard()
        raise
    return dataclasses.replace(report, seconds=time.perf_counter() - started)


def split_slices(split: str, num_episodes: int, num_slices: int) -> tuple[str, ...]:
    """TFDS's names of slices of a split that hold all its episodes in order, and differ by one at most.

    Args:
      split: its name, without a slice.
      num_episodes: in it.
      num_slices: how many; fewer where there are fewer episodes.

    Raises:
      ValueError: `split` is a slice or a sum already.
      ValueError: `num_episodes` is negative, or `num_slices` less than 1.

    >>> split_slices("train", 10, 3)
    ('train[0:3]', 'train[3:6]', 'train[6:10]')
    """
    if not split.isidentifier():
        raise ValueError(f"split must be the name of one split, as 'train', got {split!r}.")
    if num_episodes < 0 or num_slices < 1:
        raise ValueError(f"expected 0 or more episodes and 1 or more slices, got {num_episodes} and {num_slices}.")
    num_slices = min(num_slices, num_episodes)
    bounds = [index * num_episodes // num_slices for index in range(num_slices + 1)] if num_slices else []
    return tuple(f"{split}[{start}:{stop}]" for start, stop in zip(bounds[:-1], bounds[1:], strict=True))


# -- in the workers ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Job:
    """What a worker has to know; can be sent to it."""

    sources: tuple[BeamSource, ...]
    folder: str
    fmt: EpisodeFormat
    episode_metadata: EpisodeMetadata | None
    file_format: FileFormat
    encode_images: EncodeImages


class _Part(NamedTuple):
    """What became of one source: its files lie in `folder`, as `part-00000-of-00002`."""

    number: int
    source_name: str
    folder: str
    shard_lengths: list[int]
    counts: Counts


def _write_source(job: _Job, index: int) -> str:
    """Writes one source's files, and returns a `_Part` as JSON; an empty string where the writing has failed."""
    if os.path.exists(os.path.join(job.folder, _FAILURE)):
        return ""
    try:
        part = _write_part(job, index)
    except (ValueError, TypeError) as error:
        _write_json(job.folder, _FAILURE, [type(error).__name__, str(error)])
        return ""
    with open(os.path.join(job.folder, part.folder, _DONE), "w"):
        pass
    return json.dumps([part.number, part.source_name, part.folder, part.shard_lengths, dataclasses.asdict(part.counts)])


def _write_part(job: _Job, index: int) -> _Part:
    source = _open(job.sources[index])
    metadata_spec, episodes = add_metadata(source, job.episode_metadata)
    found = episode_format(source.name, source.step_spec, metadata_spec, encode_images=job.encode_images)
    _check_same_fields(source.name, job.fmt, found)
    # Beam may do an element twice, where it believes a worker lost: each attempt has a folder of its own.
    folder = f"source-{index:06d}-{uuid.uuid4().hex[:12]}"
    os.mkdir(os.path.join(job.folder, folder))
    writer = ShardWriter(os.path.join(job.folder, folder), "part", job.file_format)
    with contextlib.closing(writer), tqdm(disable=True) as no_bar:
        counts = write_episodes(job.fmt, source.name, episodes, writer, no_bar)
        lengths = writer.finish()
    return _Part(index, source.name, folder, lengths, counts)


def _keep_results(folder: str, results: list[str]) -> None:
    """Leaves what the workers told where the process that waits finds it."""
    _write_json(folder, _RESULTS, results)


def _write_json(folder: str, name: str, content: Any) -> None:
    """Writes a file that is there as a whole or not at all."""
    own = os.path.join(folder, f"{name}-{uuid.uuid4().hex[:12]}")
    with open(own, "w") as file:
        json.dump(content, file)
    os.replace(own, os.path.join(folder, name))


def _open(source: BeamSource) -> Any:
    return episode_source_of(source() if callable(source) else source)


def _check_same_fields(source_name: str, expected: EpisodeFormat, found: EpisodeFormat) -> None:
    first = {field.key: field for field in (*expected.steps, *expected.metadata)}
    other = {field.key: field for field in (*found.steps, *found.metadata)}
    for key in sorted(first.keys() | other.keys()):
        if first.get(key) != other.get(key):
            raise ValueError(
                f"{source_name}: all sources must have the same fields: {key!r} is {other.get(key)} here, and "
                f"{first.get(key)} in the first source."
            )


# -- around the pipeline -----------------------------------------------------------------------


def _format_of(
    source: BeamSource, episode_metadata: EpisodeMetadata | None, encode_images: EncodeImages
) -> tuple[str, EpisodeFormat]:
    opened = _open(source)
    metadata_spec, _ = add_metadata(opened, episode_metadata)
    return opened.name, episode_format(opened.name, opened.step_spec, metadata_spec, encode_images=encode_images)


def _run(pipeline: Any) -> None:
    result = pipeline.run()
    state = result.wait_until_finish()
    if state != "DONE":
        raise RuntimeError(f"the Beam pipeline ended as {state}; its runner's log tells why. Nothing was written.")


def _raise_failure(folder: str) -> None:
    try:
        with open(os.path.join(folder, _FAILURE)) as file:
            kind, text = json.load(file)
    except FileNotFoundError:
        return
    raise (TypeError if kind == "TypeError" else ValueError)(text)


class _Progress:
    """A bar of the sources that are done, whoever writes them: counted on the disk."""

    def __init__(self, folder: str, num_sources: int, name: str, progress: bool) -> None:
        self._done = os.path.join(glob.escape(folder), "source-*", _DONE)
        self._bar = progress_bar(f"write {name} on Beam", num_sources, "source", progress=progress)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="beam-progress", daemon=True)

    def __enter__(self) -> None:
        if not self._bar.disable:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if not self._bar.disable:
            self._thread.join()
        self._bar.close()

    def _watch(self) -> None:
        while True:
            ended = self._ended.wait(_POLL_SECONDS)
            # An element that was done twice is counted once.
            done = {os.path.basename(os.path.dirname(path))[: len("source-000000")] for path in glob.glob(self._done)}
            self._bar.update(len(done) - self._bar.n)
            if ended:
                return


def _take_results(folder: str, num_sources: int) -> list[_Part]:
    with open(os.path.join(folder, _RESULTS)) as file:
        results = [json.loads(text) for text in json.load(file)]
    os.remove(os.path.join(folder, _RESULTS))
    parts = [
        _Part(number, source_name, part_folder, lengths, Counts(**counts))
        for number, source_name, part_folder, lengths, counts in results
    ]
    parts.sort(key=lambda part: part.number)
    if [part.number for part in parts] != list(range(num_sources)):
        raise RuntimeError(
            f"the Beam pipeline told of sources {[part.number for part in parts]}, expected {num_sources}, each once."
        )
    return parts


def _rename_shards(folder: str, parts: list[_Part], stem: str) -> list[int]:
    """Gives the files their names, removes all else, and returns how many records each holds."""
    lengths = [length for part in parts for length in part.shard_lengths]
    index = 0
    for part in parts:
        num_shards = len(part.shard_lengths)
        for shard in range(num_shards):
            old = os.path.join(folder, part.folder, f"part-{shard:05d}-of-{num_shards:05d}")
            os.rename(old, os.path.join(folder, f"{stem}-{index:05d}-of-{len(lengths):05d}"))
            index += 1
    for entry in list(os.scandir(folder)):
        if entry.is_dir():
            shutil.rmtree(entry.path)
        elif entry.name.startswith(_RESULTS):
            os.remove(entry.path)
    return lengths


def _check_sources(sources: Sequence[BeamSource]) -> tuple[BeamSource, ...]:
    if isinstance(sources, str | os.PathLike) or not isinstance(sources, Sequence):
        raise TypeError(f"sources must be a list of sources, got {type(sources).__name__}; write [source] for one.")
    if not sources:
        raise ValueError("sources is empty, so there is nothing to write.")
    for source in sources:
        if not (isinstance(source, str | os.PathLike) or callable(source)):
            raise TypeError(
                "a source must be the path or name of a dataset, or a function that opens one in the worker, got "
                f"{type(source).__name__}."
            )
    return tuple(sources)


def _default_pipeline(beam: Any) -> Any:
    from apache_beam.options.pipeline_options import PipelineOptions

    # Given, so that Beam does not take this process's command line for its own.
    return beam.Pipeline(runner="DirectRunner", options=PipelineOptions([]))


def _import_beam() -> Any:
    try:
        import apache_beam
    except ImportError as error:
        raise ImportError("writing with Beam needs Apache Beam: install replayfeed[beam].") from error
    return apache_beam
