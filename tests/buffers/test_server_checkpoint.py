"""Checkpoints of a server: what comes back, from which folder, and what is said."""

from __future__ import annotations

import json
import logging
import pathlib
import re
import shutil
import threading
import zlib

import pytest
import reverb
import tensorflow as tf

from replayfeed.buffers import (
    CheckpointConfig,
    Prioritized,
    ReplayServer,
    ReverbEpisodicReplayBuffer,
    ReverbReplayBuffer,
    ReverbTableGroup,
    SampleToInsertRatio,
    TableConfig,
    WaitTimeoutError,
)
from replayfeed.buffers.server_manifest import Checkpoint, Manifest, later_names, newest_first, newest_number

COUNTER = tf.TensorSpec([], tf.int64)


def table(name: str = "replay", **settings) -> TableConfig:
    return TableConfig(name, COUNTER, **{"max_size": 10, "scannable": True, **settings})


def fill(folder: pathlib.Path, *tables: TableConfig, num: int = 5, step: int | None = None) -> str:
    """A checkpoint of tables with frames 0, 1, ..."""
    with ReplayServer(tables, checkpoint_dir=folder) as server:
        with ReverbTableGroup(COUNTER, [one.name for one in tables], None, server) as group:
            group.add_sequence([list(range(num))])
            group.flush()
            return server.checkpoint(step).path


def contents(server: ReplayServer, name: str = "replay") -> list[int]:
    with ReverbReplayBuffer(COUNTER, name, None, local_server=server) as buffer:
        return buffer.gather_all().numpy()[0].tolist()


def folders(path: pathlib.Path) -> list[str]:
    return sorted(str(one) for one in path.iterdir() if one.name[:2] == "20")


# -- what comes back ---------------------------------------------------------------------------


def test_items_their_ids_priorities_and_draws_come_back_and_the_next_insert_evicts_what_it_would_have(tmp_path):
    """FR-035."""
    config = table(max_size=4, sampler=Prioritized(1.0), sequence_length=1, scannable=False)
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            ids = [int(buffer.add_batch([n], priorities=[n + 1.0])[0]) for n in range(6)]
            _, info = buffer.sample(100)
            buffer.update_priorities(info.keys[info.ids == ids[2]][:1], [7.0])
            before = buffer.get_table_info()
            server.checkpoint()
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            after = buffer.get_table_info()
            assert after.rate_limiter_info == before.rate_limiter_info
            assert (after.current_size, after.num_unique_samples) == (4, before.num_unique_samples)
            # Raw priorities 7, 4, 5, 6 of the frames 2, 3, 4, 5.
            items, info = buffer.sample(200)
            probabilities = dict(zip(items.numpy().tolist(), info.probabilities.numpy().tolist(), strict=True))
            assert probabilities == pytest.approx({2: 7 / 22, 3: 4 / 22, 4: 5 / 22, 5: 6 / 22})
            assert set(info.ids.numpy().tolist()) == set(ids[2:])
            buffer.add_batch([100], priorities=[1.0])
            assert set(buffer.sample(300)[0].numpy().tolist()) == {3, 4, 5, 100}


def test_fr_034_the_signature_and_the_datasets_of_it_are_the_same_before_and_after(tmp_path):
    spec = {"b": tf.TensorSpec([2, 3], tf.float32), "a": tf.TensorSpec([], tf.uint8)}
    tables = [TableConfig("packed", spec, 9), TableConfig("plain", spec, 9, sequence_length=2, layout="plain")]

    def told() -> list[object]:
        with ReplayServer(tables, checkpoint_dir=tmp_path) as server:
            infos = reverb.Client(server.address).server_info()
            datasets = [
                reverb.TrajectoryDataset.from_table_signature(server.address, name, 1).element_spec
                for name in ("packed", "plain")
            ]
            server.checkpoint()
            return [infos["packed"].signature, infos["plain"].signature, *datasets]

    assert told() == told()


def test_streams_scans_and_writers_go_on_after_a_restore(tmp_path):
    tables = [table(), table("other", sequence_length=2)]
    fill(tmp_path, *tables, num=4)
    with ReplayServer(tables, checkpoint_dir=tmp_path) as server:
        with ReverbTableGroup(COUNTER, ["replay", "other"], None, server) as group:
            first = group["replay"].gather_all().numpy().tolist()
            group.add_sequence([[10, 11, 12]])
            group.flush()
            frames = [row for row, _ in group["other"].as_dataset(None, 2, single_deterministic_pass=True)]
            ids = [info.ids.numpy().tolist() for _, info in group["replay"].as_dataset(single_deterministic_pass=True)]
    assert first == [[0, 1, 2, 3]]
    assert sorted(row.numpy().tolist() for row in frames) == [[0, 1], [2, 3], [10, 11], [12]]
    assert len(set(ids)) == 7, "a writer of now gives no id that one of before gave"


