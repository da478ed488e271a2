# A fixture of Google's profile, which sets NCCL's environment variables for GPUDirect-TCPXO.
export NCCL_CROSS_NIC=0
export NCCL_ALGO=Ring,Tree
export NCCL_PROTO=Simple
export NCCL_TUNER_CONFIG_PATH=$NCCL_LIB_DIR/tuner.textproto
