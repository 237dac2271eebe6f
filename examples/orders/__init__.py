"""A shop: orders, their payment by a provider that cannot be trusted to answer, and their shipments."""
