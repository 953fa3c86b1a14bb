"""The claims that a run supports, worked out by hand from a small run."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from canned import STEPS, canned_measurements, canned_run, measurement, run_record

from experiment.claims import Claim, make, read, restated, values, write
from experiment.database import DATABASE, connect
from experiment.errors import StoreError
from experiment.records import Measurement, StepRecord
from experiment.store import Store

RULES = ("cached_wrong", "full_differs", "structure_differs", "read_too_little")


def recorded(folder: Path, rows: Iterable[Measurement]) -> Path:
    with Store.create(folder, run_record()) as store:
        store.add_steps(STEPS)
        for row in rows:
            store.record(row)
        store.set_status("finished")
    return folder


def faultless(row: Measurement) -> Measurement:
    """The row as a patched server answers it: what the canned rows leave out, and equal graphs."""
    if row.variant == "arithmetic" or row.status not in ("ok", "warmup"):
        return row
    if row.variant == "full":
        return replace(row, cache_n=0, n_kv=row.prompt_n)
    return replace(row, cache_n=row.depth, n_kv=3328, ubatch_n_kv=(1, 3328), kv_bytes=26_000_000)


def by_key(claims: Iterable[Claim]) -> dict[str, Claim]:
    return {claim.key: claim for claim in claims}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [faultless(row) for row in canned_measurements()]
    return recorded(tmp_path_factory.mktemp("results") / "run", rows)


@pytest.fixture(scope="module")
def claims(folder: Path) -> dict[str, Claim]:
    return by_key(make(folder))


def test_what_a_whole_run_supports(claims: dict[str, Claim]) -> None:
    assert list(claims) == [
        *("speedup", "fidelity", "noise", "arithmetic_error_pct"),
        *RULES,
        *("steps_measured", "steps_refused", "steps_invalid"),
        *("install_share_pct", "restore_ratio"),
        *("fake_prefill_s", "fake_ms_per_new_token"),
    ]
    assert [key for key, claim in claims.items() if not claim.judged_elsewhere] == [
        "fake_prefill_s",
        "fake_ms_per_new_token",
    ]


# fake 110 and 220, restored 100 and 240, full 1100 and 880; without the encoding fake 90 and 220,
# arithmetic 99 and 198. fake/restored 1.0, 1.1, 0.96, 0.8, 1.0: median 1, interval 0.8 to 1.1.
# control/fake 1.02, 1.0, 0.95, 0.95, 1.05: median 1, floor 0.05. Installs: fake 10 and 2,
# restored 5 and 6. New tokens 100 and 200: 1.1 ms each in both steps.
@pytest.mark.parametrize(
    ("key", "expected", "tolerance", "is_relative", "told"),
    [
        ("speedup", 1980 / 330, 0.3, True, "takes 6.00 times as long"),
        ("fidelity", 1.0, 1.1 - 0.8, False, "takes 1.0000 times as long"),
        ("noise", 1.0, 0.05, False, "takes 1.0000 times as long: median of 5 pairs"),
        ("arithmetic_error_pct", 100 * (297 / 310 - 1), 25.0, False, "off by -4.2 % in sum over 2"),
        ("cached_wrong", 0, 0.0, False, "(0 for full) is 0."),
        ("full_differs", 0, 0.0, False, "is not L + fake.prompt_n is 0."),
        ("structure_differs", 0, 0.0, False, "is 0."),
        ("read_too_little", 0, 0.0, False, "is 0."),
        ("steps_measured", 2, 0.0, False, "is 2 of 3."),
        ("steps_refused", 1, 0.0, False, "is 1."),
        ("steps_invalid", 0, 0.0, False, "is 0."),
        ("install_share_pct", 100 * 12 / 330, 100 * 12 / 330, False, "takes 3.64 % of"),
        ("restore_ratio", 11 / 12, 0.5, True, "takes 0.9 times as long"),
        ("fake_prefill_s", 0.33, 0.25, True, "takes 0.330 s in sum over 2 steps"),
        ("fake_ms_per_new_token", 1.1, 0.25, True, "takes 1.100 ms a new token"),
    ],
)
def test_a_claim_by_hand(
    claims: dict[str, Claim],
    key: str,
    expected: float,
    tolerance: float,
    is_relative: bool,
    told: str,
) -> None:
    claim = claims[key]
    assert claim.expected == pytest.approx(expected, rel=1e-12)
    assert isinstance(claim.expected, type(expected))
    assert claim.tolerance == round(tolerance, 4)
    assert claim.is_relative is is_relative
    assert told in claim.sentence
    assert claim.holds(claim.expected)


def test_why_names_the_figures_that_the_tolerance_is_made_of(claims: dict[str, Claim]) -> None:
    assert "noise floor (0.0500)" in claims["fidelity"].why
    assert "95 % interval (0.3000)" in claims["fidelity"].why
    assert "noise floor (0.0500)" in claims["noise"].why


def test_a_quiet_run_has_the_least_tolerance(tmp_path: Path) -> None:
    rows = [
        measurement("a", 1, variant, number, 100.0, 0.25, cache_n=1000, prompt_n=50, n_kv=1280)
        for number in range(3)
        for variant in ("fake", "control", "restored")
    ]
    claims = by_key(make(recorded(tmp_path, rows)))
    assert claims["fidelity"].tolerance == claims["noise"].tolerance == 0.02
    assert claims["install_share_pct"].tolerance == 1.0  # 0.25 of 99.75 is less
    assert claims["install_share_pct"].expected == pytest.approx(100 * 0.25 / 99.75)


def test_the_file_is_the_same_every_time_and_reads_back(folder: Path) -> None:
    first, second = make(folder), make(folder)
    assert write(first) == write(second)
    assert read(write(first), "claims.toml") == first


def test_plain_duckdb_answers_the_queries_of_the_file(folder: Path) -> None:
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        for claim in read(write(make(folder)), "claims.toml"):
            ((value,),) = connection.execute(claim.query).fetchall()
            assert claim.is_reproduced_by(value), claim.key


@pytest.mark.parametrize(
    ("key", "variant", "change"),
    [
        ("cached_wrong", "fake", "cache_n = 999"),
        ("cached_wrong", "control", "cache_n = NULL"),
        ("cached_wrong", "restored", "cache_n = 0"),
        ("cached_wrong", "full", "cache_n = 1"),
        # The row agrees with itself, but it is not what the step asks for.
        ("cached_wrong", "fake", "depth = 900, cache_n = 900"),
        ("full_differs", "full", "prompt_n = 1099"),
        ("full_differs", "fake", "prompt_n = 101"),
        ("read_too_little", "full", "n_kv = 1099"),
        ("read_too_little", "fake", "n_kv = 1099"),
        ("read_too_little", "control", "n_kv = NULL"),
        ("structure_differs", "fake", "ubatch_tokens = [99, 1]"),
        ("structure_differs", "fake", "ubatch_n_kv = [2, 3328]"),
        ("structure_differs", "restored", "graph_nodes = [701]"),
        ("structure_differs", "restored", "kv_bytes = 26000001"),
    ],
)
def test_one_row_that_breaks_a_rule_is_counted(
    folder: Path, claims: dict[str, Claim], tmp_path: Path, key: str, variant: str, change: str
) -> None:
    shutil.copy(folder / DATABASE, tmp_path)
    with connect(tmp_path / DATABASE, read_only=False) as connection:
        row = f"task_id = 'a' AND step = 1 AND round = 0 AND variant = '{variant}'"
        connection.execute(f"UPDATE measurement SET {change} WHERE {row}")
    rules = [claims[name] for name in RULES]
    assert values(tmp_path, rules) == {name: int(name == key) for name in RULES}


def test_invalid_steps_are_counted_apart_from_refused_ones(tmp_path: Path) -> None:
    reason = "cache_n is 2999, not 3000"
    rows = [
        measurement("a", 1, "fake", 0),
        measurement("a", 1, "fake", 1, status="invalid", error=reason),
        measurement("a", 2, "fake", 0, status="invalid", error=reason),
        measurement("b", 1, "fake", 0, status="invalid", error=reason),
        measurement("b", 1, "fake", 1, status="refused", error="too small"),
    ]
    claims = by_key(make(recorded(tmp_path, rows)))
    counts = [claims[f"steps_{name}"].expected for name in ("measured", "refused", "invalid")]
    assert counts == [1, 1, 1]


def test_a_run_of_fake_alone_gives_the_claims_it_can(tmp_path: Path) -> None:
    rows = [measurement("a", 1, "fake", 0, prompt_n=100, cache_n=1000, n_kv=1280)]
    assert list(by_key(make(recorded(tmp_path, rows)))) == [
        *("cached_wrong", "read_too_little"),
        *("steps_measured", "steps_refused", "steps_invalid", "install_share_pct"),
        *("fake_prefill_s", "fake_ms_per_new_token"),
    ]


def test_a_run_that_measured_nothing_claims_only_that(tmp_path: Path) -> None:
    claims = make(recorded(tmp_path, []))
    assert {claim.key: claim.expected for claim in claims} == {
        "steps_measured": 0,
        "steps_refused": 0,
        "steps_invalid": 0,
    }


def test_a_run_without_steps(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()):
        pass
    with pytest.raises(StoreError, match="no steps"):
        make(tmp_path)


def test_the_claims_of_a_part_expect_what_is_found_there(folder: Path) -> None:
    claims = make(folder)
    of_part = by_key(restated(claims, values(folder, claims, [("a", 1)])))
    assert of_part["speedup"].expected == 10.0
    assert of_part["speedup"].tolerance == 0.3
    assert of_part["steps_measured"].expected == 1
    nothing = by_key(restated(claims, values(folder, claims, [("b", 1)])))
    assert list(nothing) == ["steps_measured", "steps_refused", "steps_invalid"]
    assert nothing["steps_refused"].expected == 1


def test_several_rounds_of_full_must_all_agree(tmp_path: Path) -> None:
    rows = [faultless(row) for row in canned_measurements()]
    again = measurement("a", 1, "full", 1, 1100.0, prompt_n=1101, cache_n=0, n_kv=1101)
    assert by_key(make(recorded(tmp_path, [*rows, again])))["full_differs"].expected == 1


def test_a_step_far_down_the_trace(tmp_path: Path) -> None:
    with Store.create(tmp_path, run_record()) as store:
        store.add_steps([StepRecord("c", 7, 1 << 20)])
        store.record(
            measurement("c", 7, depth=1 << 20, cache_n=1 << 20, prompt_n=5, n_kv=(1 << 20) + 5)
        )
    claims = by_key(make(tmp_path))
    assert claims["cached_wrong"].expected == claims["read_too_little"].expected == 0


def test_a_canned_run_that_lacks_fields_is_not_called_faultless(tmp_path: Path) -> None:
    claims = by_key(make(canned_run(tmp_path)))
    # No row has a cache_n, the two of full have no n_kv, and the graphs of step a 2 differ.
    assert claims["cached_wrong"].expected == 18
    assert claims["read_too_little"].expected == 2
    assert claims["structure_differs"].expected == 1
