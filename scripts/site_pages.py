"""mkdocs hooks (mkdocs.yml): pages are in the order of the tables in README.md, and links to files outside docs/ become
text."""

import re
from pathlib import Path
from typing import Any

PAGE = re.compile(r"^\| \[[^\]]*\]\(([\w./-]+\.md)\) \|", re.MULTILINE)
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)]*\)")
LANGUAGES = {"": "English", "zh": "中文"}


def on_config(config: dict[str, Any]) -> dict[str, Any]:
    """The order of the pages: the list of each language, then those it names."""
    docs = Path(config["docs_dir"])
    nav = []
    for folder, language in LANGUAGES.items():
        index = docs / folder / "README.md"
        if index.exists():
            listed = [page for page in PAGE.findall(index.read_text(encoding="utf-8")) if not page.startswith("..")]
            nav.append({language: [(Path(folder) / page).as_posix() for page in ("README.md", *listed)]})
    config["nav"] = nav if len(nav) > 1 else nav[0][LANGUAGES[""]]
    return config


def on_page_markdown(markdown: str, page: Any, config: dict[str, Any], files: Any) -> str:
    """Files of the project that are no pages are named, as the site does not hold them; pages of the other
    language are.
    """
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent

    def kept(match: re.Match[str]) -> str:
        target = (here / match[0].rpartition("(")[2].rstrip(")").partition("#")[0]).resolve()
        return match[0] if target.is_relative_to(docs) else match[1]

    return OUTSIDE.sub(kept, markdown)
