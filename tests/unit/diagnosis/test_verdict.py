"""The verdict on a run, from records constructed for each cause; damaged records never break it."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.diagnosis.prediction import Measurements, predict
from dragoman.diagnosis.step_model import BOTTLENECKS, PARTS
from dragoman.diagnosis.verdict import verdict_of_records, verdict_of_run
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.records import MachineLoad, Record, TrainRecord, parse_records, validate

BALANCED = dict.fromkeys(PARTS, 0.0) | {"forward": 0.3, "backward": 0.6, "optimizer": 0.05, "data": 0.01}
CAUSES = {
    "compute": {"parts": {}},
    "network": {"parts": {"exposed_communication": 2.0}},
    "input": {"parts": {"data": 1.0}},
    "straggler": {"parts": {"straggler": 0.5}, "work": [1.0, 2.0], "slowest": {"forward": 0.8, "backward": 1.1}},
    "overhead": {"parts": {"evaluation": 1.5}},
}

CORES = ("own_cores", "other_cores", "stolen_cores", "waiting_threads")
numbers = st.floats() | st.integers() | st.integers(-3, 3).map(float)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
tables = st.dictionaries(st.sampled_from([*PARTS, "waiting", "rank"]), numbers | anything, max_size=11)
damaged_records = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["train", "train", "train", "evaluation"]) | anything,
        "step": numbers | anything,
        "seconds_per_step": numbers | anything,
        "attribution": st.just(BALANCED) | tables.map(lambda table: BALANCED | table) | anything,
        "fixed_share": numbers | anything,
        "work_seconds_by_rank": st.lists(numbers, max_size=4) | anything,
        "slowest": st.fixed_dictionaries(
            {}, optional={"rank": st.integers(0, 3) | anything, "host": anything, "attribution": tables | anything}
        )
        | anything,
        "traffic": st.fixed_dictionaries(
            {},
            optional={
                "interface": anything,
                "sent_bytes_per_second": numbers | anything,
                "received_bytes_per_second": numbers | anything,
            },
        )
        | anything,
        "utilisation": st.fixed_dictionaries({}, optional={"gpu": numbers | anything, "cpu": numbers | anything})
        | anything,
    },
)


def records_of(
    parts: dict[str, float],
    num_records: int = 10,
    work: list[float] | None = None,
    slowest: dict[str, float] | None = None,
    rank: int = 1,
    **more: object,
) -> list[TrainRecord]:
    attribution = BALANCED | parts
    named = {"rank": rank, "host": f"host{rank}", "attribution": slowest or attribution}
    values = {
        "kind": "train",
        "seconds_per_step": sum(attribution.values()),
        "attribution": attribution,
        "slowest": named,
        "work_seconds_by_rank": work or [0.96, 0.96],
        **more,
    }
    return [validate(TrainRecord, values | {"step": 10 * (index + 1)}) for index in range(num_records)]


def read(values: list[object]) -> list[Record]:
    """The records that a reader of metrics.jsonl gets from these values."""
    return list(parse_records(map(json.dumps, values)))


def traffic(rate: float, interface: object = "eth0") -> dict[str, object]:
    return {"interface": interface, "sent_bytes_per_second": rate, "received_bytes_per_second": rate / 2}


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_is_found_with_its_share_and_evidence(cause):
    verdict = verdict_of_records(records_of(**CAUSES[cause]))
    assert verdict.bottleneck == cause
    assert verdict.is_known
    assert 0.25 < verdict.share <= 1
    assert 0.8 < verdict.confidence <= 1
    assert verdict.why.startswith(f"The run is {cause}-bound: ")
    assert verdict.evidence
    assert sum(verdict.parts.values()) == pytest.approx(sum((BALANCED | CAUSES[cause]["parts"]).values()))


def test_a_straggler_is_named_with_its_rank_and_host():
    why = verdict_of_records(records_of(**CAUSES["straggler"])).why
    assert "rank 1 on host1 takes 1 s longer per step than the others" in why


def test_ranks_that_are_slow_in_turn_are_not_blamed():
    why = verdict_of_records(records_of({"straggler": 0.6})).why
    assert "No single rank is to blame: different ranks were slow at different times." in why


def test_a_slow_loader_of_one_rank_is_input():
    records = records_of({"data": 0.5, "straggler": 0.5}, work=[0.96, 1.96], slowest=BALANCED | {"data": 1.0})
    assert verdict_of_records(records).bottleneck == "input"


def test_checkpoints_of_the_first_rank_are_overhead_and_named():
    records = records_of(
        {"checkpoint": 0.5, "straggler": 0.5}, work=[1.96, 0.96], slowest=BALANCED | {"checkpoint": 1.0}, rank=0
    )
    verdict = verdict_of_records(records)
    assert verdict.bottleneck == "overhead"
    assert "saving checkpoints (51%): save less often" in verdict.why


def test_tiny_batches_are_overhead_and_named():
    verdict = verdict_of_records(records_of({}, fixed_share=0.9))
    assert verdict.bottleneck == "overhead"
    assert "use larger batches" in verdict.why
    assert any("90% of forward and backward" in message for message in verdict.evidence)


@pytest.mark.parametrize("name", ["evaluation", "checkpoint", "optimizer", "other"])
def test_every_overhead_has_words(name):
    verdict = verdict_of_records(records_of({name: 1.5}))
    assert verdict.bottleneck == "overhead"
    assert verdict.why.endswith(".")


def test_a_busy_device_that_waits_for_the_network_is_explained():
    [sign] = verdict_of_records(
        records_of({"exposed_communication": 2.0}, utilisation={"gpu": 1.0, "cpu": 0.3})
    ).misleading
    assert sign.startswith("GPU utilisation was 100%, but 68% of each step was spent waiting inside communication")


@pytest.mark.parametrize(
    ("parts", "utilisation"),
    [
        ({"exposed_communication": 2.0}, {"gpu": 0.89}),
        ({"exposed_communication": 2.0}, {}),
        ({}, {"gpu": 1.0}),
        ({"data": 2.0}, {"gpu": 1.0}),
    ],
)
def test_signs_that_do_not_mislead_are_not_explained(parts, utilisation):
    assert verdict_of_records(records_of(parts, utilisation=utilisation)).misleading == []


@pytest.mark.parametrize(("sign", "expected"), [(1, 1.0), (-1, -1.0)])
def test_correlation_has_its_sign(sign, expected):
    values = [record.values() for record in records_of({"exposed_communication": 2.0})]
    records = read(
        [
            each | {"traffic": traffic(1e6 * (20 + sign * index)), "seconds_per_step": 3.0 + 0.1 * index}
            for index, each in enumerate(values)
        ]
    )
    verdict = verdict_of_records(records)
    assert verdict.network_correlation == pytest.approx(expected)
    assert any(f"correlation of {expected:+.2f} (p = " in message for message in verdict.evidence)
    assert any("eth0 carried" in message and "Mbit/s" in message for message in verdict.evidence)


def test_without_changes_or_figures_there_is_no_correlation():
    assert verdict_of_records(records_of({}, traffic=traffic(1e6))).network_correlation is None
    assert verdict_of_records(records_of({})).network_correlation is None
    assert verdict_of_records(records_of({}, num_records=2, traffic=traffic(1e6))).network_correlation is None


def changing(num_records: int, **more: object) -> list[Record]:
    """Records whose steps are the longer, the more traffic there is."""
    values = [record.values() for record in records_of({}, num_records, **more)]
    return read(
        [
            each | {"traffic": traffic(1e6 * (20 + index)), "seconds_per_step": 3.0 + 0.1 * index}
            for index, each in enumerate(values)
        ]
    )


def test_few_intervals_are_no_evidence_for_a_correlation():
    assert verdict_of_records(changing(5)).network_correlation is None
    assert verdict_of_records(changing(20)).network_correlation == pytest.approx(1.0)


def test_one_worker_has_no_network():
    verdict = verdict_of_records(changing(20, work=[0.96]))
    assert verdict.network_correlation is None
    assert not any("eth0" in message for message in verdict.evidence)


def test_a_correlation_that_chance_explains_is_no_evidence():
    values = [record.values() for record in records_of({}, 20)]
    rates = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
    records = read(
        [
            each | {"traffic": traffic(1e6 * rate), "seconds_per_step": 3.0 + 0.1 * (index % 2)}
            for index, (each, rate) in enumerate(zip(values, rates, strict=True))
        ]
    )
    assert verdict_of_records(records).network_correlation is None


def test_traffic_of_other_programs_is_no_evidence_and_named():
    own = {"num_machines": 2, "wall_seconds_per_step": 1.0, "gradient_bytes": 2_000_000}
    verdict = verdict_of_records(changing(20, **own))
    assert verdict.network_correlation is None
    assert any("Other programs used the network: about 28" in message for message in verdict.evidence)
    enough = verdict_of_records(changing(20, **own | {"gradient_bytes": 25_000_000}))
    assert enough.network_correlation == pytest.approx(1.0)


def test_an_interface_without_a_name_is_not_called_none():
    evidence = " ".join(verdict_of_records(records_of({}, traffic=traffic(1e6, interface=None))).evidence)
    assert "carried 1 MB/s (8 Mbit/s)" in evidence
    assert "None" not in evidence


def test_the_first_interval_does_not_count_where_there_are_others():
    warm_up = records_of({"other": 100.0}, num_records=1)
    assert verdict_of_records(warm_up + records_of({})).bottleneck == "compute"
    assert verdict_of_records(warm_up).bottleneck == "overhead"


def test_more_steps_and_a_clearer_case_raise_confidence():
    few, many = (verdict_of_records(records_of({"data": 2.0}, num_records=number)) for number in (2, 10))
    close = verdict_of_records(records_of({"data": 0.44}))
    assert few.confidence < many.confidence
    assert close.bottleneck == "input"
    assert close.confidence < many.confidence


def load(
    other: float, own: float = 1.0, waiting: float | None = None, host: str = "host1", **more: object
) -> dict[str, object]:
    """A machine of two cores on which a loop is busy; the run waits for all that the loop has."""
    loop = {"name": "python", "pid": 123, "cores": other}
    return {
        "host": host, "num_cores": 2, "own_cores": own, "other_cores": other, "programs": [loop] if other else [],
        "waiting_threads": other if waiting is None else waiting,
    } | more  # fmt: skip


def test_a_load_too_small_to_be_named_costs_nothing():
    """Otherwise the message would have nothing to name: "This is uncertain: meanwhile ."."""
    verdict = verdict_of_records(records_of({}, work=[0.96], load=[load(0.09, own=0.05)]))
    assert verdict.bottleneck != "other_programs"
    assert "meanwhile" not in verdict.why


def test_other_programs_that_take_the_cores_are_the_bottleneck():
    verdict = verdict_of_records(records_of({}, work=[0.96], load=[load(1.0)]))
    assert verdict.bottleneck == "other_programs"
    assert verdict.share == pytest.approx(0.5)
    assert verdict.why == (
        "The run is slowed by other programs: other programs used 1.0 of 2 cores on host1 (python (process 123) 1.0). "
        "Without them, a step would take about 50% less time."
    )
    assert verdict.other_load.startswith("other programs used 1.0 of 2 cores")


def test_stolen_time_of_a_virtual_machine_is_named():
    verdict = verdict_of_records(records_of({}, work=[0.96], load=[load(0.0, own=1.2, stolen_cores=0.8)]))
    assert verdict.bottleneck == "other_programs"
    assert "the hypervisor gave 0.8 of 2 cores on host1 to other virtual machines" in verdict.why


def test_other_programs_beside_idle_cores_cost_nothing():
    verdict = verdict_of_records(records_of({}, work=[0.96], load=[load(1.0, waiting=0.0)]))
    quiet = verdict_of_records(records_of({}, work=[0.96]))
    assert (verdict.bottleneck, verdict.why, verdict.confidence) == ("compute", quiet.why, quiet.confidence)
    assert any("used 1.0 of 2 cores" in message and "had cores enough" in message for message in verdict.evidence)


def test_what_other_programs_cost_is_unknown_where_waiting_is_not_counted():
    """Otherwise a kernel without the figure would seem to have had idle cores."""
    unknown = load(1.0, waiting_threads=None)
    verdict = verdict_of_records(records_of({}, work=[0.96], load=[unknown]))
    assert any("whether that cost time is not known" in message for message in verdict.evidence)
    assert not any("cores enough" in message for message in verdict.evidence)


def test_too_many_threads_of_the_run_are_no_other_programs():
    assert verdict_of_records(records_of({}, load=[load(0.0, own=2.0, waiting=6.0)])).bottleneck == "compute"


def test_a_verdict_beside_busy_programs_is_uncertain_and_says_so():
    quiet = verdict_of_records(records_of({"data": 2.0}, work=[0.96]))
    verdict = verdict_of_records(records_of({"data": 2.0}, work=[0.96], load=[load(0.3, own=1.5)]))
    assert verdict.bottleneck == "input"
    assert verdict.confidence < 0.7 * quiet.confidence
    assert "This is uncertain: meanwhile other programs used 0.3 of 2 cores on host1 (python" in verdict.why


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_straggler_beside_a_busy_program_is_named_as_that(is_busy):
    loads = [load(0.0, host="host0"), load(1.0 if is_busy else 0.0, host="host1")]
    verdict = verdict_of_records(records_of(**CAUSES["straggler"], load=loads, num_machines=2))
    assert verdict.bottleneck == ("other_programs" if is_busy else "straggler")
    assert ("on host1 (python (process 123) 1.0)" in verdict.why) == is_busy


def test_one_of_two_ranks_of_a_machine_may_share_its_core_with_a_busy_program():
    verdict = verdict_of_records(records_of(**CAUSES["straggler"], load=[load(0.5, own=1.5)], num_machines=1))
    assert verdict.bottleneck == "other_programs"
    assert "python (process 123)" in verdict.why


def test_a_busy_program_on_a_machine_that_nobody_waits_for_is_no_bottleneck():
    loads = [load(1.0, host="host0"), load(0.0, host="host1")]
    assert verdict_of_records(records_of(**CAUSES["straggler"], load=loads, num_machines=2)).bottleneck == "straggler"


def attempts(*fixed_shares: float, **more: object) -> list[Record]:
    """Records of several starts; each measured another fixed cost of its batches."""
    found: list[Record] = []
    for number, share in enumerate(fixed_shares):
        records = records_of({}, num_records=4, fixed_share=share, **more)
        begin = 40 * number
        found += [record.model_copy(update={"step": record.step + begin}) for record in records]
        found += read([{"kind": "restart", "step": begin + 40}])
    return found


def test_a_fixed_cost_measured_beside_busy_programs_does_not_count():
    loads = [load(0.3, own=1.5)]
    disturbed = attempts(0.92, load=loads)
    first = verdict_of_records(disturbed)
    assert first.bottleneck == "compute"
    assert any("measured while other programs were busy" in message for message in first.evidence)
    later = verdict_of_records(disturbed + attempts(0.05))
    assert later.bottleneck == first.bottleneck


def test_one_start_with_an_odd_fixed_cost_does_not_change_the_verdict():
    assert verdict_of_records(attempts(0.05, 0.06, 0.95)).bottleneck == "compute"


def test_the_verdict_says_which_steps_it_is_about():
    verdict = verdict_of_records(records_of({}))
    assert (verdict.first_step, verdict.last_step) == (11, 100)
    assert any("measured from step 11 to 100" in message for message in verdict.evidence)


def test_a_single_slow_interval_does_not_make_a_bottleneck():
    records = records_of({})
    records[4] = records_of({"other": 60.0})[4]
    verdict = verdict_of_records(records)
    assert verdict.bottleneck == "compute"
    assert any("1 of 9 intervals took far longer than the others" in message for message in verdict.evidence)


def test_frequent_slow_intervals_count():
    records = records_of({})
    for index in (2, 5, 8):
        records[index] = records_of({"data": 20.0})[index]
    assert verdict_of_records(records).bottleneck == "input"


def test_evaluations_count_although_few_intervals_have_one():
    records = records_of({})
    records[5] = records_of({"evaluation": 20.0})[5]
    assert verdict_of_records(records).bottleneck == "overhead"


def test_the_first_interval_of_each_start_does_not_count():
    again = [record.model_copy(update={"step": record.step + 100}) for record in records_of({"other": 90.0})]
    records = [*records_of({}), *read([{"kind": "restart", "step": 100}]), again[0]]
    assert verdict_of_records(records).bottleneck == "compute"


def test_intervals_with_another_number_of_workers_do_not_count():
    records = records_of({"data": 3.0}, work=[1.0, 1.0]) + records_of({}, num_records=4, work=[1.0])
    assert verdict_of_records(records).bottleneck == "compute"


OLD_RECORD = {"kind": "train", "step": 10, "loss": 2.0, "seconds_per_step": 1.0}
DAMAGED_PARTS = [
    None,
    [],
    "forward",
    {},
    dict.fromkeys(PARTS, 0.0),
    BALANCED | {"forward": math.nan},
    BALANCED | {"forward": math.inf},
    BALANCED | {"forward": 10**400},
    BALANCED | {"forward": -1.0},
    BALANCED | {"forward": "1.0"},
    BALANCED | {"forward": None},
    BALANCED | {"forward": True},
    dict.fromkeys(PARTS, 0.0) | {"forward": 5e-324},
]


@pytest.mark.parametrize("values", [[], [OLD_RECORD], [{"kind": "evaluation", "step": 1}], [{}]])
def test_runs_without_parts_of_steps_are_unknown(values):
    verdict = verdict_of_records(read(values))
    assert (verdict.bottleneck, verdict.share, verdict.confidence) == ("unknown", 0.0, 0.0)
    assert not verdict.is_known
    assert verdict.why.endswith(".")


@pytest.mark.parametrize("parts", DAMAGED_PARTS)
def test_damaged_records_are_ignored_beside_good_ones(parts):
    damaged = OLD_RECORD | {"attribution": parts, "step": 0}
    assert verdict_of_records(read([damaged])).bottleneck == "unknown"
    good = records_of({"data": 2.0}, num_records=3)
    assert verdict_of_records(read([damaged, OLD_RECORD | {"step": 0}]) + good) == verdict_of_records(good)


def test_a_part_that_is_missing_took_no_time():
    assert verdict_of_records(read([OLD_RECORD | {"attribution": {"data": 1.0}}])).bottleneck == "input"


def test_a_share_above_one_is_cut():
    verdict = verdict_of_records(records_of({}, fixed_share=1e9))
    assert "the fixed cost of a batch, before its first token (94%)" in verdict.why


@settings(max_examples=100)
@given(st.lists(damaged_records, max_size=5), st.integers(0, 4))
def test_no_damage_is_an_exception(damaged, num_good):
    verdict = verdict_of_records(read(damaged) + records_of({}, num_records=num_good, traffic=traffic(1e6)))
    assert verdict.bottleneck in (*BOTTLENECKS, "unknown")
    assert 0 <= verdict.share <= 1
    assert 0 <= verdict.confidence <= 1
    assert verdict.network_correlation is None or -1.001 <= verdict.network_correlation <= 1.001
    assert "nan%" not in json.dumps(verdict.to_json(), allow_nan=False)


def test_a_line_that_was_cut_off_is_skipped(tmp_path):
    run = RunFolder(tmp_path)
    lines = [record.model_dump_json() for record in records_of({"data": 2.0})]
    run.metrics.write_text("\n".join([*lines, '{"kind": "train", "attribut']))
    assert verdict_of_run(run).bottleneck == "input"
    assert verdict_of_run(run, num_records=2).bottleneck == "input"


def test_the_last_records_can_have_another_bottleneck(tmp_path):
    run = RunFolder(tmp_path)
    records = records_of({"data": 9.0}) + records_of({"exposed_communication": 2.0}, num_records=4)
    run.metrics.write_text("".join(record.model_dump_json() + "\n" for record in records))
    assert verdict_of_run(run).bottleneck == "input"
    assert verdict_of_run(run, num_records=4).bottleneck == "network"


def test_a_folder_without_records_is_an_error_for_the_user(tmp_path):
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be read"):
        verdict_of_run(RunFolder(tmp_path))
    assert verdict_of_run(RunFolder(tmp_path), num_records=5).bottleneck == "unknown"


@given(
    st.dictionaries(st.sampled_from(PARTS), st.floats(1e-3, 10.0), min_size=1),
    st.lists(st.floats(0.01, 10.0), min_size=2, max_size=4),
    st.dictionaries(st.sampled_from(["data", "forward", "backward", "optimizer", "checkpoint"]), st.floats(0, 10)),
    st.none() | st.floats(0, 1),
    st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2), st.floats(0, 2), st.none() | st.floats(0, 2)), max_size=2),
)
def test_check_and_verdict_name_the_same_bottleneck_for_the_same_step(parts, work, slowest, fixed_share, cores):
    """`dragoman check` sees a step in its rehearsal, the verdict in the records of the run."""
    machines = [f"host{rank % 2}" for rank in range(len(work))]
    loads = [
        MachineLoad(host=f"host{number}", num_cores=2, **dict(zip(CORES, figures, strict=True)))
        for number, figures in enumerate(cores)
    ]
    rank = work.index(max(work))
    values = {
        "kind": "train",
        "attribution": parts,
        "work_seconds_by_rank": work,
        "slowest": {"rank": rank, "host": machines[rank], "attribution": slowest},
        "fixed_share": fixed_share,
        "load": [load.values() for load in loads],
    }
    verdict = verdict_of_records([validate(TrainRecord, values | {"step": step}) for step in range(1, 7)])
    measured = Measurements(
        machines,
        1,
        [1],
        alone_parts=parts,
        alone_steps=[sum(parts.values())],
        work_by_rank=work,
        slowest=slowest,
        fixed_share=fixed_share or 0.0,
        steps=[sum(parts.values())] * 6,
        step_parts=parts,
        loads=loads,
    )
    prediction = predict(measured)
    assert prediction.bottleneck == verdict.bottleneck
    assert prediction.step.costs.share(prediction.bottleneck) == pytest.approx(verdict.share)


@pytest.mark.parametrize(
    "parts",
    [
        {"exposed_communication": 5.0},
        {"exposed_communication": 5.0, "straggler": 0.1},
        {"exposed_communication": 5.0, "straggler": 4.0},
        {"data": 4.0},
        {},
    ],
)
def test_all_shares_agree_where_other_programs_took_cores(parts):
    """Otherwise a page would say that the network took 83 % of the time, and 85 % elsewhere."""
    verdict = verdict_of_records(records_of(parts, work=[0.96, 0.96], load=[load(0.4)]))
    whole = sum(verdict.parts.values())
    assert whole == pytest.approx(sum(records_of(parts, work=[0.96, 0.96])[-1].attribution.values()), rel=0.05)
    assert verdict.parts["other_programs"] > 0
    part = {"network": "exposed_communication", "input": "data", "other_programs": "other_programs"}
    if verdict.bottleneck in part:
        share = verdict.parts[part[verdict.bottleneck]] / whole
        assert share == pytest.approx(verdict.share)
        assert f"{share:.0%}" in verdict.why
        assert f"{share:.0%}" in verdict.evidence[0]
    assert "slowed down by other programs" in verdict.evidence[0]


def test_the_next_cause_of_a_compute_bound_run_is_named_where_it_is_notable():
    assert "no other cause took much time" in verdict_of_records(records_of({})).why
    notable = verdict_of_records(records_of({"exposed_communication": 0.2}))
    assert notable.bottleneck == "compute"
    assert "; the next cause, network, took 1" in notable.why


def test_local_updates_are_advised_where_exact_sums_waited_for_the_network():
    facts = {"num_machines": 2, "gradient_bytes": 40_000_000}
    waiting = {"exposed_communication": 20.0}
    [advice] = verdict_of_records(records_of(waiting, **facts)).advice
    # 10.2 MB as int8 at 2 MB/s, every 16 steps of 0.96 s.
    assert "every 16 steps (--sync local)" in advice
    assert "about 1.28 s instead of 21.0 s" in advice
    assert verdict_of_records(records_of(waiting, **facts, synchronisation="fp16")).advice == []
    assert verdict_of_records(records_of(waiting, **facts | {"num_machines": 1})).advice == []
    assert verdict_of_records(records_of({}, **facts)).advice == []
    assert verdict_of_records(records_of(waiting)).advice == []
