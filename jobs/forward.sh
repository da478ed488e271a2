#!/usr/bin/env bash
# For launchers that start ranks on other nodes by themselves: what those ranks must find in their environment.
# shellcheck disable=SC2154,SC2317,SC2329
# --- what ranks on other nodes are told -------------------------------------------------------------------------------

names_for_ranks() {
  local name
  for name in PATH LD_LIBRARY_PATH JOB_NAME RUN_DIR CHECKPOINT_DIR RESTART_COUNT NNODES NODE_IPS GPUS_PER_NODE \
    TASKS_PER_NODE MASTER_ADDR MASTER_PORT HOSTFILE MPI_HOSTFILE WORLD_SIZE USE_LIBUV "${!NCCL_@}" "${!GLOO_@}" "${!UCX_@}" \
    "${own_env[@]}"; do
    [[ -z ${!name+set} ]] || printf '%s\n' "$name"
  done | sort -u
}

# The file that DeepSpeed reads: KEY=VALUE, no comment and no empty line, or its parser gives up. DeepSpeed puts the
# values on pdsh's command line as they are (0.19) or between double quotes (0.16): so only plain ones can be handed on.
write_deepspeed_env() {
  export DS_ENV_FILE=$RUN_DIR/deepspeed.env
  local name
  for name in $(names_for_ranks); do
    if [[ ! ${!name} =~ ^[A-Za-z0-9_./:,@+=^-]*$ ]]; then
      say "DeepSpeed cannot hand on $name='${!name}'; use letters, digits and _./:,@+=^- in it, or deepspeed-no-ssh"
      exit 2
    fi
    printf '%s=%s\n' "$name" "${!name}"
  done >"$DS_ENV_FILE"
}
