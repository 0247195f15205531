"""What the nodes of a program tell one another: parameters, how far each has come, priorities, stops."""
