"""The only sockets in Stentor: framed connections and the listener."""
