"""The files in launch/ as text: they parse, and say what they must to whoever reads them."""

import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

import agentkit

pytestmark = pytest.mark.both_stacks

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
SCRIPTS = ["actors_by_hand.sh", "slurm.sbatch"]


# Shell ----------------------------------------------------------------------------------------------


def shell_faults(text):
    """What a careful reader of a shell script objects to, a line each; no more than this file's scripts need."""
    found = [] if text.startswith(("#!/usr/bin/env bash\n", "#!/bin/bash\n")) else ["no bash in the first line"]
    if not re.search(r"^set -\w*u\w* ?-?o? ?pipefail$|^set -[eu]+o pipefail$", text, re.MULTILINE):
        found.append("no set -u -o pipefail")
    code = re.sub(r"(^|\s)#.*$", "", text, flags=re.MULTILINE)
    for line in code.splitlines():
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)  # what is outside of double quotes
        bare = re.sub(r"'[^']*'", "''", bare)
        bare = re.sub(r"\[\[.*?\]\]|\(\(.*?\)\)", "", bare)  # where no words are split
        # An assignment and `case WORD in` split no words either.
        bare = re.sub(r"(^|\s)(export |local )?(\w+=\S*\s*)+|case \S+ in", "", bare)
        found += [f"unquoted {name}" for name in re.findall(r"\$\{?\w+", bare)]
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_parse_and_quote(name):
    path = LAUNCH / name
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    assert shell_faults(path.read_text()) == []
    assert path.stat().st_mode & 0o111


def test_shell_faults_are_found():
    assert shell_faults("echo $a\n") == ["no bash in the first line", "no set -u -o pipefail", "unquoted $a"]
    assert shell_faults('#!/bin/bash\nset -uo pipefail\nb=$a\n[[ $a == b ]] && kill "$a" # $c\n') == []


# SLURM ----------------------------------------------------------------------------------------------

# sbatch's options that the file uses, and how their values look.
SBATCH = {
    "job-name": r"\w+",
    "nodes": r"\d+",
    "ntasks": r"\d+",
    "cpus-per-task": r"\d+",
    "mem": r"\d+[KMGT]",
    "time": r"(\d+-)?\d\d:\d\d:\d\d",
    "requeue": r"",
    "open-mode": r"append|truncate",
    "output": r"[\w%.-]+",
    "signal": r"B:(USR1|TERM)@\d+",
}


def directive_faults(text):
    """Directives that sbatch would refuse, or not read because a command precedes them."""
    found, commands = [], False
    for line in text.splitlines():
        if not line.startswith("#SBATCH"):
            commands |= bool(line.strip()) and not line.startswith("#")
            continue
        match = re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line)
        if match is None or match[1] not in SBATCH:
            found.append(f"unknown: {line}")
        elif not re.fullmatch(SBATCH[match[1]], match[2] or ""):
            found.append(f"value: {line}")
        elif commands:
            found.append(f"too late: {line}")
    return found


def test_slurm_directives():
    text = (LAUNCH / "slurm.sbatch").read_text()
    assert directive_faults(text) == []
    names = re.findall(r"^#SBATCH --([a-z-]+)", text, re.MULTILINE)
    assert {"requeue", "signal", "open-mode", "time"} <= set(names)


def test_bad_slurm_directives_are_found():
    text = "#!/bin/bash\n#SBATCH --tiem=1\n#SBATCH --mem=lots\n#SBATCH --requeue=1\necho\n#SBATCH --requeue\n"
    assert [fault.split(":")[0] for fault in directive_faults(text)] == ["unknown", "value", "value", "too late"]


# Kubernetes -----------------------------------------------------------------------------------------

