#!/usr/bin/env bash
# Reports the container runtimes on this node and the NCCL plugins for its fabric.
# shellcheck disable=SC2154
containers_facts() {
  local folder
  report containers wanted "$(sed -n 's/^TRAINYARD_CONTAINERS=//p' /etc/trainyard/node.env 2>/dev/null)"
  if command -v docker >/dev/null; then
    report containers docker "$(systemctl is-active docker.service 2>/dev/null)"
  fi
  ! command -v nvidia-container-runtime-hook >/dev/null || report containers toolkit yes
  [[ " $(id -nG "$job_user" 2>/dev/null) " != *' docker '* ]] || report containers member yes
  ! command -v enroot >/dev/null || report containers enroot yes
  for folder in /var/lib/fast-socket/lib64 /var/lib/tcpx/lib64 /var/lib/tcpxo/lib64 /usr/local/gib/lib64; do
    ! compgen -G "$folder/libnccl-net*.so*" >/dev/null || report containers plugin "$folder"
  done
}
