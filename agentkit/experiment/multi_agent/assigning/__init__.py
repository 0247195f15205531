"""Who plays by which policy: for the whole run, or for an episode."""
