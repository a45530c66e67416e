"""What comes off: each folder here with a ``feature.py`` is a feature; `parts` are what they bring for each other."""

#: The features that there are, wired in this order: folders here, or packages such as `shop.sms`. None imports another.
NAMES: tuple[str, ...] = (
    *("webhooks", "providers", "freezes", "retention", "feed"),
    # In this order: an order that waits for its client's limits must not occupy another one's place at a SKU.
    *("limits", "throttling"),
    *("metrics", "traces", "doctor", "why", "ops", "openapi"),
)