API = {"Service": "v1", "NetworkPolicy": "networking.k8s.io/v1", "StatefulSet": "apps/v1"}
META = {"name": str, "labels": dict}
QUANTITY = re.compile(r"\d+(m|Mi|Gi)?")
# The fields that the file uses, from the API reference of Kubernetes 1.32: a name that is not here is a slip of the
# pen, or to be looked up and added.
FIELDS = {
    "Service": {"clusterIP": str, "publishNotReadyAddresses": bool, "selector": dict, "ports": list},
    "NetworkPolicy": {"podSelector": dict, "policyTypes": list, "ingress": list},
    "StatefulSet": {
        "replicas": int, "serviceName": str, "selector": dict, "template": dict, "podManagementPolicy": str,
        "volumeClaimTemplates": list,
    },
    "pod": {
        "shareProcessNamespace": bool, "automountServiceAccountToken": bool, "terminationGracePeriodSeconds": int,
        "securityContext": dict, "containers": list, "volumes": list,
    },
    "container": {
        "name": str, "image": str, "command": list, "args": list, "env": list, "ports": list, "readinessProbe": dict,
        "resources": dict, "securityContext": dict, "volumeMounts": list,
    },
}  # fmt: skip


def field_faults(where, found, allowed):
    """Fields that do not exist, or have another type."""
    faults = [f"{where}: unknown field {name}" for name in found if name not in allowed]
    faults += [
        f"{where}: {name} is a {type(value).__name__}"
        for name, value in found.items()
        if name in allowed and type(value) is not allowed[name]
    ]
    return faults


def manifest_faults(documents):
    """What an API server would refuse, as far as this file's kinds go, and references that lead nowhere."""
    faults = []
    services = {document["metadata"]["name"] for document in documents if document["kind"] == "Service"}
    for document in documents:
        kind = document["kind"]
        faults += field_faults("document", document, {"apiVersion": str, "kind": str, "metadata": dict, "spec": dict})
        if document["apiVersion"] != API.get(kind):
            faults.append(f"{kind}: apiVersion {document['apiVersion']}")
        faults += field_faults(f"{kind} metadata", document["metadata"], META)
        faults += field_faults(kind, document["spec"], FIELDS[kind])
        if kind == "StatefulSet":
            faults += set_faults(document["spec"], services)
    return faults


def set_faults(spec, services):
    """A StatefulSet's own: selector and template agree, and names lead to what there is."""
    faults = [] if spec["serviceName"] in services else [f"no service {spec['serviceName']}"]
    labels = spec["template"]["metadata"]["labels"]
    if spec["selector"]["matchLabels"] != labels:
        faults.append("the selector does not match the template")
    pod = spec["template"]["spec"]
    faults += field_faults("pod", pod, FIELDS["pod"])
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    for container in pod["containers"]:
        faults += field_faults(f"container {container.get('name')}", container, FIELDS["container"])
        faults += [
            f"no volume {mount['name']}" for mount in container.get("volumeMounts", []) if mount["name"] not in volumes
        ]
        faults += [
            f"{container['name']}: {amount} is no quantity"
            for amounts in container["resources"].values()
            for amount in amounts.values()
            if not isinstance(amount, str) or not QUANTITY.fullmatch(amount)
        ]
        words = [*container["command"], *container["args"]]
        if not all(isinstance(word, str) for word in words):
            faults.append(f"{container['name']}: a word that is no string")
    return faults


@pytest.fixture(name="manifests")
def _manifests():
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text()))


def pods(manifests):
    return {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for document in manifests
        if document["kind"] == "StatefulSet"
    }


def test_kubernetes_manifests_fit_the_schema(manifests):
    assert manifest_faults(manifests) == []
    assert sorted(document["kind"] for document in manifests) == [
        "NetworkPolicy", "Service", "StatefulSet", "StatefulSet",
    ]  # fmt: skip


def test_pods_run_the_image_of_the_newest_stack(manifests):
    """All containers name one image, and the Dockerfile that makes it says so."""
    (image,) = {container["image"] for pod in pods(manifests).values() for container in pod["containers"]}
    for file in ("Dockerfile.newest", "kubernetes.yaml"):
        assert f"docker build -f launch/Dockerfile.newest -t {image} .\n" in (LAUNCH / file).read_text()
    assert f"-t {image} .\n" not in (LAUNCH / "Dockerfile.reverb").read_text()


