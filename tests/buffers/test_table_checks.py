"""What would kill or hang a server later is refused when a table is declared; what Reverb does is asked of Reverb."""

from __future__ import annotations

import logging
import math
from fractions import Fraction

import pytest
import reverb
import tensorflow as tf
from hypothesis import example, given, settings
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
    ReverbReplayBuffer,
    SampleToInsertRatio,
    Stack,
    TableConfig,
    Transition,
    Uniform,
)
from replayfeed.buffers.item_selectors import selector_from
from replayfeed.buffers.look_ahead import check_look_ahead, greatest_error_needed
from replayfeed.buffers.rate_limiters import bounds_from
from replayfeed.buffers.reverb_link import ServerLink
from replayfeed.buffers.reverb_table import ServedTable, served_table
from replayfeed.buffers.spec import DataSpec
from replayfeed.buffers.table_fields import select_fields

COUNTER = tf.TensorSpec([], tf.int64)
SPEC = {"observation": {"image": tf.TensorSpec([4, 4], tf.uint8), "speed": COUNTER}, "reward": COUNTER}
SELECTORS = [Uniform(), Prioritized(0.7), Fifo(), Lifo(), MinHeap(), MaxHeap()]


def table(**settings_):
    return TableConfig(**{"name": "replay", "data_spec": COUNTER, "max_size": 10, **settings_})


# -- R2, R4: what stands in a slot -------------------------------------------------------------

WRONG_SLOTS = {
    "Reverb's selector": ("sampler", reverb.selectors.Uniform(), "one of Reverb's own objects, which kills the server"),
    "Reverb's heap": ("remover", reverb.selectors.MinHeap(), "one of Reverb's own objects"),
    "Reverb's limiter": ("rate_limiter", reverb.rate_limiters.MinSize(1), "one of Reverb's own objects"),
    "a limiter": ("sampler", MinSize(1), "that is a rate limiter; give it as rate_limiter="),
    "a selector": ("rate_limiter", Fifo(), "that is a selector; give it as sampler= or remover="),
    "a class": ("sampler", Prioritized, r"that is the class; make one, Prioritized\(...\)"),
    "a name": ("remover", "Fifo", "names stand in files only"),
    "a number": ("rate_limiter", 100, r"for a table that waits for so many items give MinSize\(100\)"),
}


@pytest.mark.parametrize("case", WRONG_SLOTS)
def test_the_wrong_object_in_a_slot_is_refused_with_what_was_meant(case):
    slot, value, message = WRONG_SLOTS[case]
    with pytest.raises(TypeError, match=f"TableConfig.{slot} must be one of .*{message}"):
        table(**{slot: value})


@pytest.mark.parametrize("exponent", [-0.1, math.nan, math.inf])
def test_r4_a_wrong_exponent_is_refused(exponent):
    with pytest.raises(ValueError, match="Prioritized.priority_exponent must be finite and at least 0"):
        Prioritized(exponent)


def test_an_exponent_is_a_number():
    with pytest.raises(TypeError, match="Prioritized.priority_exponent must be a number, got '1'"):
        Prioritized("1")  # type: ignore[arg-type]


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_r2_one_selector_may_stand_in_both_roles_and_the_server_lives(selector):
    """Each `build` makes an object of its own; one that two roles share kills the table's worker."""
    assert selector.build(reverb) is not selector.build(reverb)
    config = table(sampler=selector, remover=selector, max_size=2, layout="plain")
    with ReplayServer([config, table(name="other", sampler=selector)]) as server:
        client = reverb.Client(server.address)
        for value in range(5):
            client.insert([value], {"replay": 1.0})
        assert client.server_info(timeout=60)["replay"].current_size == 2


# -- limiters ----------------------------------------------------------------------------------

