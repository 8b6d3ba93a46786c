"""Pure state machines and the data they speak of: no clock, randomness, socket, file or Arrow."""
