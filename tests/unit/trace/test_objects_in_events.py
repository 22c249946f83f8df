"""An object inside an event is no event, however broken the event around it is; and each loss counts once."""

from __future__ import annotations

import time

import pytest

from scope.trace.salvage import salvage

INNER = '{"ph":"X","cat":"kernel","name":"inner","ts":5,"dur":3}'
HOLDING = {
    "nothing": "",
    "an object like an event": f'"x":{INNER},',
    "an object like an event behind a blank": f'"x": \n{INNER},',
    "objects in an object": '"x":{"a":1,"b":{"c":2}},',
    "a list of objects like events": f'"x":[{INNER},{INNER},{INNER}],',
    "a list of lists of objects": f'"x":[[{INNER},{INNER}],[{INNER}]],',
}


def event(number: int, inside: str = "") -> str:
    """Return an event that holds something in its arguments."""
    return (
        f'{{"ph":"X","cat":"kernel","name":"k{number}","pid":0,"tid":7,"ts":{number}0,"dur":5,'
        f'"args":{{{inside}"device":0,"stream":7}}}}'
    )


def outcome(text: str) -> tuple[list[str], int, int]:
    """Return the names of what was read, and how many were lost and repaired."""
    found = salvage(text.encode(), is_last=True)
    return [event.name for event in found.events], found.lost, found.repaired


@pytest.mark.parametrize("inside", HOLDING.values(), ids=HOLDING)
@pytest.mark.parametrize("num_missing", [1, 2])
@pytest.mark.parametrize("separator", [",", "\n", ",\n  "])
def test_an_event_without_its_end_costs_itself(inside: str, num_missing: int, separator: str) -> None:
    """Without one or both of its braces an event is lost, its neighbours are whole, and nothing comes out of it."""
    broken = event(2, inside)[:-num_missing] + separator + event(3)
    text = ",".join([event(1), broken, event(4), event(5)])
    assert outcome(text) == (["k1", "k3", "k4", "k5"], 1, 0)


@pytest.mark.parametrize("inside", HOLDING.values(), ids=HOLDING)
def test_a_broken_value_costs_its_event(inside: str) -> None:
    """A value that is none costs the event that holds it, and nothing comes out of what else the event holds."""
    broken = event(2, inside).replace('"device":0', '"device":x')
    assert outcome(",".join([event(1), broken, event(3)])) == (["k1", "k3"], 1, 0)


@pytest.mark.parametrize("inside", HOLDING.values(), ids=HOLDING)
def test_a_good_event_beside_a_broken_one_is_one_event(inside: str) -> None:
    """What an event holds stays its own where the events around it are read one by one."""
    text = ",".join([event(1), '{"ph":"X","name":}', event(2, inside), event(3)])
    assert outcome(text) == (["k1", "k2", "k3"], 1, 0)


def test_events_without_a_separator_count_as_one_repair() -> None:
    """Where only the comma between two whole events is missing, both are read, and one thing was mended."""
    assert outcome(",".join([event(1), event(2) + event(3), event(4)])) == (["k1", "k2", "k3", "k4"], 0, 1)


def test_a_list_that_nothing_ends_takes_no_other_events() -> None:
    """The end of the list of events does not close a list inside an event that was cut in it."""
    broken = event(2, '"x":[{"a":1},').partition('"device"')[0].rstrip(",")
    text = ",".join([event(1), broken, event(3), event(4)]) + '],"displayTimeUnit":"ms"}'
    found = salvage(text.encode(), is_last=True)
    assert [event.name for event in found.events] == ["k1", "k3", "k4"]
    assert found.lost == 1
    assert found.rest == b',"displayTimeUnit":"ms"}'


def test_a_list_that_goes_on_in_the_next_chunk_waits_for_it() -> None:
    """The elements of a list that a chunk does not finish are not read as events; what begins there is handed on."""
    text = event(1) + ',{"ph":"X","name":},' + event(2, HOLDING["a list of objects like events"])
    cut = text.rindex(",{") + 1
    found = salvage(text[: cut - 1].encode(), is_last=False)
    assert [event.name for event in found.events] == ["k1"]
    rest = salvage(found.unfinished + b"," + text[cut:].encode(), is_last=True)
    assert [event.name for event in rest.events] == ["k2"]
    assert (found.lost, rest.lost) == (1, 0)


def test_open_lists_take_time_in_proportion_to_their_number() -> None:
    """Eight times as many events that are cut in a list of objects take some eight times the processor's time."""
    taken: list[float] = []
    for number in (2_000, 16_000):
        text = ",".join([event(1, '"x":[{"a":1}').partition('"device"')[0]] * number).encode()
        times: list[float] = []
        for _ in range(3):
            before = time.process_time()
            salvage(text, is_last=True)
            times.append(time.process_time() - before)
        taken.append(min(times))
    assert taken[1] < 32 * max(taken[0], 0.001)
