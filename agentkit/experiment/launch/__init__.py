"""Runs an experiment as a program of many processes: a file for each kind of node.

    replay      serves the tables on a port that stays the same
    learner     updates, publishes, and writes checkpoints; its batches come through `learner_data`
    actor       the environment loop, writing to replay
    evaluator   episodes with the newest parameters
    inference   chooses the actions of many actors
    gradient    acts, and sends gradients instead of steps

`program` connects the nodes, `run` starts and supervises them, and `external` is for another scheduler that does.
`transports` is how parameters travel, and `common` holds what the nodes share.

Each node goes on from the newest checkpoint in the run folder, if there is one, so a node that died is started
again by calling its function again. A node that is told to stop saves what it owns and returns.
"""
