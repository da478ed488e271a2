"""The golden image: one Debian 13 disk and its kernel, built once and shared by every local machine."""

from components.platforms.local.image.cache import GoldenImage, ensure_image, find_image, image_id

__all__ = ["GoldenImage", "ensure_image", "find_image", "image_id"]
