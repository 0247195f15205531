"""Another host on this machine: a network namespace with a host name of its own, and a link that can be cut."""

import contextlib
import subprocess

from tests.test_ports import another_host

NOBODY = "02:00:00:00:00:01"
"""A hardware address that no device has: what is sent to it vanishes without a word, as in a cut cable."""


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10.0)


class OtherHost:
    """Attributes: address, of this machine as the other one sees it; device and their_device, the link's two ends."""

    def __init__(self, address, device, reach):
        self.address, self.device, self.reach = address, device, reach
        self._name = device[:-1]
        self.their_device = f"{self._name}b"
        self._here = (device, address.removesuffix(".1") + ".2")
        self._there = (self.their_device, address)

    def command(self, *words):
        """The words of a command as it runs there."""
        return [
            "ip", "netns", "exec", self._name, "unshare", "--uts",
            "sh", "-c", f'hostname {self._name} && exec "$@"', "sh", *map(str, words),
        ]  # fmt: skip

    def cut(self):
        """From now on no packet arrives on either side, and nobody is told."""
        for inside, (device, peer) in (((), self._here), (("netns", "exec", self._name, "ip"), self._there)):
            ip(*inside, "neigh", "replace", peer, "lladdr", NOBODY, "nud", "permanent", "dev", device)

    def heal(self):
        for inside, (device, peer) in (((), self._here), (("netns", "exec", self._name, "ip"), self._there)):
            ip(*inside, "neigh", "del", peer, "dev", device)


@contextlib.contextmanager
def other_host():
    with another_host() as (address, device, reach):
        host = OtherHost(address, device, reach)
        subprocess.run(host.command("ip", "link", "set", "lo", "up"), check=True, timeout=10.0)
        yield host
