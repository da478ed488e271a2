#!/usr/bin/env bash
# Shell code that all jobs share. yard appends slurm.sh or direct.sh, and uploads the result as yard.sh with each job.
# A job's script sets variables, defines the function `work`, and then sources yard.sh.
# shellcheck disable=SC2153,SC2154,SC2317,SC2329
set -euo pipefail

say() { printf 'yard: %s\n' "$*"; }

# note TEXT appends an event to the file `events`, which `yard logs` and the function `failures` read.
note() { printf '%(%s)T %s\n' -1 "$*" >>"$RUN_DIR/events"; }

# Runs a task: sets the rank, address and log, and then runs the program, in the job's container if there is one.
task() {
  find_place
  local addresses
  IFS=, read -ra addresses <<<"$NODE_IPS"
  export NODE_IP=${addresses[NODE_RANK]}
  ((LOCAL_RANK)) || record_flight
  # Rank 0 writes to the job's log. Every other rank writes to a separate log.
  ((RANK == 0)) || exec >>"$RUN_DIR/rank-$RANK.log" 2>&1
  case $container_runtime in
    enroot) enter_enroot ;;
    docker) enter_docker ;;
    *) begin ;;
  esac
}

# Records the node's software and hardware, and samples its GPUs until this task ends (flight.py). The program runs in
# the background without output, so that it cannot delay or end the job. Without RANK, it does not count as a rank.
record_flight() {
  if command -v python3 >/dev/null; then
    (
      trap '' USR2
      unset RANK
      exec python3 -S "$RUN_DIR/flight.py" watch $$
    ) </dev/null >/dev/null 2>&1 &
  fi
}

# Prepares the environment and runs the program, in the job's container if there is one.
begin() {
  set -a
  # The node's bootstrap writes this file, because the network interface's name depends on the node.
  # shellcheck source=/dev/null
  source /etc/trainyard/fabric.env
  set +a
  # Some builds of torch do not support libuv. All builds support the store without libuv.
  export USE_LIBUV=0
  [[ ! -e $RUN_DIR/environment ]] || use_environment
  record_nccl
  record_calls
  if ! cd "$RUN_DIR" || ! cd "${workdir:-.}"; then
    say "rank $RANK cannot enter the folder ${workdir:-$RUN_DIR}; use a folder on the shared path"
    exit 1
  fi
  if [[ -r $RUN_DIR/setup.sh ]]; then
    # A node's tasks run setup.sh one after another, so that only the first of them installs software.
    local folder
    private_folder
    exec 9>"$folder/setup-$JOB_NAME"
    flock 9
    # shellcheck source=/dev/null
    source "$RUN_DIR/setup.sh"
    exec 9>&-
  fi
  work
}

