"""`python -m diloco_trainer.synchronizer`: see `process`."""

import sys

from diloco_trainer.signals import end_when_told

if __name__ == "__main__":
    end_when_told()
    from diloco_trainer.synchronizer.process import main

    sys.exit(main())
