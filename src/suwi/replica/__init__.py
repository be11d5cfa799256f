"""One partition's life on this broker: who may write, what is committed, who waits for it."""