def test_mirrors_of_priorities_go_on_after_a_restore(tmp_path):
    config = table(sampler=Prioritized(), initial="max", tracks_least=True, scannable=False)
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_sequence([[0, 1, 2]], priorities=[[3.0, 8.0, 0.5]])
            buffer.flush()
            server.checkpoint()
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        assert server.table_names == ("replay", "replay__max", "replay__min")
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_batch([3])  # gets the greatest
            items, info = buffer.sample(500)
            probabilities = dict(zip(items.numpy().tolist(), info.probabilities.numpy().tolist(), strict=True))
            assert probabilities[3] == probabilities[1] > probabilities[0] > probabilities[2]
            buffer.update_priorities(info.keys[items == 1][:1], [0.25])
            buffer.update_priorities(info.keys[items == 3][:1], [0.125])
            buffer.add_batch([4])
            items, info = buffer.sample(500)
            probabilities = dict(zip(items.numpy().tolist(), info.probabilities.numpy().tolist(), strict=True))
            assert probabilities[4] == probabilities[0], "the greatest is that of frame 0 now"


def test_whole_episodes_come_back(tmp_path):
    config = TableConfig("episodes", COUNTER, 10, sequence_length=None, max_episode_length=9, scannable=True)
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        with ReverbEpisodicReplayBuffer(COUNTER, "episodes", local_server=server) as buffer:
            buffer.add_sequence([[1, 2, 3]], end_of_episode=[[False, True, True]])
            buffer.flush()
            server.checkpoint()
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        with ReverbEpisodicReplayBuffer(COUNTER, "episodes", local_server=server) as buffer:
            episodes = [items.numpy().tolist() for items, _ in buffer.as_dataset(single_deterministic_pass=True)]
    assert episodes == [[1, 2], [3]]


def test_ready_tables_of_reverb_are_restored_too(tmp_path):
    def ready() -> reverb.Table:
        return reverb.Table(
            "a", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 3, reverb.rate_limiters.MinSize(1)
        )

    with ReplayServer([ready()], checkpoint_dir=tmp_path) as server:
        reverb.Client(server.address).insert([1.0], {"a": 1.0})
        assert server.checkpoint().items == {"a": 1}
    with ReplayServer([ready()], checkpoint_dir=tmp_path) as server:
        assert reverb.Client(server.address).server_info()["a"].current_size == 1


# -- what is found -----------------------------------------------------------------------------


def test_a_server_begins_empty_where_there_is_none_and_with_the_newest_where_there_are_some(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with ReplayServer([table()], checkpoint_dir=tmp_path / "new" / "folder") as server:
        assert server.started_from is None and server.last_checkpoint is None
        assert server.checkpoint_dir == str(tmp_path / "new" / "folder")
    assert "there is no checkpoint in" in caplog.text
    fill(tmp_path, table(), num=2, step=10)
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_sequence([[7, 8, 9]])
            buffer.flush()
            newest = server.checkpoint(20)
            assert server.last_checkpoint == newest
    with ReplayServer([table()], checkpoint_dir=str(tmp_path)) as server:
        assert server.started_from is not None
        assert (server.started_from.path, server.started_from.step) == (newest.path, 20)
        assert server.started_from.items == {"replay": 5, "replay__scan": 5}
    assert f"the tables begin with checkpoint {newest.path} (step 20): 5 items in table 'replay'" in caplog.text


def spoil_done(path: pathlib.Path) -> None:
    (path / "DONE").unlink()


def spoil_size(path: pathlib.Path) -> None:
    with (path / "chunks.tfrecord").open("r+b") as file:
        file.truncate(50)


def spoil_bytes(path: pathlib.Path) -> None:
    content = bytearray((path / "items.tfrecord").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "items.tfrecord").write_bytes(content)


def spoil_file(path: pathlib.Path) -> None:
    (path / "tables.tfrecord").unlink()


def spoil_manifest(path: pathlib.Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text[: len(text) // 2])


def spoil_plain(path: pathlib.Path) -> None:
    (path / "manifest.json").unlink()
    content = (path / "items.tfrecord").read_bytes()
    (path / "items.tfrecord").write_bytes(content[:-3])


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_done, "is not complete and is passed over: DONE is missing"),
        (spoil_size, "is not complete and is passed over: chunks.tfrecord has 50 bytes, its manifest says"),
        (spoil_bytes, "is passed over: items.tfrecord is not what was written"),
        (spoil_file, "is not complete and is passed over: tables.tfrecord is missing"),
        (spoil_manifest, "is not complete and is passed over: manifest.json: it is cut short, or no JSON"),
        (spoil_plain, "is passed over: items.tfrecord is cut short"),
    ],
)
def test_fr_033_an_incomplete_checkpoint_is_named_and_the_one_before_it_is_loaded(tmp_path, caplog, spoil, told):
    first = fill(tmp_path, table(), num=3)
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        second = pathlib.Path(server.checkpoint().path)
    spoil(second)
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        assert server.started_from is not None and server.started_from.path == first
        assert contents(server) == [0, 1, 2]
    assert f"checkpoint {second} {told}" in caplog.text.replace("is damaged and is", "is")


