#!/usr/bin/env bash
# For torch's own launcher.
# shellcheck disable=SC2317,SC2329
# --- torchrun, with every build of torch ------------------------------------------------------------------------------

# torchrun asks for a store with libuv, which Debian's torch is built without and refuses; USE_LIBUV does not reach it.
start_torchrun() {
  local program='
from torch import distributed

class Store(distributed.TCPStore):
    def __init__(self, *words, **named):
        try:
            super().__init__(*words, **named)
        except RuntimeError as error:
            if "libuv" not in str(error):
                raise
            super().__init__(*words, **{**named, "use_libuv": False})

distributed.TCPStore = Store
from torch.distributed.run import main
main()
'
  exec python3 -u -c "$program" "$@"
}
