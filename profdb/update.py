"""New samples into a profile file: read, merge, fit and write as one step that nobody else can come between."""

from pathlib import Path

from profdb.refit import with_fits
from profdb.sample import ProfileDatabase
from profdb.store.data_file import load_profile, save_profile
from profdb.store.merge import Merged, merge
from profdb.store.sole_writer import sole_writer


def merged_into(into: Path, new: ProfileDatabase) -> Merged:
    """Merge ``new`` into the profile at ``into`` (made when absent), with new fits; what came of it.

    Raises ProfileError, and leaves the file as it was, when it is of another GPU, cannot be read or written.
    """
    with sole_writer(into):
        merged = (
            merge(load_profile(into), new)
            if into.exists()
            else Merged(profile=new, differences=(), repeats=0)
        )
        fitted = with_fits(merged.profile)
        save_profile(into, fitted)
    return Merged(profile=fitted, differences=merged.differences, repeats=merged.repeats)
