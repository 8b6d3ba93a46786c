"""Who may say what: proofs between brokers. Pure: no socket, no file, no clock."""
