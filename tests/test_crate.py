"""The metadata of an archive as a Process Run Crate."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rocrate.rocrate import ROCrate

from experiment import crate
from experiment.crate import Part, Run, make

RUN = Run(
    name="2026-11-30_02-41-05_smoke-handoff",
    run_id="2026-11-30_02-41-05_host_smoke",
    description="What is in it.",
    command="what was done",
    started=datetime(2026, 11, 30, 2, 41, 5, tzinfo=UTC),
    finished=datetime(2026, 11, 30, 2, 43, 0, tzinfo=UTC),
    commit="a" * 40,
    llama_cpp="c" * 40,
    source="source/llama.tar.gz",
    image=None,
)
PARTS = {
    path: Part(f"{number:064x}", number)
    for number, path in enumerate(
        [
            "REPRODUCE.md",
            "export/run.parquet",
            "export/steps.jsonl",
            "repository/a name.py",
            "report.html",
            "results/results.duckdb",
            "results/trace.jsonl",
            "source/llama.tar.gz",
        ]
    )
}


def graph(run: Run = RUN) -> dict[str, Any]:
    return {entity["@id"]: entity for entity in json.loads(make(run, PARTS))["@graph"]}


def test_the_same_run_gives_the_same_bytes() -> None:
    assert make(RUN, PARTS) == make(RUN, dict(reversed(PARTS.items())))
    assert make(RUN, PARTS).endswith(b"\n")


def test_it_is_a_process_run_crate() -> None:
    found = json.loads(make(RUN, PARTS))
    assert found["@context"] == "https://w3id.org/ro/crate/1.3/context"
    entities = graph()
    descriptor = entities["ro-crate-metadata.json"]
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.3"}
    root = entities["./"]
    assert root["conformsTo"] == {"@id": "https://w3id.org/ro/wfrun/process/0.6"}
    assert entities["https://w3id.org/ro/wfrun/process/0.6"]["version"] == "0.6"
    assert root["license"] == {"@id": "https://spdx.org/licenses/MIT"}
    assert root["datePublished"] == "2026-11-30T02:43:00+00:00"
    assert (root["name"], root["description"]) == (RUN.name, RUN.description)
    assert root["mentions"] == [{"@id": f"#{RUN.run_id}"}]


def test_the_run_is_told() -> None:
    entities = graph()
    action = entities[f"#{RUN.run_id}"]
    assert action["@type"] == "CreateAction"
    assert action["startTime"] == "2026-11-30T02:41:05+00:00"
    assert action["endTime"] == "2026-11-30T02:43:00+00:00"
    assert action["actionStatus"] == {"@id": "http://schema.org/CompletedActionStatus"}
    assert [item["@id"] for item in action["object"]] == [
        "results/trace.jsonl",
        "source/llama.tar.gz",
    ]
    assert [item["@id"] for item in action["result"]] == [
        "export/run.parquet",
        "export/steps.jsonl",
        "report.html",
        "results/results.duckdb",
    ]
    tools = [entities[item["@id"]] for item in action["instrument"]]
    assert [(tool["name"], tool["softwareVersion"]) for tool in tools] == [
        ("prefix-replay", "a" * 40),
        ("llama.cpp", "c" * 40),
    ]
    assert "agent" not in action
    assert not [e for e in entities.values() if e["@type"] in ("Person", "Organization")]


def test_every_file_is_a_part_with_digest_and_size() -> None:
    entities = graph()
    parts = {item["@id"] for item in entities["./"]["hasPart"]}
    assert parts == {path.replace(" ", "%20") for path in PARTS} | {"manifest.json"}
    for path, part in PARTS.items():
        entity = entities[path.replace(" ", "%20")]
        assert entity["@type"] == "File"
        assert entity["sha256"] == part.sha256
        assert entity["contentSize"] == str(part.size_bytes)
    # Its digest would have to be in itself.
    assert "sha256" not in entities["manifest.json"]


def test_every_reference_leads_somewhere() -> None:
    entities = graph(replace(RUN, image="sha256:1"))

    def references(value: object) -> set[str]:
        if isinstance(value, list):
            return {found for item in value for found in references(item)}
        return {value["@id"]} if isinstance(value, dict) else set()

    told = {
        found
        for entity in entities.values()
        for key, value in entity.items()
        if key != "@id"
        for found in references(value)
    }
    assert told - set(entities) == {
        "http://schema.org/CompletedActionStatus",
        "https://w3id.org/ro/crate/1.3",
        "https://w3id.org/ro/terms/workflow-run#DockerImage",
    }


def test_image_is_told_where_there_is_one() -> None:
    found = json.loads(make(replace(RUN, image="sha256:1"), PARTS))
    assert found["@context"] == [
        "https://w3id.org/ro/crate/1.3/context",
        "https://w3id.org/ro/terms/workflow-run/context",
    ]
    entities = {entity["@id"]: entity for entity in found["@graph"]}
    assert entities[f"#{RUN.run_id}"]["containerImage"] == {"@id": "#image"}
    assert entities["#image"]["identifier"] == "sha256:1"
    assert "#image" not in graph()


@pytest.mark.parametrize("image", [None, "sha256:1"])
def test_rocrate_reads_it(tmp_path: Path, image: str | None) -> None:
    (tmp_path / crate.METADATA).write_bytes(make(replace(RUN, image=image), PARTS))
    read = ROCrate(tmp_path)
    assert read.version == "1.3"
    assert read.name == RUN.name
    assert {entity.id for entity in read.data_entities} >= {"report.html", "manifest.json"}
    (action,) = read.get_by_type("CreateAction")
    assert [tool["name"] for tool in action["instrument"]] == ["prefix-replay", "llama.cpp"]
    assert action["result"][-1]["sha256"] == PARTS["results/results.duckdb"].sha256
