"""HTTP for people and machines around a broker: health, metrics, statistics."""