def test_bad_manifests_are_found(manifests):
    _, policy, host, _ = manifests
    policy["apiVersion"] = "v1"
    host["spec"]["replica"] = host["spec"].pop("replicas")
    host["spec"]["serviceName"] = "nobody"
    replay = host["spec"]["template"]["spec"]["containers"][0]
    replay["volumeMounts"] = [{"name": "elsewhere", "mountPath": "/"}]
    replay["resources"] = {"limits": {"memory": "8 GB"}}
    replay["args"] = ["--steps", 5]
    assert manifest_faults(manifests) == [
        "NetworkPolicy: apiVersion v1",
        "StatefulSet: unknown field replica",
        "no service nobody",
        "no volume elsewhere",
        "replay: 8 GB is no quantity",
        "replay: a word that is no string",
    ]


def test_no_two_containers_of_a_network_can_have_one_pid(manifests):
    """Reverb crashes when two processes of one PID speak over loopback."""
    for pod in pods(manifests).values():
        assert len(pod["containers"]) == 1 or pod["shareProcessNamespace"] is True


def test_pods_are_confined(manifests):
    policy = next(document["spec"] for document in manifests if document["kind"] == "NetworkPolicy")
    selector = policy["podSelector"]["matchLabels"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": selector}}]}]
    for document in manifests:
        if document["kind"] == "StatefulSet":
            assert selector.items() <= document["spec"]["template"]["metadata"]["labels"].items()
    for pod in pods(manifests).values():
        assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_secret_is_not_in_the_file_and_every_container_asks_for_it(manifests):
    text = (LAUNCH / "kubernetes.yaml").read_text()
    assert "kind: Secret" not in text
    name, key = re.search(r"create secret generic (\S+) --from-literal=([\w-]+)=", text).groups()
    for pod in pods(manifests).values():
        for container in pod["containers"]:
            (variable,) = (v for v in container["env"] if v["name"] == "AGENTKIT_RUN_ID")
            assert variable["valueFrom"] == {"secretKeyRef": {"name": name, "key": key}}


def test_the_commands_of_the_containers_parse(manifests):
    from agentkit.cli.words.parser import parse

    roles = []
    for pod in pods(manifests).values():
        for container in pod["containers"]:
            words = [word.replace("$(INDEX)", "3") for word in [*container["command"], *container["args"]]]
            assert words[0] == "agentkit"
            arguments = parse(words[1:])
            roles.append(arguments.role)
            if arguments.role == "replay":
                assert arguments.replay is None  # The default, which needs no extra.
            else:
                assert arguments.connect == "agentkit-host:7700"
    assert roles == ["replay", "learner", "evaluator", "actor"]


# Ray ------------------------------------------------------------------------------------------------


def test_nothing_on_ray_needs_reverb_unless_it_is_asked_for(monkeypatch):
    yaml = pytest.importorskip("yaml")
    cluster = yaml.safe_load((LAUNCH / "ray_cluster.yaml").read_text())
    assert not any("reverb" in command for command in cluster["setup_commands"])
    launched = []

    def launch(experiment, **settings):
        launched.append((experiment.replay, settings["engine"], settings["ray_address"], settings["listen"]))
        return types.SimpleNamespace(steps=0, updates=0, interrupted=False)

    monkeypatch.setattr(agentkit, "launch", launch)
    main = runpy.run_path(str(LAUNCH / "ray_job.py"))["main"]
    for words in ([], ["--replay", "reverb"]):
        monkeypatch.setattr(sys, "argv", ["ray_job.py", "--address", "10.0.0.1:6379", "--listen", "eth0", *words])
        assert main() == 0
    assert launched == [(replay, "ray", "10.0.0.1:6379", "eth0") for replay in ("served", "reverb")]


# README ---------------------------------------------------------------------------------------------


def test_the_readme_names_every_file_and_only_files_that_exist():
    text = (LAUNCH / "README.md").read_text()
    named = set(re.findall(r"\]\(([^)#]+)\)", text))
    there = {path.name for path in LAUNCH.iterdir() if path.is_file()} - {"README.md"}
    assert there - named == set()
    assert {name for name in named if not (LAUNCH / name).exists()} <= {"ray_cluster.yaml", "ray_job.py"}


def test_there_is_no_package_called_launch():
    """ROS owns that name."""
    assert not (LAUNCH / "__init__.py").exists()
