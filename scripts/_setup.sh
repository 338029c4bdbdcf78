# Sourced by every script here: goes to the checkout's root and makes its virtual environment in .venv.
# setup_venv EXTRA... installs the named extras of pyproject.toml, only when what they are made from changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { printf '%s\n' "$*" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$candidate"; return; }
  done
  fail "kbroker needs Python 3.11 or newer; none found. Install one, or name it: PYTHON=/path/to/python3.12 $0"
}

setup_venv() {
  local extras stamp wanted python
  extras=$(IFS=,; echo "$*")
  wanted="$(cat pyproject.toml hatch_build.py protocol/records/_walker.py | cksum) $extras"
  stamp=".venv/.installed-${extras:-none}"
  if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    python=$(find_python)
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    echo "installing kbroker${extras:+ with $extras} into .venv ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}"
    .venv/bin/python -c 'import sys; from protocol.records import walker_kind as k; sys.exit(k() != "compiled")' ||
      echo "no C compiler found: strict checks of records run interpreted, correct but slower" >&2
    echo "$wanted" > "$stamp"
  fi
  export PATH="$PWD/.venv/bin:$PATH"
}
