"""This broker among the others: the store, the peers, the controller and the topics."""
