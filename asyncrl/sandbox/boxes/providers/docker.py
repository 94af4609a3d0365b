"""Sandboxes of Docker on this machine."""

from __future__ import annotations

from asyncrl.sandbox.boxes.container_box import ContainerProvider


class DockerBoxes(ContainerProvider):
    """Containers of `docker`."""

    kind = "docker"
    controllers = "{{if .MemoryLimit}}memory {{end}}{{if .PidsLimit}}pids{{end}}"
