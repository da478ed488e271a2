"""Tests for the rejection of a smaller disk for shared files."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from components.platforms.base import INPUT, refuse_smaller
from trainyard.errors import PlatformError


def change(old: dict[str, Any], new: dict[str, Any]) -> pulumi.ResourceHookArgs:
    return pulumi.ResourceHookArgs("urn", "", "c", "trainyard:index:P", new_inputs=new, old_inputs=old)


def test_a_smaller_disk_is_refused_with_both_sizes() -> None:
    with pytest.raises(PlatformError, match=r"size_gib: the disk has 4096 GiB and cannot shrink to 1024 GiB"):
        refuse_smaller(change({INPUT: 4096.0}, {INPUT: 1024.0}))


@pytest.mark.parametrize(
    ("old", "new"), [({INPUT: 1024.0}, {INPUT: 4096.0}), ({}, {INPUT: 1024.0}), ({INPUT: 1024.0}, {})]
)
def test_any_other_change_is_accepted(old: dict[str, Any], new: dict[str, Any]) -> None:
    refuse_smaller(change(old, new))
