"""Files that come with the program: model configs and sheets (configs/), the default profile (prof_data/).

They lie at the top of a checkout, and inside the package where it is installed (pyproject.toml maps them there).
"""

import os.path
from importlib import resources
from pathlib import Path

CONFIGS = "configs"
INSTALLED = "shipped"


def shipped_folder() -> Path:
    """The folder that holds configs/ and prof_data/."""
    package = Path(str(resources.files("spec")))
    installed = package / INSTALLED
    return installed if os.path.isdir(installed) else package.parent


def shipped_config(path: Path) -> Path:
    """``path`` where it is there; else, for a relative one, the shipped file of that path
    (configs/70B_llama3.py) or, without a folder, the shipped model of that name (70B_llama3); ``path`` itself
    where nothing is."""
    if path.is_absolute() or os.path.exists(path):
        return path
    if len(path.parts) > 1:
        found = shipped_folder() / path
        return found if path.parts[0] == CONFIGS and ".." not in path.parts and found.is_file() else path
    named = [one for one in (shipped_folder() / CONFIGS).glob("*.*") if path.name in (one.name, one.stem)]
    return named[0] if len(named) == 1 else path
