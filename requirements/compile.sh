#!/usr/bin/env bash
# Writes the lock files anew: requirements/compile.sh [--upgrade]. Without --upgrade, versions stay that still fit.
# It needs uv (pip install uv). The files are constraints: pip install -c requirements/newest.txt '.[gymnasium]'.
# They have no hashes: pip would then ask for one of the folder '.', too, which has none.
set -euo pipefail
cd "$(dirname "$0")/.."
extras() { printf -- '--extra=%s ' "$@"; }
# One file for Python 3.11 to 3.13 and every system; markers say what belongs where.
# shellcheck disable=SC2046
uv pip compile -q "$@" pyproject.toml $(extras all dev docs flax equinox minari minatar minigrid pettingzoo robotics ray tune wandb mlflow pandas cuda) --universal --python-version 3.11 \
  --custom-compile-command "requirements/compile.sh" --no-annotate -o requirements/newest.txt
# Reverb has wheels for Linux x86-64 and Python 3.11 only.
# shellcheck disable=SC2046
uv pip compile -q "$@" pyproject.toml $(extras reverb all dev flax equinox minari minatar minigrid pettingzoo rlds robotics ray tune wandb mlflow pandas) --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
  --custom-compile-command "requirements/compile.sh" --no-annotate -o requirements/reverb.txt
