#!/usr/bin/env bash
# Installs what building and running trainerd needs, from Debian's own packages. Does nothing when all is there.
#   deploy/install-deps.sh                 to build and run
#   deploy/install-deps.sh --build-tests   also to build its tests
#   deploy/install-deps.sh --tests         also what its tests start; what Debian does not have goes to ~/.cache/trainerd/tests-python, by pip
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config
  libdnnl-dev libyaml-cpp-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev
  prometheus-cpp-dev libcivetweb-dev libxxhash-dev libgloo-dev libcurl4-openssl-dev libssl-dev
  libpcre2-dev libutf8proc-dev
)
build_test_packages=(catch2 python3)
test_packages=(
  bash fish zsh # complete command lines
  chromium      # opens the report and the live page
  clang-format  # checks that sources are formatted
  dpkg-dev      # finds what Debian's package depends on
  mandoc        # judges and shows man pages
  prometheus    # promtool checks metrics and rules; a Prometheus of the tests' own scrapes a run
  etcd-server   # says which agent leads
  iproute2      # several hosts on one, as network namespaces
  python3-jsonschema python3-yaml  # hold the schema of a job against the parser
  python3-venv  # for what Debian does not have, below
  slurm-wlm munge  # run the batch script, each message signed
  systemd       # judges the unit and runs it
)
case ${1:-} in
  "") ;;
  --build-tests) packages+=("${build_test_packages[@]}") ;;
  --tests) packages+=("${build_test_packages[@]}" "${test_packages[@]}") ;;
  *) echo "usage: install-deps.sh [--build-tests | --tests]" >&2; exit 2 ;;
esac

missing=()
installed=$(dpkg-query -W -f='${Package} ${Status}\n' "${packages[@]}" 2>/dev/null | sed -n 's/ [a-z]* ok installed$//p' || true)
for package in "${packages[@]}"; do
  grep -qxF "$package" <<<"$installed" || missing+=("$package")
done
install_missing() {
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "install-deps.sh: run as root, or install sudo; missing: ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
  fi
  echo "installing: ${missing[*]}"
  # Debian starts the service of a new package at once and at every boot. The tests start programs of their own. The mask lies in /run: a
  # reboot forgets it.
  local services=()
  local package
  for package in prometheus etcd-server munge; do
    [[ " ${missing[*]} " == *" $package "* ]] && services+=("${package%-server}.service")
  done
  [ -d /run/systemd/system ] || services=()
  [ "${#services[@]}" -eq 0 ] || "${sudo[@]}" systemctl mask --runtime "${services[@]}"
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
  if [ "${#services[@]}" -gt 0 ]; then
    "${sudo[@]}" systemctl unmask --runtime "${services[@]}"
    "${sudo[@]}" systemctl disable "${services[@]}"
  fi
}
[ "${#missing[@]}" -eq 0 ] || install_missing

python_packages=(
  opentelemetry-proto==1.45.2 protobuf==7.36.2  # the published schema of OTLP, with which the tests decode what is sent
  tensorboard==2.21.0  # reads event files back
  'moto[s3]==5.2.5'  # an S3 server that checks signatures and rights; brings boto3
  # An MLflow server, without what models need of it.
  mlflow-skinny==3.17.2 flask==3.1.3 flask-cors==6.0.5 sqlalchemy==2.1.9 alembic==1.20.1 graphene==3.4.3 huey==3.5.4 pandas==3.1.1 aiohttp==3.14.5
)
python=${HOME:-/root}/.cache/trainerd/tests-python
if [ "${1:-}" = --tests ] && ! cmp -s <(printf '%s\n' "${python_packages[@]}") "$python/installed"; then
  echo "installing in $python: ${python_packages[*]}"
  /usr/bin/python3 -m venv --clear "$python"
  # Not compiled: the tests import a small part.
  "$python/bin/pip" install --quiet --no-compile --disable-pip-version-check "${python_packages[@]}"
  printf '%s\n' "${python_packages[@]}" >"$python/installed"
fi
