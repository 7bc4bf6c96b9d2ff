"""The grid of cells that stands for a card, on its map and in the partitioner: the same in both."""

from __future__ import annotations

from dataclasses import dataclass

from gpustreamlab.model import Device

NO_PARTITION_FILL = "#c3c9d0"
"""Colour of SMs in no partition, as on the map of the card; the style sheet has another for dark themes."""

_MOST_COLUMNS = 24  # So that a cell of the map has room for its id.
_FEWEST_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cells column by column, so that partitions are bands and their boundaries stand upright."""

    row_count: int
    """Cells of a column: a whole number of the device's smallest groups where it has such."""
    column_count: int
    """Columns; the last one may be shorter."""


def grid_of(device: Device, count: int = 0) -> Grid:
    """Return the grid that shows all SMs of a device.

    Parameters
    ----------
    device
        The card.
    count
        How many cells there are, where they are not as many as the device has SMs.

    Examples
    --------
    >>> grid_of(Device(name="laptop", sm_count=24))
    Grid(row_count=4, column_count=6)
    """
    step = 1 if device.sm_resource is None else device.sm_resource.group_sms
    row_count = -(-_FEWEST_ROWS // step) * step
    count = count or device.sm_count
    while -(-count // row_count) > _MOST_COLUMNS:
        row_count += step
    return Grid(row_count=row_count, column_count=-(-count // row_count))