WRONG_RATIOS = {
    "no ratio": ((0, 1, 5.0), ValueError, "samples_per_insert must be positive and finite, got 0: .* use MinSize"),
    "a negative ratio": ((-1.0, 1, 5.0), ValueError, "samples_per_insert must be positive and finite"),
    "an unlimited ratio": ((math.inf, 1, 5.0), ValueError, "samples_per_insert must be positive and finite, got inf"),
    "a ratio that is none": (("2", 1, 5.0), TypeError, "samples_per_insert must be a number, got '2'"),
    "no items": ((1.0, 0, 5.0), ValueError, "min_size_to_sample must be at least 1"),
    "an unlimited buffer": ((1.0, 1, math.inf), ValueError, "error_buffer must be finite, got inf: .*use MinSize"),
    "no buffer": ((1.0, 1, "5"), TypeError, "error_buffer must be a number, got '5'"),
    "three bounds": ((1.0, 1, (1, 2, 3)), TypeError, r"a number or a pair \(least, greatest\), got \(1, 2, 3\)"),
    "too narrow": (
        (4.0, 10, 3.0),
        ValueError,
        r"in \[37, 43\], a range of 6: .*block each other for ever; it must be at least 8 wide. Give an "
        "error_buffer of at least 4",
    ),
    "beyond floats": ((1e308, 100, 5.0), ValueError, "more than a float can hold; give smaller numbers"),
    "bounds that are turned round": ((1.0, 1, (5, -5)), ValueError, r"in \[5, -5\], a range of -10"),
    "too high": (
        (2.0, 10, (25, 40)),
        ValueError,
        "it is 20 .* when sampling may begin: samples would wait for more inserts .*Give a lower bound of at most 20",
    ),
    "too low": (
        (2.0, 10, (0, 15)),
        ValueError,
        "every further insert would wait for 5 samples. Give an upper bound of at least 22",
    ),
}


@pytest.mark.parametrize("case", WRONG_RATIOS)
def test_a_ratio_that_can_never_be_met_is_refused(case):
    arguments, kind, message = WRONG_RATIOS[case]
    with pytest.raises(kind, match=message):
        SampleToInsertRatio(*arguments)


