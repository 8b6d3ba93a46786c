"""Connections that others made to this broker: clients, other brokers, relays."""
