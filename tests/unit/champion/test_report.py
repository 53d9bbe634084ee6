"""Files that the commands write: whatever is doubtful in a count is refused with its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.champion import Objective, ReportError, Rules, parse_report
from outerloop.champion.report import checkpoints_to_score, epoch_of, validation_ranks

GOOD: dict[str, Any] = {
    "fail_count": 40,
    "fail_to_pass_count": 4,
    "pass_count": 60,
    "pass_correct_count": 57,
    "macro_f1": 0.9,
    "s_f1": 0.8,
    "checkpoint_sha256": "abc",
    "gate_auc": 0.95,
    "gate_curve": [[0.0, 1.0], [0.5, 0.5]],
    "reject_band": [-0.1, 0.2],
    "decided": {
        "fail_count": 30,
        "fail_to_pass_count": 1,
        "pass_count": 50,
        "pass_correct_count": 49,
        "rejected_total": 20,
    },
}


def _parse(changes: dict[str, Any], **kwargs: Any) -> Any:
    report = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    return parse_report(json.dumps(report), Rules(), **kwargs)


def test_a_good_report_keeps_counts_with_denominators_and_the_rest_as_recorded() -> None:
    report = _parse({}, totals=(40, 60), checkpoint_sha256="abc")
    assert report.row == {
        "fail_to_pass_count": 4,
        "fail_count": 40,
        "pass_to_fail_count": 3,
        "pass_count": 60,
    }
    assert report.decided == {
        "fail_to_pass_count": 1,
        "fail_count": 30,
        "pass_to_fail_count": 1,
        "pass_count": 50,
        "rejected_total": 20,
    }
    assert report.rates == {"fail_to_pass": 0.1, "pass_to_fail": 0.05}
    assert report.gate_curve == ((0.0, 1.0), (0.5, 0.5))
    assert report.reject_band == (-0.1, 0.2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fail_count": 0, "fail_to_pass_count": 0}, "fail_count is 0"),
        ({"fail_to_pass_count": 41}, "fail_to_pass_count is above its denominator fail_count = 40"),
        ({"pass_correct_count": 61}, "pass_correct_count is above its denominator pass_count = 60"),
        ({"fail_to_pass_count": ..., "fail_to_pas_count": 1}, "missing; did you mean fail_to_pas_count?"),
        ({"fail_to_pass_count": 1.0}, "whole number"),
        ({"fail_to_pass_count": True}, "whole number"),
        ({"fail_to_pass_count": -1}, "whole number"),
        ({"pass_count": 59}, "denominators (fail_count, pass_count) are [40, 59], on this set they were [40, 60]"),
        ({"checkpoint_sha256": "abd"}, "checkpoint_sha256 is 'abd'"),
        ({"checkpoint_sha256": ...}, "checkpoint_sha256 is None"),
        ({"macro_f1": "high"}, "macro_f1 must be a finite number"),
        ({"gate_curve": [[1, "x"]]}, "gate_curve"),
        ({"reject_band": [2, 1]}, "reject_band"),
        ({"decided": {**GOOD["decided"], "fail_count": 41}}, "decided.fail_count is 41, above the 40"),
        ({"decided": {**GOOD["decided"], "fail_to_pass_count": 31}}, "decided.fail_to_pass_count is above"),
        ({"decided": {**GOOD["decided"], "rejected_total": 101}}, "decided.rejected_total is 101"),
        ({"decided": {"counts": 3}}, "decided.counts must be an object"),
        ({"decided": [1]}, "decided must be an object"),
    ],
)
def test_a_doubtful_report_is_refused_with_its_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ReportError) as caught:
        _parse(changes, totals=(40, 60), checkpoint_sha256="abc")
    assert said in str(caught.value)


def test_all_problems_of_a_report_are_named_together() -> None:
    with pytest.raises(ReportError) as caught:
        _parse({"fail_count": 0, "pass_correct_count": 99, "s_f1": []})
    assert len(caught.value.problems) == 3


def test_a_report_of_other_objectives_is_refused_and_own_ones_are_read() -> None:
    rules = Rules(objectives=(Objective(name="errors", count="errors", total="items"),))
    with pytest.raises(ReportError, match="items is missing"):
        parse_report(json.dumps(GOOD), rules)
    assert parse_report('{"errors": 1, "items": 4}', rules).row == {"errors": 1, "items": 4}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pass_to_fail_count": GOOD["pass_count"] - GOOD["pass_correct_count"] + 1}, "do not add up to pass_count"),
        ({"decided": {**GOOD["decided"], "pass_to_fail_count": 0, "pass_correct_count": 0}}, "do not add up"),
        ({"macro_f1": 7}, "macro_f1 must be a finite number from 0 to 1"),
        ({"gate_auc": -0.1}, "gate_auc must be a finite number from 0 to 1"),
    ],
)
def test_a_report_that_contradicts_itself_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ReportError, match=told):
        _parse(changes)
    same = GOOD["pass_count"] - GOOD["pass_correct_count"]
    assert _parse({"pass_to_fail_count": same}).row["pass_to_fail_count"] == same


@pytest.mark.parametrize("text", ["", "[]", "{", '{"fail_count": NaN}', '{"a": 1, "a": 2}', "[" * 100_000])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ReportError):
        parse_report(text, Rules())


def test_a_model_that_rejects_everything_is_recorded_and_rejections_are_counted_where_not_given() -> None:
    nothing = {"fail_count": 0, "fail_to_pass_count": 0, "pass_count": 0, "pass_correct_count": 0}
    assert _parse({"decided": nothing}).decided["rejected_total"] == 100
    nested = {"counts": {k: v for k, v in GOOD["decided"].items() if k != "rejected_total"}, "rejected_total": 20}
    assert _parse({"decided": nested}).decided == _parse({}).decided


_junk = st.one_of(st.none(), st.booleans(), st.integers(-3, 70), st.floats(), st.text(max_size=3))


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), _junk), st.dictionaries(st.sampled_from(sorted(GOOD)), _junk))
@settings(max_examples=300, deadline=None)
def test_no_report_gives_impossible_counts(changes: dict[str, Any], decided: dict[str, Any]) -> None:
    block = {**GOOD["decided"], **decided} if decided else changes.get("decided")
    try:
        report = parse_report(json.dumps({**GOOD, **changes, "decided": block}), Rules())
    except ReportError as error:
        assert error.problems
        return
    for row in filter(None, (report.row, report.decided)):
        assert 0 <= row["fail_to_pass_count"] <= row["fail_count"]
        assert 0 <= row["pass_to_fail_count"] <= row["pass_count"]
    assert min(report.totals) > 0


def test_checkpoints_to_score_are_the_pareto_entries_and_the_selected_one_once_each() -> None:
    pareto = json.dumps({"checkpoints": [{"checkpoint": "m-0009"}, {"checkpoint": "m-0001"}, {"checkpoint": "m-0009"}]})
    assert checkpoints_to_score('{"checkpoint": "m-0009"}', pareto) == ("m-0009", ("m-0001", "m-0009"))
    assert checkpoints_to_score('{"checkpoint": "m-0004", "false_negatives": 1}', None) == ("m-0004", ("m-0004",))
    assert epoch_of("runs/m-0012") == 12


@pytest.mark.parametrize(
    ("selection", "pareto"),
    [
        ("{}", None),
        ('{"checkpoint": "best"}', None),
        ('{"checkpoint": "../m-0001"}', None),
        ('{"checkpoint": "/m-0001"}', None),
        ('{"checkpoint": "m-0001"}', "{}"),
        ('{"checkpoint": "m-0001"}', '{"checkpoints": ["m-0001"]}'),
        ('{"checkpoint": "m-0001"}', '{"checkpoints": [{"checkpoint": 3}]}'),
    ],
)
def test_a_selection_that_names_no_checkpoint_of_the_run_is_refused(selection: str, pareto: str | None) -> None:
    with pytest.raises(ReportError, match=r"selection\.json|pareto\.json|-NNNN"):
        checkpoints_to_score(selection, pareto)


def test_broken_validation_metrics_only_lose_the_rank() -> None:
    assert validation_ranks('{"gate_auc": 0.7, "fail_to_pass_count": 3}') == (0.7, 3)
    for broken in (None, "{", '{"gate_auc": 1.5, "fail_to_pass_count": true}', '{"gate_auc": NaN}'):
        assert validation_ranks(broken) == (None, None)
