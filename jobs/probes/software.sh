#!/usr/bin/env bash
# Versions that must agree: torch is looked up, not imported, which takes a quarter of a minute on an emulated machine.
software_facts() {
  local versions
  versions=$(timeout 60 python3 -I - <<'PYTHON'
import importlib.util, pathlib, platform, re
found = importlib.util.find_spec("torch")
torch = "absent"
if found and found.submodule_search_locations:
    file = pathlib.Path(next(iter(found.submodule_search_locations))) / "version.py"
    match = re.search(r"^__version__ = ['\"]([^'\"]+)", file.read_text(), re.M) if file.exists() else None
    torch = match.group(1) if match else "unknown"
print(platform.python_version(), torch)
PYTHON
  ) || true
  report software python "${versions% *}"
  report software torch "${versions#* }"
  report software slurm "$(sinfo -V 2>/dev/null)"
}
