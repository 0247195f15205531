"""Several agents in one environment: who plays whom, and the training and evaluation of all who do."""
