"""What wraps a method: configured by a section of its own, beside `method`."""