NUMBERS = st.floats(-20, 60, allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(st.floats(0.125, 8), st.integers(1, 8), st.one_of(NUMBERS, st.tuples(NUMBERS, NUMBERS)))
@example(2.0, 10, (20.0, 24.0))
def test_reverb_takes_every_limiter_that_we_take_and_counts_as_we_say(ratio, size, buffer):
    try:
        limiter = SampleToInsertRatio(ratio, size, buffer)
    except ValueError:
        return
    built = reverb.Table("a", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 9, limiter.build(reverb))
    assert bounds_from(built.info.rate_limiter_info) == limiter.bounds


@pytest.mark.parametrize("limiter", [MinSize(3), Queue(4), Stack(5)], ids=repr)
def test_bounds_are_those_of_reverb(limiter):
    built = reverb.Table("a", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 9, limiter.build(reverb))
    assert bounds_from(built.info.rate_limiter_info) == limiter.bounds


def test_one_limiter_may_stand_in_several_tables():
    """Reverb's own object ends the process then."""
    limiter = SampleToInsertRatio(2.0, 1, 4.0)
    assert limiter.build(reverb) is not limiter.build(reverb)
    with ReplayServer([table(name=name, rate_limiter=limiter) for name in "ab"]) as server:
        assert server.table_names == ("a", "b")


@pytest.mark.parametrize("kind", [Queue, Stack])
def test_a_queue_has_a_size(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__}.size must be at least 1, got 0"):
        kind(0)
    with pytest.raises(TypeError, match=f"{kind.__name__}.size must be an int, got 1.5"):
        kind(1.5)


WRONG_TABLES = {
    "a limiter above the size": (
        {"rate_limiter": SampleToInsertRatio(1.0, 11, 5)},
        ValueError,
        "could never be sampled: its limiter asks for 11",
    ),
    "a queue that removes nothing": (
        {"rate_limiter": Queue(10)},
        ValueError,
        r"Queue\(size=10\) lets one item in for each that is drawn and needs max_times_sampled=1, got 0",
    ),
    "a queue that is longer than its table": (
        {"rate_limiter": Stack(11), "max_times_sampled": 1},
        ValueError,
        r"inserts would end up waiting for ever. Give max_size=11, or Stack\(10\)",
    ),
    "a ratio above the draws": (
        {"rate_limiter": SampleToInsertRatio(2.5, 1, 9), "max_times_sampled": 2},
        ValueError,
        "samples_per_insert=2.5 cannot be met: .*Give max_times_sampled of at least 3, or 0",
    ),
    "initial": ({"initial": "min"}, ValueError, "TableConfig.initial must be a number, 'max' or 'random', got 'min'"),
    "initial is no number": ({"initial": None}, TypeError, "TableConfig.initial must be a number, 'max' or 'random'"),
    "R1, a negative initial": ({"initial": -1}, ValueError, "finite and at least 0, got -1: Reverb's table dies"),
    "R1, initial is NaN": ({"initial": math.nan}, ValueError, "finite and at least 0, got nan"),
    "initial beyond floats": (
        {"initial": 1e200, "sampler": Prioritized(2.0)},
        ValueError,
        "is more than a float can hold: the table would draw one item for ever, with probability NaN or 0",
    ),
    "more items than Reverb counts": (
        {"max_size": 2**31},
        ValueError,
        "TableConfig.max_size can be 2,147,483,647 at most in Reverb, got 2,147,483,648",
    ),
    "more draws than Reverb counts": (
        {"max_times_sampled": 2**31},
        ValueError,
        "TableConfig.max_times_sampled can be 2,147,483,647 at most",
    ),
    "tracks_least": ({"tracks_least": 1}, TypeError, "TableConfig.tracks_least must be True or False, got 1"),
    "initial of plain columns": (
        {"initial": 2.0, "layout": "plain"},
        ValueError,
        "need layout='packed': those who write plain tables choose priorities by themselves",
    ),
    "max that nobody reads": ({"initial": "max"}, ValueError, r"sampler Uniform\(\) reads no priority; leave it out"),
    "max that comes apart": (
        {"initial": "max", "sampler": Prioritized(), "remover": MinHeap()},
        ValueError,
        r"initial='max' keeps .*would drop different items and come apart: give remover Fifo\(\)",
    ),
    "least that comes apart": (
        {"tracks_least": True, "sampler": Prioritized(), "max_times_sampled": 3},
        ValueError,
        "tracks_least=True keeps .*with max_times_sampled=3 items leave one of the two alone",
    ),
    "no reservoir": (
        {"initial": "random"},
        ValueError,
        r"initial='random' makes a reservoir.*needs remover MinHeap\(\)",
    ),
    "a reservoir by priority": (
        {"initial": "random", "remover": MinHeap(), "sampler": Prioritized()},
        ValueError,
        r"cannot choose what is drawn as well; give sampler Uniform\(\)",
    ),
    "a reservoir that is drawn empty": (
        {"initial": "random", "remover": MinHeap(), "max_times_sampled": 1},
        ValueError,
        "make room for later ones; give max_times_sampled=0",
    ),
    "no field": ({"fields": ()}, ValueError, "TableConfig.fields is empty"),
    "a text for fields": ({"fields": "reward"}, TypeError, r"must be None or a tuple of paths .*got 'reward'"),
    "a field twice": ({"data_spec": SPEC, "fields": ("reward", "reward")}, ValueError, "names a field twice"),
    "an unknown field": (
        {"data_spec": SPEC, "fields": ("reward", "image")},
        ValueError,
        "names 'image', which data_spec does not have; its fields are 'observation/image', "
        "'observation/speed', 'reward'",
    ),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_settings_that_do_not_go_together_are_refused(case):
    change, kind, message = WRONG_TABLES[case]
    with pytest.raises(kind, match=message):
        table(**change)


def test_a_queue_longer_than_its_table_would_hang_reverb():
    """Why it is refused: dropped items stay counted, and then nothing can be inserted into an empty table."""
    built = reverb.Table(
        "a", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 1, reverb.rate_limiters.Queue(3), max_times_sampled=1
    )
    server = reverb.Server([built])
    try:
        client = server.localhost_client()
        for value in range(3):
            client.insert([value], {"a": 1.0})
        list(client.sample("a", 1))
        client.insert([3], {"a": 1.0})
        list(client.sample("a", 1))
        assert built.info.current_size == 0 and built.can_insert(1)
        client.insert([4], {"a": 1.0})
        assert built.info.current_size == 1 and not built.can_insert(1) and built.can_sample(1)
    finally:
        server.stop()


# -- R7: one thread that writes and draws ------------------------------------------------------


class Loop:
    """A thread that inserts and draws, by the limiter's words; none of its calls waits."""

    def __init__(self, bounds):
        self.ratio, self.least, self.most = (
            Fraction(number).limit_denominator(10**6)
            for number in (bounds.samples_per_insert, bounds.min_error, bounds.max_error)
        )
        self.size = bounds.min_size_to_sample
        self.inserts = self.samples = 0

    def can_sample(self, batch):
        return self.inserts >= self.size and self.inserts * self.ratio - self.samples - batch >= self.least

    def can_insert(self, num):
        inserts = self.inserts + num
        return inserts <= self.size or inserts * self.ratio - self.samples <= self.most

    def insert(self):
        self.inserts += 1

    def sample(self, batch):
        self.samples += batch


def fill(loop, batch):
    """Inserts until a batch is ready; False where an insert would wait before."""
    while not loop.can_sample(batch):
        if not loop.can_insert(1):
            return False
        loop.insert()
    return True


def runs_when_ready(loop, batch, rounds):
    for _ in range(rounds):
        if not fill(loop, batch):
            return False
        loop.sample(batch)
    return True


def runs_in_turn(loop, batch, rounds, k):
    """One insert, then `k` batches."""
    if not fill(loop, batch):
        return False
    for _ in range(rounds):
        if not loop.can_insert(1):
            return False
        loop.insert()
        for _ in range(k):
            if not loop.can_sample(batch):
                return False
            loop.sample(batch)
    return True


def runs(make_loop, ratio, batch, rounds):
    """Whether both loops run that `check_look_ahead` speaks of."""
    return runs_when_ready(make_loop(), batch, rounds) and (
        ratio % batch != 0 or runs_in_turn(make_loop(), batch, rounds, int(ratio) // batch)
    )


@settings(max_examples=500, deadline=None)
@given(
    ratio=st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]),
    size=st.integers(1, 6),
    buffer=st.one_of(st.sampled_from([1.0, 2.0, 3.5, 5.0, 9.0]), st.tuples(st.integers(-5, 20), st.integers(0, 40))),
    batch=st.integers(1, 12),
)
@example(3.0, 4, 4.0, 7)
def test_r7_what_runs_is_taken_and_what_would_wait_for_itself_is_refused(ratio, size, buffer, batch):
    try:
        limiter = SampleToInsertRatio(ratio, size, buffer)
    except ValueError:
        return
    try:
        check_look_ahead(limiter, batch=batch, in_flight=0, prefetch=0, name="replay")
        taken = True
    except ValueError as error:
        taken = False
        assert "a thread that writes and draws would wait for itself for ever" in str(error)
        if isinstance(buffer, float):
            wide = SampleToInsertRatio(ratio, size, max(batch, ratio))
            check_look_ahead(wide, batch=batch, in_flight=0, prefetch=0, name="replay")
    assert taken == runs(lambda: Loop(limiter.bounds), limiter.samples_per_insert, batch, rounds=60)


REVERB_CASES = [
    (SampleToInsertRatio(1.0, 1, 1.0), 1),
    (SampleToInsertRatio(1.0, 1, (1, 3)), 1),
    (SampleToInsertRatio(1.0, 10, 4.0), 4),
    (SampleToInsertRatio(1.0, 10, 4.0), 9),
    (SampleToInsertRatio(3.0, 4, 4.0), 7),
    (SampleToInsertRatio(3.0, 4, 4.0), 6),
    (SampleToInsertRatio(4.0, 5, (20, 28)), 4),
    (SampleToInsertRatio(4.0, 5, (16, 24)), 4),
    (SampleToInsertRatio(4.0, 5, (17, 25)), 4),
    (SampleToInsertRatio(8.0, 5, (32, 48)), 4),
    (SampleToInsertRatio(8.0, 5, (40, 56)), 4),
    (SampleToInsertRatio(0.5, 3, 2.0), 2),
    (SampleToInsertRatio(0.5, 3, 2.0), 5),
]


@pytest.mark.parametrize(("limiter", "batch"), REVERB_CASES)
def test_r7_reverb_agrees_with_the_inequality(limiter, batch):
    """The loops of one thread on a real table, which is asked before each call whether it would wait."""
    try:
        check_look_ahead(limiter, batch=batch, in_flight=0, prefetch=0, name="replay")
        taken = True
    except ValueError:
        taken = False
    servers = []

    def make_loop():
        servers.append(ReverbLoop(limiter))
        return servers[-1]

    try:
        assert taken == runs(make_loop, limiter.samples_per_insert, batch, rounds=25)
    finally:
        for server in servers:
            server.stop()


class ReverbLoop:
    """The same calls on a real table, which is asked before each whether it would wait."""

    def __init__(self, limiter):
        self._table = reverb.Table(
            "a", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 1000, limiter.build(reverb)
        )
        self._server = reverb.Server([self._table])
        self._client = self._server.localhost_client()
        self.can_sample, self.can_insert, self.stop = (
            self._table.can_sample,
            self._table.can_insert,
            self._server.stop,
        )

    def insert(self):
        self._client.insert([0], {"a": 1.0})

    def sample(self, batch):
        list(self._client.sample("a", batch))


@pytest.mark.parametrize(
    ("ratio", "batch", "buffer", "prefetch"),
    [(1.0, 1, 1.0, 4), (4.0, 1, 4.0, 4), (4.0, 4, 4.0, 2), (32.0, 32, 32.0, 4)],
)
def test_fr_027_one_insert_and_k_samples_run_for_1000_rounds_with_prefetch(ratio, batch, buffer, prefetch):
    limiter = SampleToInsertRatio(ratio, 10, buffer)
    check_look_ahead(limiter, batch=batch, in_flight=256, prefetch=prefetch, name="replay")
    with (
        ReplayServer([table(rate_limiter=limiter, max_size=2000)]) as server,
        ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server, timeout_s=20.0) as buffer_,
    ):
        for value in range(10):
            buffer_.add_batch([value])
        buffer_.flush()
        draws = iter(buffer_.as_dataset(batch).prefetch(prefetch))
        for value in range(1000):
            buffer_.add_batch([value])
            for _ in range(int(ratio) // batch):
                assert len(next(draws)[0]) == batch


def test_fr_027_a_batch_that_is_larger_than_the_range_is_refused_with_the_numbers():
    limiter = SampleToInsertRatio(1.0, 10, 4.0)
    message = r"for batches of 32 .*rise to 38, and lets it rise to 14: .*error_buffer=32 or more, batches of at most 8"
    with pytest.raises(ValueError, match=message):
        check_look_ahead(limiter, batch=32, in_flight=0, prefetch=0, name="replay")
    check_look_ahead(limiter, batch=8, in_flight=0, prefetch=0, name="replay")
    check_look_ahead(limiter, batch=32, in_flight=0, prefetch=0, name="replay", writes_here=False)


def test_fr_027_a_buffer_refuses_such_a_dataset_when_it_is_made():
    limiter = SampleToInsertRatio(1.0, 10, 4.0)
    with (
        ReplayServer([table(rate_limiter=limiter, max_size=100)]) as server,
        ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server, timeout_s=30.0) as buffer,
    ):
        buffer.add_sequence([list(range(10))])
        with pytest.raises(ValueError, match="table 'replay': for batches of 32 its limiter must let"):
            buffer.as_dataset(32)
        assert len(next(iter(buffer.as_dataset(4)))[0]) == 4


