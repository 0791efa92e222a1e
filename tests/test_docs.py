"""The documents: every link to a file of the repository, and to a heading in one, leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def links(text: str) -> list[str]:
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)", without_code(text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ +(.*?)\s*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> list[str]:
    dead = []
    for link in links(document.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            dead.append(link)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    assert dead_links(document) == []


def test_dead_links_are_found(tmp_path: Path):
    document = tmp_path / "a.md"
    document.write_text(
        "# A heading: `code`!\n[ok](a.md) [ok](#a-heading-code) [ok](https://example.org) `[not](one.md)`\n"
        "[no](b.md) [no](#b) [no](a.md#b)\n```\n# no heading\n[not](one.md)\n```\n",
        encoding="utf-8",
    )
    assert dead_links(document) == ["b.md", "#b", "a.md#b"]
