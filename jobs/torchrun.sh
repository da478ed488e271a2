#!/usr/bin/env bash
# For torch's own launcher.
# shellcheck disable=SC2317,SC2329
# --- torchrun, with every build of torch ------------------------------------------------------------------------------

# torchrun asks for a store with libuv, which Debian's torch is built without. Unlike the rest of torch it does not heed
# USE_LIBUV; with this it does.
start_torchrun() {
  local program='
import os
from torch import distributed

class Store(distributed.TCPStore):
    def __init__(self, *words, **named):
        super().__init__(*words, **{"use_libuv": os.environ.get("USE_LIBUV") != "0", **named})

distributed.TCPStore = Store
from torch.distributed.run import main
main()
'
  exec python3 -u -c "$program" "$@"
}
