"""A CSV file of published runs, as benchmarks of one kind of operation are given it after --runs."""

import io
from pathlib import Path

import pandas as pd

from spec.errors import ProfileError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, read_file_text


def read_table(path: Path) -> pd.DataFrame:
    """The file's rows, a column a name. ProfileError, in one line, for what is missing, no text or no table."""
    try:
        return pd.read_csv(io.StringIO(read_file_text(path, MOST_MEASURED_BYTES)))
    except UnreadableFileError as error:
        raise ProfileError(f"--runs {path}: {error}") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ProfileError(f"--runs {path}: not a CSV file ({' '.join(str(error).split())})") from error