def test_where_all_checkpoints_are_damaged_nothing_begins_empty_but_on_demand(tmp_path, caplog):
    first, second = (pathlib.Path(fill(tmp_path, table())) for _ in range(2))
    spoil_size(first)
    spoil_bytes(second)
    with pytest.raises(ValueError) as refused:
        ReplayServer([table()], checkpoint_dir=tmp_path)
    said = str(refused.value)
    assert said.startswith(f"checkpoint_dir {tmp_path}: every checkpoint that was complete is damaged:\n  {second}: ")
    assert "items.tfrecord is not what was written" in said and f"\n  {first}: chunks.tfrecord has 50 bytes" in said
    assert "Ways out: put back what is missing" in said and "give on_damaged='empty' to begin empty" in said
    assert folders(tmp_path) == [str(first), str(second)]
    with ReplayServer([table()], checkpoint_dir=tmp_path, on_damaged="empty") as server:  # the folder was let go
        assert server.started_from is None and contents(server) == []
        new = server.checkpoint().path
    assert [one.levelname for one in caplog.records if "Tables begin empty" in one.getMessage()] == ["ERROR"]
    assert folders(tmp_path) == [str(first), str(second), new], "they may be repaired"
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        assert server.started_from is not None and server.started_from.path == new


@pytest.mark.parametrize("spoil", [spoil_done, spoil_manifest])
def test_what_was_complete_once_is_not_taken_for_what_a_kill_has_left(tmp_path, spoil):
    path = pathlib.Path(fill(tmp_path, table()))
    spoil(path)
    with pytest.raises(ValueError, match=re.escape(f"every checkpoint that was complete is damaged:\n  {path}: ")):
        ReplayServer([table()], checkpoint_dir=tmp_path)


def test_what_was_never_complete_keeps_no_server_from_beginning_empty(tmp_path, caplog):
    path = pathlib.Path(fill(tmp_path, table()))
    for name in ("DONE", "manifest.json", "chunks.tfrecord"):
        (path / name).unlink()
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        assert server.started_from is None
    assert f"checkpoint {path} is not complete and is passed over: DONE is missing" in caplog.text
    assert f"none of the 1 checkpoints in {tmp_path} was ever complete: tables begin empty" in caplog.text


def test_a_lost_manifest_is_told_and_the_step_that_reverb_has_stored_holds(tmp_path, caplog):
    path = pathlib.Path(fill(tmp_path, table(), step=6))
    (path / "manifest.json").unlink()
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        assert server.started_from is not None and server.started_from.step == 6
    assert f"checkpoint {path} has no manifest.json: plain Reverb has written it, or it was lost" in caplog.text


def test_a_folder_that_is_deleted_under_its_server_is_made_and_locked_anew(tmp_path, caplog):
    folder = tmp_path / "checkpoints"
    with ReplayServer([table()], checkpoint_dir=folder) as server:
        shutil.rmtree(folder)
        assert pathlib.Path(server.checkpoint().path).exists()
        assert f"checkpoint_dir {folder}, or its lock, was deleted while its server ran" in caplog.text
        with pytest.raises(ValueError, match="another server uses it"):
            ReplayServer([table()], checkpoint_dir=folder)
    shutil.rmtree(folder)
    with ReplayServer([table()], checkpoint_dir=folder) as first:
        shutil.rmtree(folder)
        with ReplayServer([table()], checkpoint_dir=folder):
            with pytest.raises(ValueError, match="another server uses it"):
                first.checkpoint()


