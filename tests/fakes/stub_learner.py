"""A Learner without tensors: beats twenty times a second until the job has ended; see `stub_synchronizer`."""

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from diloco_api import names
from diloco_api.run_config import read_run_config


def main() -> None:
    config = read_run_config(Path(os.environ[names.ENV_CONFIG_DIR]) / names.FILE_RUN_CONFIG)
    if config.train.data.uri.startswith("stub:learner-exit="):
        print("the reason of the end", file=sys.stderr)
        sys.exit(int(config.train.data.uri.partition("=")[2]))
    token = (Path(os.environ[names.ENV_CREDENTIALS_DIR]) / names.FILE_TOKEN).read_text()
    Path(os.environ[names.ENV_SCRATCH_DIR], names.FILE_TAPE).write_text("{}\n")
    while True:
        address = (Path(os.environ[names.ENV_ADDRESS_DIR]) / names.FILE_ADDRESSES).read_text().split()[0]
        request = urllib.request.Request(f"http://{address}/beat", method="POST", data=b"")
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=1) as response:
                phase = response.read().decode()
        except OSError:
            phase = ""
        if phase in ("Complete", "Stopped"):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main()
