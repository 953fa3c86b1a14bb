"""Whether what an archive tells people is what its data say: report, guide, claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

from experiment import claims as claiming
from experiment import handoff_guide, report, report_data
from experiment.archive_manifest import Manifest
from experiment.claims import Claim
from experiment.crate import METADATA
from experiment.errors import ArchiveError
from experiment.verify_files import IMAGE, read_json
from experiment.verify_tables import close

CLAIMS = "claims.toml"
GUIDE = "REPRODUCE.md"
REPORT = "report.html"


def page(top: Path) -> str:
    """Check that the report is what this program makes of the results.

    Its figures may differ by what sums in another order make of them.

    Args:
        top: the archive's top folder.

    Returns:
        what was checked, as a sentence.

    Raises:
        ArchiveError: a figure or a text is another one.
        ReportError: it is no report.
    """
    found = (top / REPORT).read_text(encoding="utf-8")
    made = report.render(report_data.load(top / "results"))
    figures, wanted = report.figures_in(found), report.figures_in(made)
    if found == made:
        return f"made anew, it is the same, {len(figures)} figures and every text"
    for key in sorted(figures.keys() | wanted.keys()):
        if not close(figures.get(key), wanted.get(key)):
            raise ArchiveError(f"the data of its figure {key} are not those of the results")
    for one, other in zip(_rest(found), _rest(made), strict=False):
        if one != other:
            raise ArchiveError(f"it says {_difference(one, other)}")
    if len(_rest(found)) != len(_rest(made)):
        raise ArchiveError("it is longer or shorter than the results make it")
    return f"{len(figures)} figures are those of the results, and every text"


def claimed(top: Path) -> str:
    """Run the query of every claim, and check that the claims are those that the results support.

    Raises:
        ArchiveError: a query gives another value, or a claim is another one.
        ClaimError: the file or a query is malformed.
    """
    text = (top / CLAIMS).read_text(encoding="utf-8")
    claims = claiming.read(text, CLAIMS)
    results = top / "results"
    values = claiming.values(results, claims)
    for claim in claims:
        if not claim.is_reproduced_by(values[claim.key]):
            raise ArchiveError(
                f"{claim.key}: its query gives {values[claim.key]}, the claim says {claim.expected}"
            )
    _compare(claims, claiming.make(results))
    if claiming.write(claims) != text:
        raise ArchiveError("it is not written as handoff writes it")
    return f"{len(claims)} claims: each query gives what is claimed"


def guide(top: Path, manifest: Manifest) -> str:
    """Check that ``REPRODUCE.md``, which a reader follows, is the one that this program writes.

    Raises:
        ArchiveError: it is another one.
    """
    code, source = read_json(top / "repository.json"), read_json(top / "source.json")
    packed = handoff_guide.Packed(
        name=manifest.name,
        commit=f"{code['commit']}-dirty" if code["dirty"] else str(code["commit"]),
        source=f"source/{source['file']}",
        image=IMAGE if (top / IMAGE).is_file() else None,
        size_bytes=sum(
            entry.size_bytes for entry in manifest.files if entry.path not in (GUIDE, METADATA)
        ),
    )
    claims = claiming.read((top / CLAIMS).read_text(encoding="utf-8"), CLAIMS)
    wanted = handoff_guide.render(top / "results", packed, claims).splitlines()
    found = (top / GUIDE).read_text(encoding="utf-8").splitlines()
    for number, (one, other) in enumerate(zip(found, wanted, strict=False), 1):
        if one != other:
            raise ArchiveError(f"line {number} says {_difference(one, other)}")
    if len(found) != len(wanted):
        raise ArchiveError(f"it has {len(found)} lines for {len(wanted)}")
    return f"its {len(found)} lines are what this program writes"


def _compare(found: Sequence[Claim], made: Sequence[Claim]) -> None:
    wanted = {claim.key: asdict(claim) for claim in made}
    for claim in found:
        if claim.key not in wanted:
            raise ArchiveError(f"{claim.key}: the results do not support such a claim")
        for name, value in wanted[claim.key].items():
            if not close(getattr(claim, name), value):
                raise ArchiveError(f"{claim.key}: its {name} is not the one of these results")
    for missing in wanted.keys() - {claim.key for claim in found}:
        raise ArchiveError(f"{missing}: this claim of the results is missing")
    if [claim.key for claim in found] != list(wanted):
        raise ArchiveError("the claims are not in order")


def _difference(found: str, made: str) -> str:
    """Where two texts begin to differ, as the end of a sentence."""
    pairs = enumerate(zip(found, made, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(found), len(made)))
    start = max(0, same - 20)
    one, other = (text[start : same + 60].strip() for text in (found, made))
    return f"{one!r} where the results give {other!r}"


class _Texts(HTMLParser):
    """Collects everything that a page holds but the data of its figures."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = dict(attrs).get("id") or ""
        self._in_data = tag == "script" and name.startswith(report.DATA)
        self.found.append(self.get_starttag_text() or tag)

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False
        self.found.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self._in_data:
            self.found.append(data)

    def handle_comment(self, data: str) -> None:
        self.found.append(data)

    def handle_decl(self, decl: str) -> None:
        self.found.append(decl)

    def handle_pi(self, data: str) -> None:
        self.found.append(data)

    def unknown_decl(self, data: str) -> None:
        self.found.append(data)


def _rest(text: str) -> list[str]:
    reader = _Texts()
    reader.feed(text)
    reader.close()
    return reader.found