def test_a_checkpoint_that_is_as_it_was_written_and_that_reverb_cannot_load_is_not_passed_over(tmp_path):
    """An older one, or nothing, would be taken for what was stored."""
    fill(tmp_path, table())
    path = pathlib.Path(fill(tmp_path, table()))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "chunks.tfrecord").write_bytes(b"no chunks")
    manifest["files"]["chunks.tfrecord"] = [9, zlib.crc32(b"no chunks")]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RuntimeError, match=f"checkpoint {re.escape(str(path))} is complete, but Reverb cannot load it"):
        ReplayServer([table()], checkpoint_dir=tmp_path)


def test_what_reverb_finished_and_is_a_checkpoint_already_goes(tmp_path):
    path = pathlib.Path(fill(tmp_path, table(), step=3))
    shutil.copytree(path, tmp_path / "in_progress" / path.name)
    (tmp_path / "in_progress.restore").mkdir()
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        assert server.started_from is not None and server.started_from.step == 3
        assert sorted(one.name for one in tmp_path.iterdir()) == [path.name, "in_progress", "lock"]
        assert list((tmp_path / "in_progress").iterdir()) == []
    assert json.loads((path / "manifest.json").read_text())["tables"] != []


def test_a_checkpoint_of_a_newer_format_is_refused_not_passed_over(tmp_path):
    fill(tmp_path, table())
    manifest = pathlib.Path(fill(tmp_path, table())) / "manifest.json"
    plain = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**plain, "format_version": 2}))
    with pytest.raises(ValueError, match="has format version 2, this version of replayfeed reads 1: use the one that"):
        ReplayServer([table()], checkpoint_dir=tmp_path)


def test_what_reverb_finished_when_its_server_was_killed_becomes_a_checkpoint_and_what_not_is_named(tmp_path, caplog):
    done = pathlib.Path(fill(tmp_path, table(), num=3, step=4))
    for name in ("manifest.json", "lock"):
        (done / name).unlink(missing_ok=True)
    unfinished = tmp_path / "in_progress" / "2999-01-01T00:00:00+00:00"
    shutil.copytree(done, unfinished)
    (unfinished / "DONE").unlink()
    shutil.move(done, tmp_path / "in_progress")
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        assert server.started_from is not None
        assert (server.started_from.path, server.started_from.step) == (str(done), 4)
        assert contents(server) == [0, 1, 2]
    assert f"checkpoint {done} was finished by Reverb when its server ended" in caplog.text
    assert f"checkpoint {unfinished} was not finished when its server ended; it is deleted" in caplog.text


def test_reading_a_checkpoint_ends_in_time_with_the_numbers(tmp_path):
    fill(tmp_path, table())
    with pytest.raises(WaitTimeoutError, match=r"of [\d,]+ bytes are read and the time is up; give a larger restore_t"):
        ReplayServer([table()], checkpoint_dir=tmp_path, restore_timeout_s=1e-9)


def test_a_folder_is_for_one_server_at_a_time(tmp_path):
    with ReplayServer([table()], checkpoint_dir=tmp_path):
        with pytest.raises(ValueError, match=f"checkpoint_dir {tmp_path}: another server uses it"):
            ReplayServer([table()], checkpoint_dir=tmp_path)
    ReplayServer([table()], checkpoint_dir=tmp_path).stop()


def test_a_folder_with_glob_characters_in_its_name_is_a_folder(tmp_path):
    fill(tmp_path / "run[1]*", table(), num=2)
    with ReplayServer([table()], checkpoint_dir=tmp_path / "run[1]*") as server:
        assert contents(server) == [0, 1]


# -- when they are taken -----------------------------------------------------------------------


def test_the_last_ones_are_kept_and_incomplete_older_ones_go(tmp_path):
    stale = pathlib.Path(fill(tmp_path, table()))
    spoil_done(stale)
    (stale / "manifest.json").unlink()
    with ReplayServer([table()], checkpoint_dir=tmp_path, keep_last=2) as server:
        paths = [server.checkpoint(n).path for n in range(4)]
    assert folders(tmp_path) == paths[2:]
    with ReplayServer([table()], checkpoint_dir=tmp_path, keep_last=None) as server:
        paths = [*paths[2:], *(server.checkpoint().path for _ in range(3))]
    assert folders(tmp_path) == paths


