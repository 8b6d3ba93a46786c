"""The partitions whose copies this broker holds: log, chain, tail cache and who waits for them."""
