"""The head's repair service, which holds spares back and finds lost nodes."""
