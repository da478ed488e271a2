"""How a group's machines are bought and what that does to their life. Pure: a table of Compute Engine's rules."""

from __future__ import annotations

from dataclasses import dataclass

from components.platforms.gcp.families import Family


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a stack asks for one group."""

    kind: str
    """on_demand, spot or reservation."""
    reservation: str | None = None
    compact: bool = False


@dataclass(frozen=True, kw_only=True)
class Procurement:
    """Scheduling of a machine, in the API's own words. None: not said to the API."""

    provisioning_model: str
    on_host_maintenance: str
    automatic_restart: bool
    preemptible: bool = False
    termination_action: str | None = None
    reservation: str | None = None


def procurement(family: Family, gpus: int, wish: Wish) -> Procurement:
    """Return how machines of a family are bought. The wish is one that the rules let through."""
    # A GPU's memory cannot move to another host, nor can a machine that must stay beside its neighbours.
    stays = gpus > 0 or wish.compact
    maintenance = "TERMINATE" if stays else "MIGRATE"
    if wish.kind == "spot":
        # STOP keeps the disk, the name and the addresses: a later `pulumi up --refresh` starts the same node again.
        return Procurement(
            provisioning_model="SPOT",
            on_host_maintenance="TERMINATE",
            automatic_restart=False,
            preemptible=True,
            termination_action="STOP",
        )
    if wish.kind == "reservation" and family.dense_reservations:
        return Procurement(
            provisioning_model="RESERVATION_BOUND",
            on_host_maintenance="TERMINATE",
            automatic_restart=True,
            termination_action="DELETE",
            reservation=wish.reservation,
        )
    return Procurement(
        provisioning_model="STANDARD",
        on_host_maintenance=maintenance,
        # Restarting elsewhere would leave the compact group; what Google's own toolkit does.
        automatic_restart=not wish.compact,
        reservation=wish.reservation if wish.kind == "reservation" else None,
    )
