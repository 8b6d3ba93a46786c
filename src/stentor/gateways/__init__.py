"""Edges for people who have other clients: each gateway is a client of the brokers, in a process of its own."""
