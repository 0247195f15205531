"""The training on the device: environments, policy and updates in one compiled loop."""
