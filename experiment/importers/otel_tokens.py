"""What the attributes of an OpenTelemetry GenAI span say about the tokens of its call."""

from __future__ import annotations

import re
from dataclasses import dataclass

from experiment.errors import TraceImportError
from experiment.importers.base import Log, Options
from experiment.importers.json_fields import Fields
from experiment.strict_json import shown

INPUT = ("gen_ai.usage.input_tokens",)
CACHE_READ = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.cached_input_tokens",
    "cache_read_input_tokens",
    "cached_input_tokens",
)
CACHE_CREATION = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "cache_creation_input_tokens",
)
PROVIDER = ("gen_ai.provider.name", "gen_ai.system")
MODEL = ("gen_ai.response.model", "gen_ai.request.model")

EITHER = "pass --input-tokens=inclusive, or --input-tokens=exclusive"


@dataclass(frozen=True, slots=True)
class Span:
    """A span's fields, and those of its attributes that are asked for."""

    fields: Fields
    attributes: dict[str, Fields]

    @classmethod
    def of(cls, fields: Fields) -> Span:
        """The span with these fields."""
        attributes: dict[str, Fields] = {}
        for element in fields.items("attributes") or []:
            if not isinstance(element, dict):
                raise fields.bad("attributes", f"holds {shown(element)}, not an object")
            attribute = Fields(element, fields.where, "attribute ")
            key = attribute.needed_text("key")
            if key in attributes:
                raise fields.bad("attributes", f"names {shown(key)} twice")
            value = attribute.fields("value")
            attributes[key] = Fields(value.members if value else {}, fields.where, f"{key}.")
        return cls(fields, attributes)

    def text(self, *names: str) -> str | None:
        """The first of these attributes that is there."""
        for name in names:
            value = self.attributes[name].text("stringValue") if name in self.attributes else None
            if value:
                return value
        return None

    def count(self, names: tuple[str, ...]) -> int | None:
        """A number of tokens under any of these names; JSON holds 64-bit integers as strings."""
        found = [self._count(name) for name in names if name in self.attributes]
        counts = {count for count in found if count is not None}
        if len(counts) > 1:
            told = " and ".join(name for name in names if name in self.attributes)
            raise self.fields.bad("attributes", f"{told} differ")
        return counts.pop() if counts else None

    def missing(self, names: tuple[str, ...]) -> TraceImportError:
        """What to raise where none of these attributes is there."""
        return TraceImportError(f"no attribute {names[0]}", where=self.fields.where)

    def _count(self, name: str) -> int | None:
        value = self.attributes[name]
        if not value.members:
            return None
        digits = value.members.get("intValue")
        if isinstance(digits, str):
            if not re.fullmatch(r"[0-9]{1,19}", digits):
                raise value.bad("intValue", f"{shown(digits)} is not a number of tokens")
            return Fields({"intValue": int(digits)}, value.where, value.path).count("intValue")
        if digits is None:
            raise self.fields.bad("attributes", f"{name} is not an intValue")
        return value.count("intValue")


class InputTokens:
    """Decides whether an exporter's input tokens include the cached ones.

    The convention says that they do; some exporters copy Anthropic's count, which does not.
    """

    def __init__(self, options: Options, log: Log) -> None:
        self._stated = options.input_tokens
        self._log = log
        self._inclusive_at: str | None = None
        self._exclusive_at: str | None = None

    def split(self, span: Span) -> tuple[int | None, int]:
        """Depth (None if the span has no cached count) and total of a call's prompt.

        Raises:
            TraceImportError: a count is missing, or the input tokens could be of both kinds.
        """
        tokens = span.count(INPUT)
        if tokens is None:
            raise span.missing(INPUT)
        read, written = span.count(CACHE_READ), span.count(CACHE_CREATION)
        if read is None:
            return None, tokens + ((written or 0) if self._stated == "exclusive" else 0)
        if not self._exclusive(span, tokens, read, written):
            return read, tokens
        if written is None:
            raise span.missing(CACHE_CREATION)
        return read, tokens + read + written

    def _exclusive(self, span: Span, tokens: int, read: int, written: int | None) -> bool:
        where = span.fields.where
        if self._stated:
            if self._stated == "inclusive" and read > tokens:
                raise TraceImportError(
                    f"{read} cached tokens are more than the {tokens} input tokens, which do not "
                    "include them as --input-tokens=inclusive says",
                    where=where,
                )
            self._log.assume(f"--input-tokens={self._stated}: {MEANINGS[self._stated]}")
            return self._stated == "exclusive"
        if read > tokens:
            self._exclusive_at = self._exclusive_at or where
            self._log.assume(f"{MEANINGS['exclusive']}: a call has fewer input than cached tokens")
        elif read or written != 0:  # with neither, both meanings give the same
            if _counts_like_anthropic(span):
                raise TraceImportError(
                    "gen_ai.usage.input_tokens may include the cached tokens or not: provider "
                    "anthropic counts without them, the convention with them",
                    where=where,
                    hint=EITHER,
                )
            self._inclusive_at = self._inclusive_at or where
            self._log.assume(f"{MEANINGS['inclusive']}, as the convention says")
        if self._inclusive_at and self._exclusive_at:
            raise TraceImportError(
                "gen_ai.usage.input_tokens exclude the cached tokens in the call at "
                f"{self._exclusive_at}, and may include them in the call at {self._inclusive_at}",
                where=where,
                hint=EITHER,
            )
        return read > tokens


MEANINGS = {
    "inclusive": "input tokens include cached ones",
    "exclusive": "input tokens exclude cached ones",
}


def _counts_like_anthropic(span: Span) -> bool:
    """Whether the provider's own count leaves cached tokens out: Anthropic, and who serves it."""
    names = (span.text(*PROVIDER), span.text(*MODEL))
    return any("anthropic" in name.lower() or "claude" in name.lower() for name in names if name)
