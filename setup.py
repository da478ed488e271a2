"""Puts the repository's folders into the wheel. pyproject.toml contains the other settings."""

from setuptools import find_packages, setup

# Folders that are not Python packages. trainyard/project.py finds them.
FOLDERS = {"trainyard.cloud-init": "cloud-init", "trainyard.stacks": "stacks"}

setup(
    packages=[*find_packages(include=["trainyard*", "components*", "yard*", "offline*"]), *FOLDERS],
    package_dir=FOLDERS,
    package_data={"": ["**/*", "**/.*", "**/.*/**/*"]},
    exclude_package_data={"": ["**/*.pyc"]},
)
