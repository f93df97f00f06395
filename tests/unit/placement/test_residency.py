"""What idle Macs should hold next: demand, memory, disk, the cost of changing, and dwelling."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.catalogue.cards import load_catalogue
from coordinator.placement.residency import Demand, IdleHost, ResidencyPolicy, plan
from node_agent.protocol.messages import Hardware
from node_agent.sizing import memory

GIB = 1 << 30
CATALOGUE = load_catalogue()
SMALL, LARGE = "llama-3.2-3b-4bit", "llama-3.3-70b-4bit"


def host(name: str, lent_gib: int = 16, loaded: str | None = None, **changes: object) -> IdleHost:
    found = IdleHost(
        node_id=f"node_{name}",
        hardware=Hardware(
            chip="Apple M4 Max",
            memory_bytes=2 * lent_gib * GIB,
            lent_bytes=lent_gib * GIB,
            bandwidth_bytes_per_second=546 * 10**9,
            gpu_cores=40,
            accelerated=True,
        ),
        lent_bytes=lent_gib * GIB,
        loaded=frozenset({loaded}) if loaded else frozenset(),
        on_disk=frozenset({SMALL, LARGE}),
    )
    return replace(found, **changes)  # pyright: ignore[reportArgumentType]


def demand(name: str, jobs_per_hour: float) -> Demand:
    card = CATALOGUE.known(name)
    assert card is not None
    return Demand(card, name, jobs_per_hour, 500, 200)


def test_nothing_is_changed_without_demand_or_with_enough_supply() -> None:
    assert plan([host("a")], []) == []
    assert plan([host("a")], [demand(SMALL, 0.0)]) == []
    held = [host(str(n), loaded=SMALL) for n in range(5)]
    assert plan([*held, host("free")], [demand(SMALL, 1.0)]) == []


def test_a_model_in_demand_that_nobody_holds_is_loaded_once_where_one_is_enough() -> None:
    found = plan([host("a"), host("b"), host("c")], [demand(SMALL, 20.0)])
    assert [(one.revision, one.step) for one in found] == [(SMALL, "load")]


def test_more_hosts_hold_it_as_demand_grows() -> None:
    hosts = [host(f"{n:02}") for n in range(30)]
    counts = [len(plan(hosts, [demand(SMALL, rate)])) for rate in (10.0, 2000.0, 10_000.0)]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[2] > 5


def test_only_macs_with_the_memory_hold_a_large_model() -> None:
    found = plan([host("a"), host("big", 64), host("b")], [demand(LARGE, 5.0)])
    assert [one.node_id for one in found] == ["node_big"]


def test_the_last_holder_of_a_wanted_model_is_left_in_peace() -> None:
    holder, free = host("a", loaded=SMALL), host("b")
    found = plan([holder, free], [demand(SMALL, 20.0), demand("llama-3.1-8b-4bit", 20.0)])
    loaded = replace(free, on_disk=frozenset({SMALL, "llama-3.1-8b-4bit"}))
    assert found == []
    found = plan([holder, loaded], [demand(SMALL, 20.0), demand("llama-3.1-8b-4bit", 20.0)])
    assert [(one.node_id, one.revision) for one in found] == [("node_b", "llama-3.1-8b-4bit")]


def test_a_host_dwells_on_what_it_has_just_changed_to() -> None:
    fresh = host("a", changed_seconds=60.0)
    assert plan([fresh], [demand(SMALL, 50.0)]) == []
    assert plan([replace(fresh, changed_seconds=4000.0)], [demand(SMALL, 50.0)]) != []


def test_disk_before_network_and_no_fetch_without_room_or_worth() -> None:
    size = memory.weights_bytes(demand(SMALL, 0).card)
    absent = host("a", on_disk=frozenset[str](), network_bytes_per_second=10**8, disk_free_bytes=size)
    (only,) = plan([absent], [demand(SMALL, 50.0)])
    assert only.step == "fetch"
    (first,) = plan([absent, host("b")], [demand(SMALL, 50.0)])
    assert (first.node_id, first.step) == ("node_b", "load")
    assert plan([replace(absent, disk_free_bytes=size - 1)], [demand(SMALL, 50.0)]) == []
    assert plan([replace(absent, network_bytes_per_second=None)], [demand(SMALL, 50.0)]) == []
    # A download that takes longer than the horizon is looked ahead.
    assert plan([replace(absent, network_bytes_per_second=1000)], [demand(SMALL, 50.0)]) == []


def test_busy_hosts_count_as_supply() -> None:
    assert plan([host("a")], [demand(SMALL, 20.0)], busy_jobs_per_hour={SMALL: 1e6}) == []


MIDDLE = "llama-3.1-8b-4bit"


def several(lent_gib: int, *loaded: str, models_max: int = 3) -> IdleHost:
    held = sum(memory.weights_bytes(demand(name, 0.0).card) for name in loaded)
    on_disk = frozenset({SMALL, MIDDLE, LARGE})
    found = replace(host("a", lent_gib), loaded=frozenset(loaded), on_disk=on_disk, held_bytes=held)
    return replace(found, models_max=models_max)


def test_a_second_model_comes_beside_the_first_where_there_is_room() -> None:
    asked = [demand(SMALL, 20.0), demand(MIDDLE, 15.0)]
    (found,) = plan([several(32, SMALL)], asked)
    assert found.revision == MIDDLE
    # Where one model is held, or fits, the only holder of the first is left in peace.
    assert plan([several(32, SMALL, models_max=1)], asked) == []
    assert plan([several(7, SMALL)], asked) == []


def test_what_is_missed_least_goes_for_another_model() -> None:
    asked = [demand(SMALL, 20.0), demand(LARGE, 20.0)]
    (found,) = plan([several(48, SMALL, MIDDLE)], asked)
    assert found.revision == LARGE, "nobody asks for the one that goes"
    # Two that are asked for would have to go for one.
    assert plan([several(44, SMALL, MIDDLE)], [*asked, demand(MIDDLE, 20.0)]) == []


def test_models_of_one_mac_share_its_time() -> None:
    other = host("b", on_disk=frozenset({MIDDLE}))
    alone = plan([several(32, MIDDLE), other], [demand(MIDDLE, 1000.0)])
    shared = plan([several(32, SMALL, MIDDLE), other], [demand(SMALL, 1.0), demand(MIDDLE, 1000.0)])
    gains = [
        next((one.gain_seconds for one in found if one.revision == MIDDLE), 0.0) for found in (alone, shared)
    ]
    assert gains[1] > gains[0]


@given(
    lent=st.lists(st.integers(2, 100), min_size=1, max_size=12),
    rates=st.tuples(st.floats(0, 5000), st.floats(0, 100)),
    most=st.integers(0, 5),
)
@settings(deadline=None, max_examples=40)
def test_a_plan_gains_fits_and_does_not_depend_on_order(
    lent: list[int], rates: tuple[float, float], most: int
) -> None:
    hosts = [host(f"{n:02}", gib, SMALL if gib % 3 == 0 else None) for n, gib in enumerate(lent)]
    demands = [demand(SMALL, rates[0]), demand(LARGE, rates[1])]
    policy = ResidencyPolicy(changes_max=most)
    found = plan(hosts, demands, policy=policy)
    assert plan(hosts[::-1], demands[::-1], policy=policy) == found
    assert len({one.node_id for one in found}) == len(found) <= most
    by_id = {one.node_id: one for one in hosts}
    for one in found:
        card = CATALOGUE.known(one.revision)
        assert card is not None
        assert one.gain_seconds > 0
        assert one.revision not in by_id[one.node_id].loaded
        assert memory.needed_bytes(card, context_tokens=8192, width=1) <= by_id[one.node_id].lent_bytes
