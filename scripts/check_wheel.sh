#!/usr/bin/env bash
# Build the wheel, install it into an empty environment with the pinned versions, and look at what arrived.
# PYTHON names an interpreter that has `build`; VERIDICAL_WHEEL_FAST=1 leaves out the extras. HASHED names
# requirements with hashes (scripts/hash_pins.py): nothing else is installed then, and the build, which PYTHON must
# have the tools for, is not isolated. SBOM names the file of the bill of materials.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON")
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '   %s\n' "$*"; }
die() { printf 'check_wheel: %s\n' "$*" >&2; exit 1; }

say "building"
"$PYTHON" -m build --wheel ${HASHED:+--no-isolation} --outdir "$work/dist" . > "$work/build.log" 2>&1 \
    || { cat "$work/build.log" >&2; die "the wheel does not build"; }
wheel=$(echo "$work"/dist/veridical-*.whl)
"$PYTHON" -m zipfile -l "$wheel" > "$work/contents"
for name in veridical/py.typed veridical/__init__.py pytest_veridical.py licenses/LICENSE; do
    grep -q "$name" "$work/contents" || die "$name is not in the wheel"
done
if grep -qE '^(tests|benchmarks|replications|scripts)/' "$work/contents"; then
    die "the wheel holds files that are not the package"
fi

say "installing into an empty environment"
"$PYTHON" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check -qq)
if [ -n "${HASHED:-}" ]; then
    "${pip[@]}" install --require-hashes -r "$HASHED"
    "${pip[@]}" install --no-deps "$wheel"
else
    "${pip[@]}" install -c constraints.txt "$wheel"
fi
"$work/venv/bin/python" -m pip check > "$work/check.log" || { cat "$work/check.log" >&2; die "pip check found conflicts"; }

say "what it is made of"
"$work/venv/bin/python" scripts/sbom.py --out "${SBOM:-$work/sbom.cdx.json}"

# From here on the checkout must not be importable.
cd "$work"
say "console script"
"$work/venv/bin/veridical" --help > "$work/help.log" || { cat "$work/help.log" >&2; die "veridical --help failed"; }

say "what an import loads"
"$work/venv/bin/python" - <<'PY'
import sys
from importlib.metadata import version

import veridical

assert veridical.__version__ == version("veridical"), (veridical.__version__, version("veridical"))
late = ["sklearn", "scipy", "matplotlib", "pyarrow", "pandas",
        "ray", "shap", "transformers", "skimage", "onnx", "sktime", "mlxtend"]
loaded = [name for name in late if name in sys.modules]
if loaded:
    sys.exit(f"import veridical loads {', '.join(loaded)}; import them where they are used")
PY

if [ -z "${VERIDICAL_WHEEL_FAST:-}${HASHED:-}" ]; then
    say "extras resolve"
    "${pip[@]}" install --dry-run -c "$root/constraints.txt" \
        "$wheel[ray,shap,text,llm,vision,data,onnx,tables,captum,plots]" > /dev/null
    say "one extra, really installed"
    "${pip[@]}" install -c "$root/constraints.txt" "$wheel[vision]"
    "$work/venv/bin/python" -m pip check > "$work/check.log" || { cat "$work/check.log" >&2; die "pip check found conflicts"; }
fi
say "the wheel is good"
