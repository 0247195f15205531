"""Episodes that are played to judge, film, sample or record a policy, and statistics of a few runs."""
