"""`python -m diloco_trainer.synchronizer`: see `process`."""

import sys

from diloco_trainer.synchronizer.process import main

if __name__ == "__main__":
    sys.exit(main())