def test_several_iterators_and_a_ratio_are_refused():
    with pytest.raises(ValueError, match="one can hold what the others wait for, and the batch never comes"):
        check_look_ahead(
            SampleToInsertRatio(1.0, 10, 50.0), batch=8, in_flight=1, prefetch=0, name="replay", iterators=4
        )
    check_look_ahead(MinSize(10), batch=8, in_flight=1000, prefetch=9, name="replay", iterators=4)


def test_a_look_ahead_above_the_range_is_told(caplog):
    caplog.set_level(logging.INFO, "replayfeed.buffers.look_ahead")
    check_look_ahead(SampleToInsertRatio(1.0, 10, 8.0), batch=4, in_flight=8, prefetch=1, name="replay")
    # By its own logger: threads that tests before have left may say something, too.
    assert [record for record in caplog.records if record.name == "replayfeed.buffers.look_ahead"] == []
    check_look_ahead(SampleToInsertRatio(1.0, 10, 8.0), batch=4, in_flight=9, prefetch=1, name="replay")
    assert (
        "up to 17 samples are drawn ahead (9 in flight, 2 batches of 4); the limiter, whose range is 16" in caplog.text
    )


def test_a_ratio_that_floats_cannot_hold_needs_one_insert_more():
    assert greatest_error_needed(SampleToInsertRatio(0.5, 2, (-3, 3.0)), 6) == 3.0
    assert greatest_error_needed(SampleToInsertRatio(0.1, 2, (-3, 3.0)), 6) == pytest.approx(3.1)