def test_the_newest_one_is_that_of_the_greatest_number_also_when_the_clock_went_back(tmp_path, caplog):
    old = pathlib.Path(fill(tmp_path, table(), num=2))
    later = old.rename(old.with_name("2099-01-01T00:00:00+00:00"))
    with ReplayServer([table()], checkpoint_dir=tmp_path, keep_last=2) as server:
        assert server.started_from is not None and server.started_from.path == str(later)
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_batch([2])
            buffer.flush()
        first = server.checkpoint().path
        told = f"checkpoint {first} is newer than {later}, and its name tells an earlier time: the clock went back"
        assert told in caplog.text
        assert folders(tmp_path) == [first, str(later)]
    caplog.clear()
    with ReplayServer([table()], checkpoint_dir=tmp_path, keep_last=1) as server:
        assert told in caplog.text
        assert server.started_from is not None and server.started_from.path == first
        assert server.started_from.items == {"replay": 3, "replay__scan": 3}
        second = server.checkpoint().path
    assert folders(tmp_path) == [second]


def test_what_has_no_number_has_its_place_by_the_time_in_its_name():
    def of(name: str, time_ns: int, number: int | None) -> Checkpoint:
        manifest = None if number is None else Manifest(0.0, None, (), {}, {}, number)
        return Checkpoint(pathlib.Path(name), time_ns, manifest, None)

    found = [of("a", 50, 1), of("b", 20, 2), of("c", 60, 3), of("d", 55, None), of("e", 10, None)]
    assert [one.path.name for one in newest_first(found)] == ["c", "d", "b", "a", "e"]
    assert [one.path.name for one in later_names(newest_first(found))] == []
    assert [one.path.name for one in later_names(newest_first(found[:2]))] == ["a"]
    assert newest_number(found) == 3 and newest_number([]) == 0


class Told(logging.Handler):
    """Sets an event when a line has been logged so often."""

    def __init__(self, text: str, times: int = 1) -> None:
        super().__init__()
        self._text, self._times, self._seen = text, times, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._times -= 1
        if self._times <= 0:
            self._seen.set()

    def __enter__(self) -> Told:
        logger = logging.getLogger("replayfeed.buffers")
        self._level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("replayfeed.buffers").removeHandler(self)
        logging.getLogger("replayfeed.buffers").setLevel(self._level)

    def wait(self) -> bool:
        return self._seen.wait(300.0)


def test_checkpoints_come_every_so_many_inserts(tmp_path):
    config = table(max_size=100, scannable=True)
    with Told("20 inserts since the last one") as begun, Told("is complete") as done:
        with ReplayServer([config], checkpoint_dir=tmp_path, checkpoint_every_inserts=20) as server:
            with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
                buffer.add_sequence([list(range(20))])
                buffer.flush()
                assert begun.wait() and done.wait()
        assert server.last_checkpoint is not None and server.last_checkpoint.items == {"replay": 20, "replay__scan": 20}


def test_checkpoints_come_every_so_many_seconds_while_something_happens(tmp_path):
    with Told("is complete", times=2) as twice:
        with ReplayServer([table()], checkpoint_dir=tmp_path, checkpoint_every_s=0.05) as server:
            with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
                while not twice._seen.is_set():
                    buffer.add_batch([1])
                    buffer.flush()
            assert twice.wait()


def test_an_error_of_an_automatic_checkpoint_is_told_and_the_server_goes_on(tmp_path):
    with Told("failed: ") as failed:
        with ReplayServer([table()], checkpoint_dir=tmp_path, checkpoint_every_s=0.05) as server:
            shutil.rmtree(tmp_path / "in_progress")
            (tmp_path / "in_progress").write_text("no folder")
            with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
                buffer.add_batch([1])
                buffer.flush()
                assert failed.wait()
                with pytest.raises((RuntimeError, OSError), match="in_progress"):
                    buffer.checkpoint()
                (tmp_path / "in_progress").unlink()
                assert buffer.checkpoint(3).step == 3


def test_one_is_taken_when_the_server_stops_if_it_is_asked_for(tmp_path):
    with ReplayServer([table()], checkpoint_dir=tmp_path):
        pass
    assert folders(tmp_path) == []
    with ReplayServer([table()], checkpoint_dir=tmp_path, checkpoint_on_stop=True) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_batch([4])
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        assert contents(server) == [4]


