"""Delta tables as a sink, exactly once: `format("suwi-delta")` and what stands behind it."""
