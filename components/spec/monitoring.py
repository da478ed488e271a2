"""The section `monitoring:` of a stack file."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from components.spec.model import Model
from trainyard.errors import RuleError

ADDRESS = r"^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,253}$"
WEBHOOK = r"^https?://[!-~]{1,2000}$"
EmailAddress = Annotated[
    str, Field(pattern=ADDRESS, description="must be an e-mail address", examples=["ops@example.org"])
]


class MailSpec(Model):
    """E-mail messages about alerts. The relay must accept them from the head without a password."""

    to: EmailAddress
    relay: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9.-]{1,253}:[0-9]{1,5}$",
            description="must be the host name and the port of a mail relay",
            examples=["mail.example.org:25"],
        ),
    ]
    """Host name and port of a mail relay."""
    sender: EmailAddress | None = None
    """The sender's address. Default: `to`."""


class MonitoringSpec(Model):
    """Metrics, alerts and their delivery. `true` and `false` turn them on and off with the default values."""

    enabled: Annotated[bool | None, Field(strict=True, description="must be true or false", examples=[True])] = None
    """Whether metrics are stored. Default: only on clouds."""
    retention_days: Annotated[
        int, Field(ge=1, le=400, strict=True, description="must be a whole number of days", examples=[15])
    ] = 15
    """How long the head stores metrics."""
    retention_gb: Annotated[
        int, Field(ge=1, le=1000, strict=True, description="must be a whole number of GB", examples=[5])
    ] = 5
    """The most that metrics use of the head's root disk."""
    webhook: Annotated[
        str | None, Field(pattern=WEBHOOK, description="must be a URL", examples=["https://hooks.example.org/alerts"])
    ] = None
    """URL for alerts. For a secret, use `trainyard:alert_webhook` instead."""
    email: Annotated[MailSpec | None, Field(examples=[{"to": "ops@example.org", "relay": "mail.example.org:25"}])] = (
        None
    )
    """Alerts as e-mail messages."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {"enabled": value}
        if isinstance(value, dict):
            return {"enabled": True, **value} if value else value
        raise RuleError("must be true, false or a section of keys and values", "write monitoring: true")

    @model_validator(mode="after")
    def _check_enabled(self) -> Self:
        if self.enabled is False and (self.webhook or self.email):
            raise RuleError("no alerts exist without monitoring", "remove webhook and email, or write enabled: true")
        return self
