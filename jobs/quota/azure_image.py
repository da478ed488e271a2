"""Whether Azure still offers the image of a stack in its region, from `az vm image list`.

Publishers withdraw old versions from the marketplace; then Azure creates no machine from them ("PlatformImageNotFound",
hashicorp/packer issue 10600, read 2026-11-22), while existing machines keep running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from components.catalog import images
from components.platforms.azure.spec import Spec

_SHOWN = 3


def withdrawn(platform: Mapping[str, Any], run: Callable[[Sequence[str]], Any]) -> str | None:
    """Return why no machine can be created from the stack's image, or None if Azure offers it.

    `platform` is the stack file's section, `run` gives the parsed JSON of a command. Custom images are not looked up.
    """
    spec = Spec.model_validate(platform)
    if spec.custom_image is not None:
        return None
    publisher, offer, sku, version = spec.image_reference(str(images()[spec.image].reference)).split(":")
    where = ["--location", spec.region, *(["--subscription", spec.subscription] if spec.subscription else [])]
    what = ["--publisher", publisher, "--offer", offer, "--sku", sku, "--all"]
    # az matches parts of names, so other skus are among the answers.
    rows = [row for row in run(["az", "vm", "image", "list", *what, *where, "--output", "json"]) if row["sku"] == sku]
    offered = sorted((str(row["version"]) for row in rows), key=_order)
    if version in offered:
        return None
    newest = ", ".join(offered[-_SHOWN:]) or "none"
    return (
        f"Azure offers no version {version} of the image {publisher}:{offer}:{sku} in {spec.region}, so no machine can "
        "be created from it. Fix: set cluster.platform.image_version to a version that is offered (the newest: "
        f"{newest}); every machine of an existing cluster is then replaced"
    )


def _order(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")]
