"""What pyproject.toml cannot say: model configs, sheets and the default profile lie at the top of a checkout,
and inside the package ``spec`` where it is installed (spec.files)."""

from setuptools import find_packages, setup

SHIPPED = {"spec.shipped.configs": "configs", "spec.shipped.prof_data": "prof_data"}
OURS = ("spec", "ops", "profdb", "profiler", "solver", "workload", "runner", "pss")

setup(
    packages=[*find_packages(include=[name for one in OURS for name in (one, f"{one}.*")]), *SHIPPED],
    package_dir=SHIPPED,
    package_data={
        "": ["py.typed", *(f"**/*.{ending}" for ending in ("html", "j2", "css", "js", "json", "po", "toml"))],
        "spec.shipped.configs": ["**/*"],
        "spec.shipped.prof_data": ["*.pt", "*.md", "NOTICE"],
    },
)
