"""Errors of sandboxes that agents open."""

from __future__ import annotations


class BoxError(Exception):
    """A sandbox did not start, or not do what it must; the text says which, and why."""


class ImageError(BoxError):
    """An image is missing, and cannot be pulled; the text says which, and why."""
