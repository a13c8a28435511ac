"""A page as one HTML file in which everything lies that it shows (jinja2, an optional extra)."""

from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from solver.report.sections import Page
from spec.errors import ConfigError
from spec.files import atomic_file, folder_of_results
from spec.frameworks import STRATEGIES
from spec.program.command import DISTRIBUTION, VERSION_LINE

FILE = "index.html"
REPORT = f"write a page to DIR/{FILE} (needs jinja2)"


def check_report_requirements(folder: Path | None) -> None:
    """Raises ConfigError, before any work, where a page is requested and jinja2 is not installed."""
    if folder is not None and find_spec("jinja2") is None:
        raise ConfigError(
            where="--report",
            key="report",
            value=str(folder),
            allowed=f"needs jinja2: pip install '{DISTRIBUTION}[report]', or pip install jinja2",
        )


def report_file(folder: Path | None) -> dict[str, Path | None]:
    """Returns the file of --report where its folder exists, for spec.files.check_outputs. Raises ConfigError, before any
    work, where no page can be made."""
    check_report_requirements(folder)
    return {"--report": folder / FILE} if folder is not None and folder.is_dir() else {}


def write_page(page: Page, folder: Path) -> Path:
    """Writes the page as ``folder``/index.html, whole or not at all, and returns its path; the folder is made.

    Raises ExportError where it cannot be.
    """
    text = page_text(page)
    with folder_of_results(folder):
        path = folder / FILE
        with atomic_file(path) as handle:
            handle.write(text)
    return path


def page_text(page: Page) -> str:
    """Returns the HTML of a page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    files = PackageLoader("solver.report", "template")
    environment = Environment(
        loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"first_upper": first_upper, "sentence": sentence}
    script = environment.get_template("sorting.js").render()
    # No script but this one runs, whatever the names on the page hold.
    digest = b64encode(sha256(script.encode()).digest()).decode()
    template = environment.get_template("page.html")
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return template.render(page=page, date=date, version=VERSION_LINE, script=script, digest=digest) + "\n"


def first_upper(words: str) -> str:
    """Returns the words with a capital first letter."""
    return f"{words[:1].upper()}{words[1:]}"


def sentence(words: str) -> str:
    """Returns the words as a sentence; a plan's label at its start is unchanged."""
    first = words if words.split(" ", 1)[0] in STRATEGIES else first_upper(words)
    return first if first.endswith(".") else f"{first}."
