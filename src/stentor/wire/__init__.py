"""What travels: frames, control messages and batches. Pure functions on bytes."""
