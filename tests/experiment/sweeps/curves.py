"""Stands in for processes that train: each run writes the evaluations of a learning curve that is given."""

import pathlib

from agentkit.experiment.sweeps import jobs
from agentkit.loggers import CsvLogger

NUM_EVALUATIONS = 4


class Curves:
    """Has the methods of `jobs.JobProcesses`; each `poll` brings every run one evaluation further."""

    def __init__(self, curve, events):
        self._curve = curve
        self._events = events
        self._running = {}

    def __call__(self, threads=None):
        return self

    @property
    def running(self):
        return tuple(self._running)

    def start(self, job):
        self._events.append(("start", job.name))
        self._running[job.name] = (job, len(jobs.read_evaluations(job.directory)))

    def poll(self):
        ended = []
        for name, (job, done) in list(self._running.items()):
            self._write(job, done + 1)
            self._running[name] = (job, done + 1)
            if done + 1 == NUM_EVALUATIONS:
                del self._running[name]
                ended.append((job, self._end(job, jobs.FINISHED)))
        return ended

    def _write(self, job, number):
        due, num_envs = job.experiment.num_steps * number // NUM_EVALUATIONS, job.experiment.num_envs or 1
        steps = -(-due // num_envs) * num_envs  # Environments step together.
        value = self._curve(job.experiment, steps)
        with CsvLogger(job.directory / "logs" / "evaluation.csv", resume_step=steps - 1) as log:
            log.write({"steps": steps, "episode_return": value})

    def _end(self, job, state):
        outcome = jobs.Outcome(state, job.experiment.num_steps)
        pathlib.Path(job.directory).mkdir(parents=True, exist_ok=True)
        jobs.write_outcome(job.directory, outcome)
        return outcome

    def stop(self, name):
        if name in self._running:
            self._events.append(("stop", name))
            self._end(self._running.pop(name)[0], jobs.STOPPED)

    def stop_all(self):
        for name in self.running:
            self.stop(name)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._running.clear()
