"""Policies that act: the actor that is made for one, a policy out of a checkpoint or a file, and its exports."""
