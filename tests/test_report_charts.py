from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from canned import canned_run, measurement, run_record
from canned_report import EVIL, whole_run

from experiment.records import StepRecord
from experiment.report_charts import charts
from experiment.report_data import load
from experiment.report_style import COLOURS, DASHES, SHAPES, axis
from experiment.store import Store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return charts(load(whole_run(tmp_path_factory.mktemp("results") / "run", EVIL)))


def scale_of(spec: dict[str, Any], channel: str) -> dict[str, Any]:
    """The first scale of the channel, wherever in the layers it stands."""
    layers = [spec]
    while layers:
        layer = layers.pop(0)
        found: dict[str, Any] = layer.get("encoding", {}).get(channel, {})
        if "scale" in found:
            return dict(found["scale"])
        layers += layer.get("layer", [])
    raise AssertionError(f"no scale of {channel}")


def test_a_chart_a_task_and_one_for_everything_else(whole: dict[str, Any]) -> None:
    assert {key: len(specs) for key, specs in whole.items()} == {
        "prefill_by_step": 2,
        "prefill_by_depth": 1,
        "install_by_depth": 1,
        "ratios": 1,
        "time_parts": 1,
        "task_wall": 1,
    }
    assert [spec["title"] for spec in whole["prefill_by_step"]] == [EVIL, "files"]


def test_the_charts_draw_the_rows_that_stand_in_the_page(whole: dict[str, Any]) -> None:
    for specs in whole.values():
        for spec in specs:
            text = json.dumps(spec)
            assert '"name": "rows"' in text
            assert '"url"' not in text
            # Vega-Lite itself accepts it.
            vl_convert.vegalite_to_vega(
                {**spec, "datasets": {**spec.get("datasets", {}), "rows": []}}
            )


def test_tasks_share_their_axis_so_that_they_can_be_compared(whole: dict[str, Any]) -> None:
    first, second = (scale_of(spec, "y") for spec in whole["prefill_by_step"])
    assert first == second
    # fake of T(64, 1024) + 3 = 45 ms; full of 8 * (T(256, 8192) + 3), T being 2 + 128 + 256.
    assert first["domain"] == [45 / 1.15, 8 * 389 * 1.15]
    assert first["type"] == "log"


def test_variants_differ_in_colour_and_shape_and_dash() -> None:
    for style in (COLOURS, SHAPES, DASHES):
        assert list(style) == ["fake", "restored", "full", "arithmetic"]
        assert len({json.dumps(value) for value in style.values()}) == 4


def test_only_the_variants_that_were_measured_are_in_the_legend(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", run_record()) as store:
        store.add_steps([StepRecord("a", 1, 1000, line=1)])
        store.record(measurement("a", 1, "fake", prompt_n=10))
        store.record(measurement("a", 1, "arithmetic", 0, 9.0, 0.0))
    specs = charts(load(tmp_path / "run"))
    assert scale_of(specs["prefill_by_step"][0], "color")["domain"] == ["fake", "arithmetic"]
    assert specs["ratios"] == specs["task_wall"] == ()


def test_the_noise_floor_and_the_medians_stand_beside_the_ratios(tmp_path: Path) -> None:
    (spec,) = charts(load(canned_run(tmp_path / "run")))["ratios"]
    values = [row for rows in spec["datasets"].values() for row in rows]
    # The A/A interval is 0.95 to 1.05: 0.05 from 1.
    assert {"kind": "noise floor", "left": 0.95, "right": 1.05} in values
    medians = {row["kind"]: (row["left"], row["low"], row["high"]) for row in values if "y" in row}
    assert medians == {
        "fake / restored": (1.0, 0.8, 1.1),
        "control / fake": (1.0, 0.95, 1.05),
    }


def test_the_lines_of_the_model_are_its_terms(whole: dict[str, Any]) -> None:
    (spec,) = whole["prefill_by_depth"]
    points = [row for rows in spec["datasets"].values() for row in rows]
    assert {point["new"] for point in points} == {64, 256}
    for point in points:
        ms = 2 + 0.5 * point["new"] + point["new"] * point["depth"] / 8192
        assert point["ms"] == pytest.approx(ms, rel=1e-6)


@pytest.mark.parametrize(
    ("values", "is_log", "domain"),
    [
        ([10.0, 79.0], False, [0, 1.04 * 79.0]),
        ([10.0, 80.0], True, [10 / 1.15, 80 * 1.15]),
        ([0.0, 80.0], False, [0, 1.04 * 80.0]),  # a logarithm has no 0
        ([0.0], False, [0, 1]),
    ],
)
def test_an_axis_is_logarithmic_where_values_differ_eightfold(
    values: list[float], is_log: bool, domain: list[float]
) -> None:
    found = axis("ms", values)
    assert found.is_log == is_log
    assert found.scale.to_dict()["domain"] == domain


def test_ticks_of_a_logarithm_are_round_and_few() -> None:
    ticks = axis("ms", [0.006, 1.4]).y("value").to_dict()["axis"]["values"]
    assert ticks == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    ticks = axis("ms", [5.0, 6000.0]).y("value").to_dict()["axis"]["values"]
    assert ticks == [10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0]


def test_where_a_value_stands() -> None:
    assert axis("ms", [1.0, 4.0]).place(1.0) == 0.25
    assert axis("ms", [1.0, 100.0]).place(10.0) == pytest.approx(0.5)


def test_each_variant_has_its_dash_in_the_lines(whole: dict[str, Any]) -> None:
    lines = whole["prefill_by_step"][0]["layer"][0]
    conditions = lines["encoding"]["strokeDash"]["condition"]
    assert {each["test"]: each["value"] for each in conditions} == {
        f"datum.variant === '{variant}'": dash for variant, dash in DASHES.items()
    }
