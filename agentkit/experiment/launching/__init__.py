"""Runs an experiment as a program of many processes: a file for each kind of node.

    nodes/replay          serves the tables on a port that stays the same
    nodes/learner         updates, publishes, and writes checkpoints; its batches come through `nodes/learner_data`
    nodes/actor           the environment loop, writing to replay
    nodes/evaluator       episodes with the newest parameters
    nodes/inference       chooses the actions of many actors
    nodes/gradient_actor  acts, and sends gradients instead of steps
    nodes/multi_agent     actors and evaluators of several agents, whose policies have a learner and a replay each
    nodes/multi_agent_inference  chooses the actions of several agents, by all of these policies

`program` connects the nodes (`multi_agent` those of several agents), `run` starts and supervises them, and `external`
is for another scheduler that does.
`sharing/` is what nodes tell one another: `transports` is how parameters travel, and `common` holds what all use.

Each node goes on from the newest checkpoint in the run folder, if there is one, so a node that died is started
again by calling its function again. A node that is told to stop saves what it owns and returns.
"""
