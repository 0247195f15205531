from agentkit.replay import InProcessReplay
from agentkit.testing.replay import ReplayContract


class TestInProcessReplay(ReplayContract):
    resumable = True

    def make_replay(self, tables, **kwargs):
        return InProcessReplay(tables, **kwargs)
