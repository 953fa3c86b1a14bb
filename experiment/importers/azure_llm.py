"""Azure LLM inference traces (AzurePublicDataset): CSV of requests without session or cache."""

from __future__ import annotations

from collections.abc import Iterator

from experiment.importers.base import Call, Context, Source
from experiment.importers.lines import csv_rows
from experiment.importers.probe import columns
from experiment.importers.single_requests import task_of

COLUMNS = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
IMAGES = "NumImages"
IMAGES_COUNTED = (
    "requests with images: their sizes are not in the log; ContextTokens are taken as they are, "
    "as text tokens"
)


class AzureLLMImporter:
    """Depth is not in the log; only ``--assume-cold`` makes a trace of it."""

    name = "azure_llm"
    what = "Azure LLM inference traces (CSV)"
    counts = False

    def recognise(self, source: Source) -> str | None:
        """CSV with the three columns that all releases have."""
        if set(columns(source)) >= COLUMNS:
            return "CSV with TIMESTAMP, ContextTokens and GeneratedTokens"
        return None

    def calls(self, source: Source, context: Context) -> Iterator[Call]:
        """The requests in the file's order."""
        for number, row in enumerate(csv_rows(source.path, context.progress)):
            total = row.needed_count("ContextTokens")
            output = row.needed_count("GeneratedTokens")
            if row.count(IMAGES):
                context.log.warn(IMAGES_COUNTED)
            yield Call(
                task_id=task_of(row, number, "azure", context.options, context.log),
                where=row.where,
                depth=None,
                total=total,
                output=output,
            )


IMPORTER = AzureLLMImporter()
