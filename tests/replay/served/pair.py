"""A replay server in a thread of this process, and what can happen to it."""

import threading

from agentkit.replay.served import ReplayServer, ServedReplay
from agentkit.scratch import make_scratch, remove_scratch
from agentkit.wire import Server, derive_keys, listen_address, private_address

KEYS = derive_keys("a run's secret")


class Host:
    """Serves tables in a thread at an address that stays the same."""

    def __init__(self, tables, tcp=False):
        self.tables = tables
        self.folder = make_scratch("served")
        self.keys = KEYS if tcp else None
        self.address = listen_address("lo") if tcp else private_address(self.folder, "replay")
        self.start()

    def start(self, checkpoint=None):
        """Begins with what is in a checkpoint, or with nothing."""
        self.server = ReplayServer(self.tables, self.address, self.keys)
        self.address = self.server.address
        if checkpoint is not None:
            self.server.replay.restore(checkpoint)
        self._run()

    def _run(self):
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while not self._stopping.is_set():
            self.server.serve(0.02)

    def stop(self):
        """Stops serving; what is on its way stays where it is."""
        self._stopping.set()
        self._thread.join()

    def kill(self):
        """Loses all that the server has."""
        self.stop()
        self.server.close()

    def cut(self):
        """Loses all connections, and what is on its way in them, and nothing else."""
        self.stop()
        self.server._wire.close()
        self.server._wire = Server(self.address, self.keys)
        self._run()

    def connect(self, **kwargs):
        return ServedReplay(self.tables, self.address, self.keys, **kwargs)

    def close(self):
        self.kill()
        remove_scratch(self.folder)


class Served(ServedReplay):
    """A host, and the one connection to it: a replay as tests of all backends make it."""

    def __init__(self, tables, tcp=False, **kwargs):
        self.host = Host(tables, tcp)
        try:
            super().__init__(tables, self.host.address, self.host.keys, **kwargs)
        except BaseException:
            self.host.close()
            raise

    def restore(self, directory):
        self.host.server.replay.restore(directory)

    def close(self):
        super().close()
        self.host.close()