def test_what_a_queue_gives_at_once():
    check_look_ahead(Queue(8), batch=8, in_flight=0, prefetch=0, name="replay")
    with pytest.raises(ValueError, match="a size of at least 9"):
        check_look_ahead(Queue(8), batch=9, in_flight=0, prefetch=0, name="replay")


@pytest.mark.parametrize(("name", "value"), [("batch", 0), ("in_flight", -1), ("prefetch", -1), ("iterators", 0)])
def test_look_ahead_is_counted(name, value):
    counts = {"batch": 1, "in_flight": 0, "prefetch": 0, "iterators": 1, name: value}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got {value}"):
        check_look_ahead(MinSize(1), name="replay", **counts)


# -- what other processes are told -------------------------------------------------------------


def seen_by_address(config: TableConfig) -> ServedTable:
    with ReplayServer([config]) as server:
        link = ServerLink(server.address, config.name, timeout_s=30.0, log_interval_s=5.0)
        return served_table(link, DataSpec(config.held_spec))


def test_a_table_tells_its_settings_by_address():
    config = table(
        data_spec=SPEC,
        sampler=Prioritized(0.7),
        rate_limiter=SampleToInsertRatio(4.0, 5, 10.0),
        initial="max",
        tracks_least=True,
        fields=("reward", "observation/speed"),
        scannable=True,
    )
    seen = seen_by_address(config)
    assert seen.sampler == Prioritized(0.7) and seen.remover == Fifo()
    assert seen.limiter == config.rate_limiter.bounds
    assert seen.initial == "max"
    assert (seen.max_mirror, seen.min_mirror, seen.scan_table) == ("replay__max", "replay__min", "replay__scan")
    assert seen.tables_of_priorities == ("replay", "replay__max", "replay__min")
    assert seen.fields == ("reward", "observation/speed")
    assert not seen.is_ordered and seen.removes_oldest


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_a_table_tells_its_selectors_by_address(selector):
    seen = seen_by_address(table(sampler=selector, remover=selector))
    assert (seen.sampler, seen.remover) == (selector, selector)
    assert seen.is_ordered == seen.is_deterministic == (type(selector) not in (Uniform, Prioritized))
    assert (seen.initial, seen.max_mirror, seen.min_mirror, seen.fields) == (1.0, None, None, None)


