"""`draftproof prove`: green on what is shipped, red with exit status 1 on anything else."""

from __future__ import annotations

import json

import pytest

from draftproof import chance
from draftproof.audit import prove as proof
from draftproof.audit.mutants import HARMLESS, MUTANTS
from draftproof.cli.app import run
from draftproof.rules import RULES

pytestmark = pytest.mark.usefixtures("unchecked")


def test_a_rule_is_proven_and_its_faults_caught(capsys):
    assert run(["prove", "--rule", "greedy_multi", "--rule", "block"]) == 0
    out = capsys.readouterr().out
    assert "greedy_multi" in out
    assert "exactly 0" in out
    assert "7 of 7" in out
    assert "proven:" in out
    assert "token " not in out.replace("tokens", "")


def test_json_has_both_laws_of_every_fault(capsys):
    assert run(["prove", "--rule", "greedy_multi", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["proven"] is True
    [rule] = report["rules"]
    assert rule["deviation"] == "0"
    assert rule["cases"] > 30
    [fault] = rule["mutants"].values()
    assert fault["target"].keys() | fault["emitted"].keys() >= {fault["text"]}
    assert fault["target"][fault["text"]] != fault["emitted"].get(fault["text"])


def test_an_unknown_rule_is_refused(capsys):
    assert run(["prove", "--rule", "tokne"]) == 2
    assert "--rule: 'tokne' is unknown; known are coupled, token" in capsys.readouterr().err
    assert run(["prove", "--rule", "lossy_typical"]) == 2
    assert "changes the target's law, so there is nothing to prove" in capsys.readouterr().err


def test_a_faulty_rule_turns_it_red(monkeypatch, capsys):
    [lenient] = [mutant.rule for mutant in MUTANTS if mutant.name == "lenience 2/3"]
    monkeypatch.setitem(RULES, "token", lenient)
    monkeypatch.setattr(proof, "MUTANTS", [])
    assert run(["prove", "--rule", "token"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  sampled, dense" in out
    assert "NOT PROVEN: token" in out


def test_a_rule_that_raises_has_failed(monkeypatch, capsys):
    def broken(draft, rows, chance):
        raise ZeroDivisionError("residual")

    monkeypatch.setitem(RULES, "greedy_multi", broken)
    assert run(["prove", "--rule", "greedy_multi"]) == 1
    assert "ZeroDivisionError: residual" in capsys.readouterr().out


def test_a_fault_that_is_not_seen_and_a_false_alarm_turn_it_red(monkeypatch, capsys):
    monkeypatch.setattr(proof, "MUTANTS", [m for m in HARMLESS if m.of == "block"])
    monkeypatch.setattr(proof, "HARMLESS", [m for m in MUTANTS if m.name == "block, the first failure ends"])
    assert run(["prove", "--rule", "block"]) == 1
    out = capsys.readouterr().out
    assert "MISSED  'block verification, plainly'" in out
    assert "WRONG   'block, the first failure ends'" in out


def test_a_coin_that_is_not_strict_turns_it_red(monkeypatch):
    """u <= p/q accepts what has no probability, at u = 0: the proof judges every interval at its left end."""
    from draftproof.audit import exact

    assert not chance.heads(0.0, 0.0)
    monkeypatch.setattr(exact, "heads", lambda u, prob: u <= prob)
    report = proof.prove("token")
    assert report.failed
    assert not report.proven
