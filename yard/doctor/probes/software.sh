#!/usr/bin/env bash
# Reports versions that must be equal on all hosts. The version of torch is read from torch's files, because importing
# torch takes 15 s on an emulated machine.
# shellcheck disable=SC2154
software_facts() {
  local versions
  versions=$(timeout 60 python3 -I - <<'PYTHON'
import importlib.util, pathlib, platform, re, sys
found = importlib.util.find_spec("torch")
torch = "absent"
if found and found.submodule_search_locations:
    file = pathlib.Path(next(iter(found.submodule_search_locations))) / "version.py"
    match = re.search(r"^__version__ = ['\"]([^'\"]+)", file.read_text(), re.M) if file.exists() else None
    torch = match.group(1) if match else "unknown"
wheels = (path for folder in sys.path for path in pathlib.Path(folder).glob("nvidia_nccl*.dist-info"))
nccl = next((path.stem.split("-")[1] for path in wheels), "absent")
print(platform.python_version(), torch, nccl)
PYTHON
  ) || true
  local python torch nccl
  read -r python torch nccl <<<"$versions"
  report software python "$python"
  report software torch "$torch"
  report software nccl "$nccl"
  [[ $scheduler != slurm ]] || report software slurm "$(sinfo -V 2>/dev/null)"
}
