"""What a message system's data goes through on Spark: recorded, replayed, summed up, compacted, queried."""
