#!/usr/bin/env bash
# Make an environment of its own with the most used peer, Quantus, for `benchmarks/peers.py`. Not a dependency.
# Usage: benchmarks/peer_env.sh [FOLDER]; then: PYTHONPATH=src:. FOLDER/bin/python -m benchmarks.peers
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.peer}
python3 -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check -q"
$pip install -c constraints.txt torch numpy scipy scikit-learn pandas captum scikit-image matplotlib tqdm rich safetensors
# its own requirements would pull windows and graphics libraries; these two are what its metrics import
$pip install opencv-python-headless cachetools
$pip install --no-deps "quantus==0.6.0"
"$folder/bin/python" -c 'import quantus; print("quantus", quantus.__version__, "is ready")'
