"""What agents share: the `Agent` itself, ways to keep experience, range checks, and small pure steps."""