def test_a_reservoir_tells_that_it_is_one():
    assert seen_by_address(table(remover=MinHeap(), initial="random")).initial == "random"


def test_a_table_that_others_made_has_no_mirrors():
    seen = seen_by_address(table(layout="plain", sampler=Prioritized(1.0)))
    assert (seen.sampler, seen.initial, seen.max_mirror) == (Prioritized(1.0), 1.0, None)


def test_mirrors_hold_the_table_s_items_and_draw_the_greatest_and_the_least():
    built = table(sampler=Prioritized(), initial="max", tracks_least=True).build()
    assert [each.name for each in built] == ["replay", "replay__max", "replay__min"]
    assert {each.info.max_size for each in built} == {10}
    assert [selector_from(each.info.sampler_options) for each in built] == [Prioritized(), MaxHeap(), MinHeap()]
    assert {selector_from(each.info.remover_options) for each in built} == {Fifo()}


# -- fields ------------------------------------------------------------------------------------


def test_a_table_holds_the_fields_that_it_is_told():
    config = table(data_spec=SPEC, fields=["observation/speed", "reward"])
    assert config.fields == ("observation/speed", "reward")
    assert config.held_spec == {"observation": {"speed": COUNTER}, "reward": COUNTER}
    assert config.make_layout().column_bytes == (8 + 8 + 8 + 1,)


def test_a_path_may_name_a_part():
    assert select_fields(SPEC, ("observation",)) == {"observation": SPEC["observation"]}
    assert select_fields(SPEC, None) is SPEC


def test_namedtuples_keep_their_places():
    step = Transition(1, 2, 3, 4, {"a": 5, "b": 6}, 7)
    held = select_fields(step, ("reward", "next_observation/b"))
    assert held == Transition((), (), 3, (), {"b": 6}, ())


def test_tuples_keep_their_places():
    assert select_fields({"pair": (1, (2, 3)), "x": 4}, ("pair/1/0",)) == {"pair": ((), (2, ()))}
