#!/usr/bin/env bash
# Connects to a random port on every other host, as ranks do.
# shellcheck disable=SC2154
tcp_facts() {
  # The listener ends when its stdin is closed, so it does not outlive the script. The kernel chooses the port.
  coproc LISTENER { exec timeout 300 python3 -c '
import socket, sys, threading
server = socket.create_server((sys.argv[1], 0), backlog=1024)
print(server.getsockname()[1], flush=True)
def answer():
    while True:
        connection, _ = server.accept()
        connection.sendall(b"trainyard\n")
        connection.close()
threading.Thread(target=answer, daemon=True).start()
sys.stdin.read()' "$self_ip"; }
  local port=
  read -r -t 20 port <&"${LISTENER[0]}" || true
  report tcp port "$port"
}

tcp_peers() {
  local name
  for name in "${!hosts[@]}"; do
    [[ $name == "$self" || -z ${peers[tcp/$name]:-} ]] && continue
    tcp_reach "$name" "${hosts[$name]}" "${peers[tcp/$name]}" &
    dialling+=($!)
  done
  ((${#dialling[@]} == 0)) || wait "${dialling[@]}"
}
dialling=()

tcp_reach() {
  local message code=0
  # shellcheck disable=SC2016
  message=$(timeout 8 bash -c 'exec 3<>"/dev/tcp/$1/$2" && read -r line <&3 && echo "$line"' _ "$2" "$3" 2>&1) || code=$?
  if ((code == 124)); then message='no answer within 8 s'; fi
  report tcp "$1" "$code" "${message##*: }"
}

tcp_leave() {
  [[ -z ${LISTENER_PID:-} ]] || kill "$LISTENER_PID" 2>/dev/null || true
}
