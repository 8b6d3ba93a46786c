"""Consumer groups, at the broker that coordinates them."""
