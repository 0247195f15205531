"""dm_env wrappers. Each keeps the difference between termination and truncation.

Wrappers go inside the resumable layer: ``envs.make(name, wrappers=[StepLimit, ...])``.
"""
