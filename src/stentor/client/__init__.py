"""The client library: sync and async clients over one core."""
