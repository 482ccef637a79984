"""What plugins' answers do to the played runtime's containers (pure): merging, conflicts, updates to be applied.

Source: containerd/nri pkg/adaptation/result.go as told in interfaces.md 1.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodecpu.proto import nri_pb2


class PluginConflict(Exception):
    """Two plugins, or one that must not, changed the same thing: the request fails."""


class Merge:
    """The answers of all plugins to one request, in their order; ``own_id`` is the container it is about."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._owners: dict[tuple[str, str], str] = {}
        self.adjusted = nri_pb2.LinuxResources()
        self.env: dict[str, str | None] = {}
        self.annotations: dict[str, str | None] = {}
        self.updates: dict[str, nri_pb2.ContainerUpdate] = {}

    def adjust(self, plugin: str, adjustment: nri_pb2.ContainerAdjustment) -> None:
        """Add an adjustment of the container being created. Raises PluginConflict."""
        self._claim(plugin, self._own_id, fields_set(adjustment.linux.resources))
        self.adjusted.MergeFrom(adjustment.linux.resources)
        for variable in adjustment.env:
            removed = variable.key.startswith("-")
            self.env[variable.key.removeprefix("-")] = None if removed else variable.value
        for key, value in adjustment.annotations.items():
            removed = key.startswith("-")
            self.annotations[key.removeprefix("-")] = None if removed else value

    def update(self, plugin: str, updates: Iterable[nri_pb2.ContainerUpdate], *, creating: bool) -> None:
        """Add updates of containers. Raises PluginConflict, also for the container being created."""
        for update in updates:
            if creating and update.container_id == self._own_id:
                raise PluginConflict(f"plugin {plugin!r} asked update of container being created {self._own_id!r}")
            try:
                self._claim(plugin, update.container_id, fields_set(update.linux.resources))
            except PluginConflict:
                if not update.ignore_failure:
                    raise
                continue
            known = self.updates.setdefault(
                update.container_id, nri_pb2.ContainerUpdate(container_id=update.container_id)
            )
            known.linux.resources.MergeFrom(update.linux.resources)
            known.ignore_failure = update.ignore_failure

    def _claim(self, plugin: str, container_id: str, fields: Iterable[str]) -> None:
        for field in fields:
            owner = self._owners.setdefault((container_id, field), plugin)
            if owner != plugin:
                raise PluginConflict(
                    f"plugins {owner!r} and {plugin!r} both tried to set {field} of container {container_id!r}"
                )


def with_edits(env: Iterable[str], edits: Mapping[str, str | None]) -> list[str]:
    """Return an environment with variables set or (None) taken away."""
    kept = [one for one in env if one.partition("=")[0] not in edits]
    return kept + [f"{key}={value}" for key, value in edits.items() if value is not None]


def fields_set(resources: nri_pb2.LinuxResources) -> tuple[str, ...]:
    """Return the names of the fields that resources set; an empty cpuset is none."""
    return (
        *(f"cpu.{field.name}" for field, _ in resources.cpu.ListFields()),
        *(f"memory.{field.name}" for field, _ in resources.memory.ListFields()),
        *(f"unified.{key}" for key in resources.unified),
    )
