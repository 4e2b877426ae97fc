#!/usr/bin/env bash
# Prints the folders of CUDA's libraries that trainerd needs and the loader does not find by itself, for LD_LIBRARY_PATH:
#   folders=$(deploy/cuda-libraries.sh) && export LD_LIBRARY_PATH=$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Each library is looked for, in this order, in the folders given as arguments, in the toolkits ($CUDA_ROOTS, folders separated by
# blanks; default: $CUDA_HOME, /usr/local/cuda and /usr/local/cuda-13*), and in the wheels of a Python ($PYTHON, default python3).
# One that is nowhere is an error, unless the loader knows it. What is for another major version of CUDA is passed over.
set -euo pipefail

# A build with NCCL needs it for any job on a GPU.
required=(libcublasLt.so.13 libcudnn.so.9)
optional=(libnccl.so.2)

toolkits=()
read -ra roots <<<"${CUDA_ROOTS-${CUDA_HOME:-} /usr/local/cuda $(compgen -G '/usr/local/cuda-13*' | tr '\n' ' ')}"
for root in "${roots[@]}"; do
  # cuDNN and NCCL have one name for all versions of CUDA: only beside CUDA 13's own.
  for folder in "$root/lib64" "$root/targets/$(uname -m)-linux/lib"; do
    [ -e "$folder/libcublasLt.so.13" ] && toolkits+=("$folder")
  done
done

wheels=()
if sites=$("${PYTHON:-python3}" -c 'import sys; print("\n".join(p for p in sys.path if p.endswith("-packages")))' 2>/dev/null); then
  while IFS= read -r site; do
    [ -e "$site/nvidia/cu13/lib/libcublasLt.so.13" ] && wheels+=("$site/nvidia/cu13/lib")
    for name in cudnn nccl; do
      compgen -G "$site/nvidia_${name}_cu13-*.dist-info" >/dev/null && wheels+=("$site/nvidia/$name/lib")
    done
  done <<<"$sites"
fi

known=$( (ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null) | awk '{print $1}') || known=
is_known() { grep -qxF "$1" <<<"$known" || on_path "$1"; }
on_path() {
  local folder IFS=:
  for folder in ${LD_LIBRARY_PATH:-}; do [ -e "$folder/$1" ] && return 0; done
  return 1
}

found=()
missing=()
look_for() {
  local folder
  for folder in "${given[@]}" "${toolkits[@]}" "${wheels[@]}"; do
    [ -e "$folder/$1" ] || continue
    [[ " ${found[*]} " == *" $folder "* ]] || found+=("$folder")
    return 0
  done
  return 1
}

given=("$@")
for library in "${required[@]}"; do look_for "$library" || is_known "$library" || missing+=("$library"); done
for library in "${optional[@]}"; do
  look_for "$library" || is_known "$library" ||
    echo "cuda-libraries.sh: $library not found: a trainerd that was built with it cannot load its CUDA world" >&2
done
if [ "${#missing[@]}" -gt 0 ]; then
  {
    echo "cuda-libraries.sh: not found: ${missing[*]}"
    printf '  looked in: %s\n' "${given[@]}" "${toolkits[@]}" "${wheels[@]}" "the loader's own list"
    echo "  a toolkit counts when its lib64 has libcublasLt.so.13; wheels: nvidia-cublas, nvidia-cudnn-cu13, nvidia-nccl-cu13"
  } >&2
  exit 1
fi
(IFS=:; echo "${found[*]}")