def test_the_manifest_tells_tables_items_step_and_files(tmp_path):
    path = pathlib.Path(fill(tmp_path, table(), num=3, step=12))
    plain = json.loads((path / "manifest.json").read_text())
    assert (plain["step"], plain["items"]) == (12, {"replay": 3, "replay__scan": 3})
    assert TableConfig.from_dict(plain["tables"][0]) == table()
    sizes = {name: size for name, (size, _) in plain["files"].items()}
    assert sizes == {file.name: file.stat().st_size for file in path.iterdir() if file.suffix == ".tfrecord"}


def test_inserts_go_on_beside_checkpoints(tmp_path):
    config = table(max_size=2000, scannable=False)
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:

            def write() -> None:
                for n in range(50):
                    buffer.add_sequence([list(range(20 * n, 20 * n + 20))])
                buffer.flush()

            writer = threading.Thread(target=write)
            writer.start()
            reports = [server.checkpoint() for _ in range(4)]
            writer.join()
            reports.append(server.checkpoint())
    counts = [report.items["replay"] for report in reports]
    assert counts == sorted(counts) and counts[-1] == 1000
    for report in reports[-3:]:
        manifest = json.loads((pathlib.Path(report.path) / "manifest.json").read_text())
        assert manifest["items"] == report.items


def test_one_that_was_given_up_is_waited_for_before_the_next_is_begun(tmp_path, monkeypatch):
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        may_go, real = threading.Event(), reverb.Client.checkpoint

        def slow(client: reverb.Client) -> str:
            may_go.wait(300.0)
            return str(real(client))

        monkeypatch.setattr(reverb.Client, "checkpoint", slow)
        with pytest.raises(WaitTimeoutError, match="gave up after 0.1 s. It goes on, and may be complete later"):
            server.checkpoint(1, timeout_s=0.1)
        with pytest.raises(WaitTimeoutError, match="Reverb still writes the one before; gave up after 0.1 s"):
            server.checkpoint(2, timeout_s=0.1)
        may_go.set()
        third = server.checkpoint(3)
        assert third.step == 3 and third.path == folders(tmp_path)[-1] and len(folders(tmp_path)) == 2


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"on_mismatch": "resize"}, ValueError, "on_mismatch must be one of 'error', 'keep', 'override', got 'resize'"),
        ({"on_damaged": "skip"}, ValueError, "on_damaged must be one of 'error', 'empty', got 'skip'"),
        ({"keep_last": 0}, ValueError, "keep_last must be at least 1, got 0"),
        ({"checkpoint_every_inserts": 1.5}, TypeError, "checkpoint_every_inserts must be an int or None, got 1.5"),
        ({"checkpoint_every_s": 0.0}, ValueError, "checkpoint_every_s must be positive and finite, got 0.0"),
        ({"checkpoint_every_s": "1"}, TypeError, "checkpoint_every_s must be a number of seconds, got '1'"),
        ({"restore_timeout_s": float("inf")}, ValueError, "restore_timeout_s must be positive and finite, got inf"),
        ({"checkpoint_on_stop": 1}, TypeError, "checkpoint_on_stop must be True or False, got 1"),
    ],
)
def test_options_are_checked(tmp_path, options, kind, told):
    with pytest.raises(kind, match=told):
        ReplayServer([table()], checkpoint_dir=tmp_path, **options)


def test_a_folder_that_is_not_of_this_machine_is_refused():
    with pytest.raises(ValueError, match="checkpoint_dir must be of this machine, got 'gs://bucket/x'; give a folder"):
        ReplayServer([table()], checkpoint_dir="gs://bucket/x")


@pytest.mark.parametrize(
    "option",
    [
        {"checkpoint_every_s": 1.0},
        {"checkpoint_every_inserts": 1},
        {"checkpoint_on_stop": True},
        {"on_mismatch": "keep"},
        {"keep_last": None},
    ],
)
def test_options_of_checkpoints_need_a_folder(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} needs checkpoint_dir, where checkpoints go"):
        ReplayServer([table()], **option)


