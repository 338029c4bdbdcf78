# Sourced by every script here: goes to the checkout's root and makes its virtual environment in .venv.
# setup_venv EXTRA... installs the named extras of pyproject.toml, only when what they are made from changed.
# run_stage NAME COMMAND... and end_stages are for scripts that do several things and tell how each went.
# $workers is how many processes share a suite's tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE  # where an image sets it, each of thousands of processes would compile all that it imports

cores=$(getconf _NPROCESSORS_ONLN)
workers=$((cores < 8 ? cores + 1 : 9))  # one more than cores: tests of processes and time limits wait; 9 load enough

say() { printf '%s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.15 python3.14 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$candidate"; return; }
  done
  fail "kbroker needs Python 3.11 or newer; none found. Install one, or name it: PYTHON=/path/to/python3.12 $0"
}

# Debian and Ubuntu keep a part of venv, ensurepip, in a package of its own; pip can stand in for it.
make_venv() {
  local python=$1
  if "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    "$python" -m venv --clear .venv
  elif "$python" -c 'import venv' 2>/dev/null && "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear --without-pip .venv &&
      "$python" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check pip
  else
    false
  fi || fail "$python cannot make a virtual environment: install python3-venv (Debian, Ubuntu: apt-get install python3-venv), or pip 22.3 or newer"
}

# Which interpreter this is, or stands behind this virtual environment.
interpreter() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }

# A dot every other second, for a person who waits.
show_life() {
  [ -t 2 ] || return 0
  while sleep 2; do printf . >&2; done
}

setup_venv() {
  local extras stamp wanted python asked life installed
  extras=$(IFS=,; echo "$*")
  wanted=$(cat pyproject.toml constraints.txt hatch_build.py protocol/records/_{built,walker,converter,cleaner}.py protocol/records/*.pxd | cksum)
  if [ -n "${PYTHON:-}" ] && [ -e .venv/bin/python ] && asked=$(interpreter "$PYTHON") &&
    [ "$asked" != "$(interpreter .venv/bin/python)" ]; then
    say "making a new .venv, on $PYTHON"
    make_venv "$PYTHON"
  fi
  # dev has all that the others need, but Spark
  for stamp in ".venv/.installed-${extras:-none}" .venv/.installed-dev .venv/.installed-dev,pipeline; do
    [ "$stamp" != .venv/.installed-dev ] || [[ ",$extras," != *,pipeline,* ]] || continue
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
      export PATH="$PWD/.venv/bin:$PATH"
      return
    fi
  done
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then  # not there yet, or its Python has gone
    python=$(find_python)
    make_venv "$python"
  fi
  say "installing kbroker${extras:+ with $extras} into .venv: a minute or so, once"
  ( set +e; show_life ) & life=$!
  installed=0
  # of 14,000 files a few thousand are ever imported: each is compiled then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt --editable ".${extras:+[$extras]}" ||
    installed=$?
  kill "$life" 2>/dev/null || true  # it is over where there is no terminal
  wait "$life" 2>/dev/null || true
  [ ! -t 2 ] || echo >&2
  [ "$installed" = 0 ] ||
    fail "pip could not install what kbroker needs; its reason is above. Run $0 again once that is mended"
  .venv/bin/python -c 'import sys; from protocol.records import walker_kind as k; sys.exit(k() != "compiled")' ||
    say "no C compiler found: strict checks of records run interpreted, correct but slower"
  echo "$wanted" > ".venv/.installed-${extras:-none}"
  export PATH="$PWD/.venv/bin:$PATH"
}

# Says in one line what is not on this machine and what it costs; in CI that is a failure.
# want REASON COMMAND...
want() {
  local reason=$1 command absent=
  shift
  for command; do command -v "$command" >/dev/null || absent="$absent${absent:+, }$command"; done
  [ -n "$absent" ] || return 0
  say "not installed: $absent. $reason"
  [ "${CI:-}" != true ] || fail "CI has to have it"
}

stages=() failures=0
trap 'exit 130' INT  # a stage that ends in good order at Ctrl-C would let the next one begin

run_stage() {
  local name=$1 start=$SECONDS result=passed
  shift
  say "== $name"
  "$@" || { result=FAILED; failures=$((failures + 1)); }
  stages+=("$(printf '%-56s %s, %d s' "$name" "$result" $((SECONDS - start)))")
}

end_stages() {
  say "== all of it"
  printf '%s\n' "${stages[@]}" >&2
  [ "$failures" = 0 ] || exit 1
}
