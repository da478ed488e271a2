#!/usr/bin/env bash
# Versions that must agree: torch is looked up, not imported, which takes a quarter of a minute on an emulated machine.
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
places = (place for folder in sys.path for place in pathlib.Path(folder).glob("nvidia_nccl*.dist-info"))
nccl = next((place.stem.split("-")[1] for place in places), "absent")
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