# Activates the job's Python environment, which has the same path on all nodes, and links $RUN_DIR/venv to it.
use_environment() {
  local folder version
  folder=$(<"$RUN_DIR/environment")
  if [[ ! -e $folder/environment.json ]]; then
    say "environment $folder does not exist on node $NODE_RANK; submit the job again, or run \`yard env build\`"
    exit 1
  fi
  if ! version=$("$folder/bin/python3" -V 2>&1) || version=${version#Python } && [[ ! -d $folder/lib/python${version%.*} ]]
  then
    say "node $NODE_RANK has a different Python than the head (${version%%$'\n'*}), so it cannot use $folder; use a container"
    exit 1
  fi
  [[ -e $RUN_DIR/venv ]] || ln -s "$folder" "$RUN_DIR/venv" 2>/dev/null || [[ -e $RUN_DIR/venv ]]
  export VIRTUAL_ENV=$folder PATH=$folder/bin:$PATH
  ((${LOCAL_RANK:-0})) || [[ ! -e $folder/imports.json ]] || read_imports "$folder"
}

# Reads the files that `import torch` needs, in parallel and in the background while the program starts (imports.py).
# Without RANK, the process does not count as a rank.
read_imports() {
  (
    unset RANK
    exec python3 -IS "$1/imports.py" read "$1"
  ) </dev/null >/dev/null 2>&1 &
}

# NCCL names its network, plugin and topology file only in its log, which `yard doctor` reads, unless the job's settings
# redirect it.
record_nccl() {
  [[ -e /dev/nvidiactl && " ${own_env[*]} " != *' NCCL_DEBUG'* ]] || return 0
  mkdir -p "$RUN_DIR/nccl"
  export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET NCCL_DEBUG_FILE=$RUN_DIR/nccl/%h.%p
}

# If ranks make no progress, hang.py uses their stacks and the dumps of PyTorch's flight recorder.
record_calls() {
  export PYTHONFAULTHANDLER=1
  [[ -e /dev/nvidiactl ]] || return 0
  export TORCH_FR_DUMP_TEMP_FILE=$RUN_DIR/hang/dump- TORCH_NCCL_DEBUG_INFO_TEMP_FILE=$RUN_DIR/hang/dump-
  export TORCH_NCCL_DEBUG_INFO_PIPE_FILE=$RUN_DIR/hang/pipe- TORCH_NCCL_DUMP_ON_TIMEOUT=1
}

# Sets `folder` to a folder on a local disk to which only the job user can write, although all users can write to its
# parent folder.
private_folder() {
  folder=/var/tmp/yard-$UID
  [[ ! -d /mnt/localssd/jobs ]] || folder=/mnt/localssd/jobs/yard-$UID
  if ! mkdir -m 0700 "$folder" 2>/dev/null && [[ ! -d $folder || -L $folder || ! -O $folder ]]; then
    say "$folder on node $NODE_RANK cannot be created or belongs to another user; remove it"
    exit 1
  fi
}

# use_transport FOLDER prepends the folder with the fabric's NCCL plugin to LD_LIBRARY_PATH. It fails if there is no
# plugin, because NCCL would use plain TCP without reporting an error. If a node could not install an optional plugin,
# the folder contains the file `not-installed`, and the job runs without the plugin.
use_transport() {
  local plugins=("$1"/libnccl-net*.so*)
  if [[ -e $1/not-installed ]]; then
    say "node $NODE_RANK: $(<"$1/not-installed")"
    return 0
  fi
  if [[ ! -e ${plugins[0]} ]]; then
    say "rank $RANK finds no NCCL plugin $1/libnccl-net*.so; \`yard doctor\` checks whether it is installed"
    exit 1
  fi
  export LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# --- launchers --------------------------------------------------------------------------------------------------------

# Prints the variables that a launcher must forward to ranks on other nodes.
names_for_ranks() {
  local name
  for name in PATH LD_LIBRARY_PATH JOB_NAME RUN_DIR CHECKPOINT_DIR RESTART_COUNT NNODES NODE_IPS GPUS_PER_NODE \
    TASKS_PER_NODE MASTER_ADDR MASTER_PORT HOSTFILE MPI_HOSTFILE WORLD_SIZE USE_LIBUV "${!NCCL_@}" "${!GLOO_@}" \
    "${!UCX_@}" "${own_env[@]}"; do
    [[ -z ${!name+set} ]] || printf '%s\n' "$name"
  done | sort -u
}

# Writes DeepSpeed's environment file, which must not contain comments or empty lines. Values with special characters
# are rejected, because DeepSpeed puts them on pdsh's command line without quotes (0.19) or in double quotes (0.16).
write_deepspeed_env() {
  export DS_ENV_FILE=$RUN_DIR/deepspeed.env
  local name
  for name in $(names_for_ranks); do
    if [[ ! ${!name} =~ ^[A-Za-z0-9_./:,@+=^-]*$ ]]; then
      say "DeepSpeed cannot forward $name='${!name}'; use letters, digits and _./:,@+=^- only, or deepspeed-no-ssh"
      exit 2
    fi
    printf '%s=%s\n' "$name" "${!name}"
  done >"$DS_ENV_FILE"
}

# Adds mpirun to PATH, because Azure's HPC image contains Open MPI only as an environment module
# (components/catalog/image_contracts.yaml).
load_mpirun() {
  if ! command -v mpirun >/dev/null && [[ -e /usr/share/modules/init/bash ]]; then
    # The scripts in the modules package read unset variables.
    set +u
    # shellcheck source=/dev/null
    source /usr/share/modules/init/bash
    module load mpi/hpcx
    set -u
  fi
}

# Runs the first torchrun on PATH, from the active environment, the container or the node. The node's own torchrun
# (cloud-init/files/usr/local/lib/trainyard/torchrun) also supports builds of torch without libuv.
start_torchrun() { exec torchrun "$@"; }

# --- containers -------------------------------------------------------------------------------------------------------

# Enables enroot's hook 99-mellanox.sh, which mounts the RDMA devices, without which NCCL uses TCP. Sources:
# NVIDIA/enroot, conf/hooks/99-mellanox.sh; measured by edwardsp/azcluster at 798568d, CHANGELOG; read 2026-11-22.
use_rdma_devices() { [[ ! -d /dev/infiniband ]] || export MELLANOX_VISIBLE_DEVICES=all; }

# read_container_env NAME... sets container_env to an --env option for each variable in provided_names or NAME... that
# is set.
read_container_env() {
  container_env=()
  local name
  for name in "${provided_names[@]}" "$@"; do
    [[ -z ${!name+set} ]] || container_env+=(--env "$name=${!name}")
  done
}

enter_enroot() {
  local image=$container_file folder
  if ! command -v enroot >/dev/null; then say "node $NODE_RANK has no enroot; use an image that contains it"; exit 1; fi
  private_folder
  # Without a login session, enroot would use /run/enroot, which only root can create, and the home folder, which is on
  # NFS (NVIDIA/enroot at 8ea147d3, enroot.in, read 2026-11-23).
  export ENROOT_RUNTIME_PATH=$folder/enroot/run ENROOT_DATA_PATH=$folder/enroot/data
  export ENROOT_CACHE_PATH=$folder/enroot/cache ENROOT_TEMP_PATH=$folder
  if [[ -n $container_uri ]]; then
    image=$folder/$container_file
    # One task on each node imports the image, while the others wait.
    exec 8>"$folder/lock"
    flock 8
    [[ -s $image ]] || enroot import --output "$image" "$container_uri"
    exec 8>&-
  fi
  use_rdma_devices
  read_container_env MELLANOX_VISIBLE_DEVICES
  exec enroot start --rw "${container_env[@]}" "${container_options[@]}" "$image" \
    bash "$RUN_DIR/$job_script" begin
}

# If container_ssh_port is set, the program runs in the first node's container, and the other containers run sshd.
enter_docker() {
  if ((container_ssh_port == 0)); then
    contain begin
  elif ((NODE_RANK)); then
    contain listen
  else
    contain lead
  fi
}

container_name() { printf 'yard-%s-%d-%d' "${RUN_DIR##*/}" "$NODE_RANK" "$LOCAL_RANK"; }
key_folder() { printf '/tmp/%s.ssh' "$(container_name)"; }

# Removes a docker task's container and keys from its node.
leave() {
  docker rm --force "$(container_name)" >/dev/null 2>&1 || true
  ((container_ssh_port == 0)) || rm -rf -- "$(key_folder)"
}

# contain PART runs a part of the job's script in a docker container.
contain() {
  check_docker
  # By default, docker allows 64 MB of shared memory and up to 2^30 open files. pdsh would close all of them before it
  # starts ssh (moby/moby issue 38814, seen on 2026-11-23). Here, nofile is the node's limit (31-system).
  local options=(--network host --ipc host --ulimit memlock=-1 --ulimit stack=67108864 --ulimit nofile=1048576
    --cap-add SYS_PTRACE --security-opt no-new-privileges --user "$(id -u):$(id -g)" "${container_options[@]}")
  # Programs such as Triton and Hugging Face write caches to the home folder. dockerd cannot mount the home folder from
  # NFS (see copy_keys), and without a mount, it would create a folder that belongs to root. Therefore, the home folder
  # in a container is a folder on the node's local disk, which later jobs use again.
  local folder
  private_folder
  mkdir -p "$folder/home/.ssh"
  options+=(--env HOME="$HOME")
  [[ " ${container_options[*]} " =~ target=("$HOME"|"${HOME%/*}")[,\ ] ]] ||
    options+=(--mount "type=bind,source=$folder/home,target=$HOME")
  if ((container_ssh_port)); then
    copy_keys "$(key_folder)" # mounted below, because the image contains no keys
    options+=(--mount "type=bind,source=$(key_folder),target=$HOME/.ssh,readonly")
  fi
  [[ $container_gpus != yes ]] || options+=(--gpus all)
  [[ ! -d /dev/infiniband ]] || options+=(--device /dev/infiniband)
  read_container_env
  exec docker run --rm --name "$(container_name)" "${container_env[@]}" "${options[@]}" "$container_image" \
    bash "$RUN_DIR/$job_script" "$1"
}

# Fails if the job user cannot use docker on this node, or if the job needs GPUs and docker does not support GPUs.
check_docker() {
  if ! command -v docker >/dev/null; then
    say "docker is not installed on node $NODE_RANK; set \`containers: docker\` in the stack file and run \`pulumi up\`"
    exit 1
  fi
  # The check does not run `docker version`, which takes two seconds on an emulated machine.
  if [[ -z ${DOCKER_HOST:-} && ! -w /var/run/docker.sock ]]; then
    say "$(id -un) cannot use docker on node $NODE_RANK: no permission to write to /var/run/docker.sock"
    say "set \`containers: docker\` in the stack file and run \`pulumi up\`; \`yard doctor\` finds the cause"
    exit 1
  fi
  # dockerd runs this program to add GPUs to a container.
  if [[ $container_gpus == yes ]] && ! command -v nvidia-container-runtime-hook >/dev/null; then
    say "node $NODE_RANK has docker without the NVIDIA container toolkit; install nvidia-container-toolkit on it"
    exit 1
  fi
}

# copy_keys FOLDER copies the job user's key pair to a local folder, and writes an SSH configuration there. dockerd
# cannot mount ~/.ssh, because it runs as root, which the home folder's NFS server maps to nobody.
copy_keys() {
  rm -rf -- "$1"
  # mkdir fails if the folder belongs to another user.
  if ! mkdir -m 0700 -- "$1" || ! install -m 0600 -- "$HOME/.ssh/id_ed25519" "$HOME/.ssh/id_ed25519.pub" "$1/"; then
    say "node $NODE_RANK cannot copy the key pair $HOME/.ssh/id_ed25519 to $1"
    exit 1
  fi
  # The ranks of this job are the only clients of the container's sshd.
  install -m 0600 -- "$1/id_ed25519.pub" "$1/authorized_keys"
  # The options are in a configuration file, because DeepSpeed also runs ssh without the options that it passes to pdsh
  # (deepspeedai/DeepSpeed at edaa7221, deepspeed/launcher/runner.py; EleutherAI/DeeperSpeed at 91d1c55b, the same;
  # read 2026-11-22).
  install -m 0600 /dev/stdin "$1/config" <<CONFIG
Port $container_ssh_port
StrictHostKeyChecking yes
UserKnownHostsFile "$RUN_DIR/known_hosts"
GlobalKnownHostsFile /dev/null
CONFIG
}

# host_key ADDRESS prints the path of the file with the public host key of the sshd in a node's container.
host_key() { printf '%s/.ssh-host-%d-%s' "$RUN_DIR" "$RESTART_COUNT" "$1"; }

# Runs sshd in the container.
listen() {
  local folder
  folder=$(mktemp -d)
  ssh-keygen -q -t ed25519 -N "" -f "$folder/host"
  # The first node trusts keys in the run folder, because only the job user can write to it.
  install -m 0644 "$folder/host.pub" "$(host_key "$NODE_IP").new"
  mv "$(host_key "$NODE_IP").new" "$(host_key "$NODE_IP")"
  exec /usr/sbin/sshd -D -e -f /dev/null -p "$container_ssh_port" -o ListenAddress="$NODE_IP" \
    -h "$folder/host" -o PidFile=none -o StrictModes=no \
    -o UsePAM=no -o PasswordAuthentication=no -o AuthorizedKeysFile="$HOME/.ssh/authorized_keys"
}

# Waits until the sshd in each container is ready, and then runs the program in the first node's container.
lead() {
  listen &
  local address name rest key deadline=$((SECONDS + 300)) known=$RUN_DIR/known_hosts port=$container_ssh_port
  : >"$known"
  # Line N of the host file contains the name of the node that has the Nth address.
  exec 7<"$HOSTFILE"
  for address in ${NODE_IPS//,/ }; do
    until (: <"/dev/tcp/$address/$port") 2>/dev/null && [[ -s $(host_key "$address") ]]; do
      ((SECONDS < deadline)) || { say "sshd in the container of $address is not ready after 300 s"; exit 1; }
      sleep 1
    done
    read -r name rest <&7
    read -r key rest <"$(host_key "$address")"
    printf '[%s]:%d,[%s]:%d %s %s\n' "$name" "$port" "$address" "$port" "$key" "${rest%% *}" >>"$known"
  done
  exec 7<&-
  begin
}
