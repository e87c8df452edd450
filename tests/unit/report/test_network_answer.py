"""Questions 5 and 11 about runs whose network is known: short answers, slow ports, other GPUs, one machine."""

from dataclasses import replace

import pytest

from dragoman.diagnosis.network_estimate import RunFacts, estimate_network, tokens_of_sentences
from dragoman.report.answers.network import answer_network, answer_traffic
from dragoman.report.evidence import Evidence, StatedFacts, read_evidence
from dragoman.report.findings import Findings
from dragoman.run.records import ImportedFacts

SLOW_PORT = RunFacts(
    29.65,
    60_880_896,
    num_ranks=4,
    num_nodes=2,
    gpu="V100",
    precision="mixed",
    tokens_per_rank=tokens_of_sentences(256),
    trainer="OpenSeq2Seq",
)


def findings_with(run, facts: RunFacts, **known) -> Findings:
    """Findings of an imported run, with the network estimate of other facts."""
    findings = Findings(read_evidence(run, StatedFacts(link=facts.link, **known)))
    findings.__dict__["network"] = estimate_network(facts)
    return findings


def text_of(answer) -> str:
    return " ".join([answer.answer, *answer.evidence, *answer.missing])


@pytest.mark.parametrize(
    ("change", "short"),
    [
        ({"link": "100mbit"}, "Yes"),
        ({"link": "1000Mbit"}, "Probably"),
        ({"link": None}, "Probably"),
        ({"link": "100gbit", "seconds_per_step": 0.8}, "No"),
        ({"link": "100gbit", "seconds_per_step": 5.0, "gpu": None}, "Not known"),
        ({"link": None, "gpu": None}, "Not known"),
        ({"num_nodes": 1}, "No"),
        ({"parameters": None}, "Not known"),
    ],
)
def test_the_short_answer_is_as_sure_as_the_estimate(imported_run, change, short):
    answer = answer_network(findings_with(imported_run, replace(SLOW_PORT, **change)))
    assert answer.short == short
    assert answer.answer.startswith("Cannot say" if short == "Not known" else f"{short}. ")


def test_a_port_slower_than_stated_is_named(imported_run):
    answer = answer_network(findings_with(imported_run, replace(SLOW_PORT, link="1000Mbit")))
    assert "slower than stated" in answer.answer
    assert "12.5 MB/s (100 Mbit/s) would explain it" in answer.answer
    assert "not the bottleneck" not in text_of(answer)
    assert "--link" not in text_of(answer)


@pytest.mark.parametrize("link", ["100gbit", "10gbit", "1000Mbit", "10mbit"])
@pytest.mark.parametrize("seconds", [0.1, 1.0, 5.0, 60.0])
def test_a_link_that_was_given_is_never_asked_for(imported_run, link, seconds):
    facts = replace(SLOW_PORT, link=link, seconds_per_step=seconds, gpu=None)
    assert "--link" not in text_of(answer_network(findings_with(imported_run, facts)))


def test_another_gpu_than_the_logs_is_labelled(imported_run, monkeypatch):
    monkeypatch.setattr(Evidence, "facts", ImportedFacts(gpus=["Tesla V100-PCIE-16GB"]))
    findings = findings_with(imported_run, replace(SLOW_PORT, link="100mbit"), gpu="H100")
    said = text_of(answer_network(findings))
    assert "Computed for H100 as stated; the log names Tesla V100-PCIE-16GB." in said


def test_ranks_of_one_machine_have_no_traffic_between_nodes(imported_run, monkeypatch):
    monkeypatch.setattr(Evidence, "num_nodes", 1)
    answer = answer_traffic(Findings(read_evidence(imported_run, StatedFacts())))
    assert answer.short == "No traffic between nodes"
    assert "PCI Express or NVLink" in answer.answer


def test_short_answers_about_traffic(imported_run, own_run):
    measured = answer_traffic(Findings(read_evidence(own_run, StatedFacts())))
    assert measured.short.endswith(" per step")
    theory = answer_traffic(Findings(read_evidence(imported_run, StatedFacts())))
    assert theory.short == "365.3 MB per step in theory"


def test_local_updates_are_proposed_for_a_slow_port(imported_run):
    answer = answer_network(findings_with(imported_run, replace(SLOW_PORT, link="100mbit")))
    [advice] = [message for message in answer.evidence if "--sync local" in message]
    assert "instead of 29.6 s" in advice
    fast = answer_network(findings_with(imported_run, replace(SLOW_PORT, link="100gbit", seconds_per_step=0.8)))
    assert "--sync" not in text_of(fast)
