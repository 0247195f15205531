"""slurm.sbatch on a real SLURM of one machine, started for this test: it submits, requeues and finishes."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkit import checkpoint

pytestmark = [
    pytest.mark.both_stacks,
    pytest.mark.full,
    pytest.mark.skipif(
        not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))) or os.getuid() != 0,
        reason="needs SLURM (Debian's slurm-wlm and munge) and root, who alone may start it",
    ),
]

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
KillWait=10
SchedulerParameters=batch_sched_delay=0,sched_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=6000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
SlurmdParameters=config_overrides
"""


def free_ports(number):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.5)
    return found


@pytest.fixture(name="slurm")
def _slurm(tmp_path_factory):
    """A function that runs a SLURM command. munged wants a folder that nobody else can write to, also above."""
    folder = Path(f"/run/agentkit-slurm-{os.getpid()}")
    folder.mkdir(mode=0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    config = folder / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    config.write_text(CONFIG.format(host=host, folder=folder, ports=free_ports(2)))
    bin_folder = tmp_path_factory.mktemp("bin")
    console = bin_folder / "agentkit"
    console.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; from agentkit.cli import main; sys.exit(main())" "$@"\n'
    )
    console.chmod(0o755)
    environment = os.environ | {
        "SLURM_CONF": str(config),
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "NPROC": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    munged = ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket"]
    munged += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"]
    daemons = []

    def start(*words):
        log = open(folder / f"{words[0]}.out", "wb")  # noqa: SIM115 (kept by the process)
        daemons.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))
        log.close()

    def call(*words, cwd=folder, **variables):
        done = subprocess.run(words, cwd=cwd, env=environment | variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout.strip()

    try:
        start(*munged)
        until((folder / "munge.socket").exists, 20, "munged does not start")
        start("slurmctld", "-D", "-c", "-f", str(config))
        start("slurmd", "-D", "-c", "-f", str(config), "-N", host)
        until(lambda: "idle" in _sinfo(environment), 60, lambda: (folder / "slurmctld.out").read_text())
        yield call
        call("scancel", "--user=root")
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(5)
        shutil.rmtree(folder, ignore_errors=True)


def _sinfo(environment):
    done = subprocess.run(["sinfo", "-h"], env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_a_job_hosts_requeues_and_finishes(slurm, tmp_path):
    words = ["dqn", "--env", "agentkit:catch", "--set", "hidden_sizes=16", "--set", "min_replay_size=32"]
    words += ["--set", "batch_size=8", "--steps", "6_000", "--eval-episodes", "2", "--checkpoint-every", "1_000"]
    job = slurm(
        "sbatch", "--parsable", "--cpus-per-task=1", "--mem=3G", str(ROOT / "launch" / "slurm.sbatch"), *words,
        cwd=tmp_path, LISTEN="lo", ACTORS="2", BOARD_PORT=str(free_ports(1)[0]),
    )  # fmt: skip
    run = tmp_path / "runs" / f"slurm-{job}"
    log = tmp_path / f"agentkit-{job}.log"

    def state():
        return slurm("squeue", "--all", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")

    def steps():
        return checkpoint.steps(run / "checkpoints")

    until(lambda: any(step >= 1_000 for step in steps()), 240, lambda: log.read_text())
    first_array = (run / "actors.job").read_text().strip()
    secret = (run / "run_id").read_text().strip()
    # What SLURM sends two minutes before the time is up: the job saves and goes back into the queue.
    slurm("scancel", "--signal=USR1", "--batch", job)
    until(lambda: state() == "PENDING", 150, lambda: f"{state()}: {log.read_text()}")
    assert "Ended: stopped by a signal" in log.read_text()
    assert not (run / "board.json").exists() and max(steps()) >= 1_000
    assert not slurm("squeue", "--noheader", "--name=agentkit-actors", "--states=RUNNING")
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # SLURM itself waits two minutes.
    until(lambda: state() == "COMPLETED", 300, lambda: f"{state()}: {log.read_text()}")
    assert "Ended: reached 6,000 steps" in log.read_text()
    arrays = {int(path.name.split("-")[1].split("_")[0]) for path in tmp_path.glob("agentkit-*_*.log")}
    assert int(first_array) in arrays and len(arrays) == 2  # one array before, one after
    assert not (run / "actors.job").exists()
    assert re.search(r"Run folder: ", log.read_text()) and secret not in log.read_text()
