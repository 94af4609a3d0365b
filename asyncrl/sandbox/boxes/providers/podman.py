"""Sandboxes of Podman on this machine."""

from __future__ import annotations

from asyncrl.sandbox.boxes.container_box import ContainerProvider


class PodmanBoxes(ContainerProvider):
    """Containers of `podman`."""

    kind = "podman"
    controllers = "{{range .Host.CgroupControllers}}{{.}} {{end}}"