def test_checkpoints_are_told_in_one_way(tmp_path):
    config = CheckpointConfig(tmp_path, keep_last=1)
    with ReplayServer([table()], checkpoints=config) as server:
        assert server.checkpoint_dir == str(tmp_path)
        kept = [server.checkpoint().path for _ in range(2)][1:]
    assert folders(tmp_path) == kept
    with pytest.raises(ValueError, match="checkpoint_dir and keep_last beside checkpoints: say it in the Checkpoint"):
        ReplayServer([table()], checkpoint_dir=tmp_path, keep_last=2, checkpoints=config)
    with pytest.raises(TypeError, match="checkpoints must be a CheckpointConfig, got 'kept'"):
        ReplayServer([table()], checkpoints="kept")
    with pytest.raises(TypeError, match="checkpoint_dir must be a path, got 3"):
        CheckpointConfig(3)


def test_a_server_without_folder_or_stopped_takes_none(tmp_path):
    with ReplayServer([table()]) as server:
        with pytest.raises(
            ValueError, match=r"keeps no checkpoints: build it with ReplayServer\(\.\.\., checkpoint_dir"
        ):
            server.checkpoint()
        assert server.checkpoint_dir is None and server.last_checkpoint is None
    server = ReplayServer([table()], checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="step must be 0 to 2"):
        server.checkpoint(-1)
    with pytest.raises(TypeError, match="step must be an int or None, got 1.0"):
        server.checkpoint(1.0)
    server.stop()
    with pytest.raises(ValueError, match="this server is stopped"):
        server.checkpoint()


def test_the_servers_own_table_is_neither_opened_nor_named(tmp_path):
    with ReplayServer([table()], checkpoint_dir=tmp_path) as server:
        assert server.table_names == ("replay", "replay__scan")
        with pytest.raises(ValueError, match="there is no table 'replayfeed__server' at .*; it has replay."):
            ReverbReplayBuffer(COUNTER, "replayfeed__server", 1, local_server=server)
    with pytest.raises(ValueError, match="which is the server's own"):
        ReplayServer([table("replayfeed__server")])


# -- a ratio that is used up -------------------------------------------------------------------


def test_fr_030_a_restored_table_whose_ratio_is_used_up_says_so_with_the_numbers(tmp_path, caplog):
    config = table(rate_limiter=SampleToInsertRatio(2.0, 1, (0.0, 4.0)), scannable=False)
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_sequence([[1, 2]])
            buffer.sample(4)
            server.checkpoint()
    used_up = r"table 'replay': ratio used up, needs 1 more insert \(2 inserts \* 2 - 4 samples = 0, kept in \[0, 4\]\)"
    with ReplayServer([config], checkpoint_dir=tmp_path) as server:
        assert "needs 1 more insert (2 inserts * 2 - 4 samples = 0, kept in [0, 4]); it has 2 items" in caplog.text
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server, rate_limiter_timeout_ms=700) as buffer:
            assert not buffer.ready()
            assert "needs 1 more insert" in buffer.why_not_ready()
            with pytest.raises(WaitTimeoutError, match=used_up):
                buffer.sample(1)
            with pytest.raises(tf.errors.InvalidArgumentError, match=used_up):
                next(iter(buffer.as_dataset(1)))
            buffer.add_batch([3])
            assert buffer.ready(2) and not buffer.ready(3)


def test_fr_025_an_old_limiter_does_not_replace_a_new_one_without_a_word(tmp_path, caplog):
    old = table(rate_limiter=SampleToInsertRatio(1.0, 1, 2.0), max_size=50, scannable=False)
    new = table(max_size=50, scannable=False)
    with ReplayServer([old], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_batch([0])
            server.checkpoint()
    told = r"table 'replay': rate_limiter: stored SampleToInsertRatio\(.*\), asked for MinSize\(min_size_to_sample=1\)"
    with pytest.raises(ValueError, match=told):
        ReplayServer([new], checkpoint_dir=tmp_path)
    with ReplayServer([new], checkpoint_dir=tmp_path, on_mismatch="override") as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_sequence([list(range(1, 21))])
            buffer.flush()
            assert len(buffer) == 21
    with ReplayServer([new], checkpoint_dir=tmp_path, on_mismatch="keep") as server:
        assert server.tables == (old,)
        buffer = ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server, timeout_s=2.0)
        with pytest.raises(WaitTimeoutError, match="ratio reached, needs 1 more sample"):
            buffer.add_sequence([list(range(1, 61))])
        with pytest.raises(WaitTimeoutError, match="ratio reached, needs 1 more sample"):
            buffer.close()
    assert "on_mismatch='keep': the stored settings hold: table 'replay': rate_limiter" in caplog.text
