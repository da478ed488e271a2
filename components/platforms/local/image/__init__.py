"""The golden image: a Debian 13 disk and its kernel, which all local machines share."""

from components.platforms.local.image.cache import (
    GoldenImage,
    ensure_image,
    find_image,
    hold_image,
    image_cache,
    require_image,
    unused_images,
)
from components.platforms.local.image.recipe import image_id

__all__ = [
    "GoldenImage",
    "ensure_image",
    "find_image",
    "hold_image",
    "image_cache",
    "image_id",
    "require_image",
    "unused_images",
]
