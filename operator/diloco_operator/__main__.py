"""`python -m diloco_operator`."""

import sys

from diloco_operator.main import main

sys.exit(main())
