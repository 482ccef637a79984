"""``python -m nodecpu`` is the ``nodecpu`` command."""

import sys

from nodecpu.cli import main

sys.exit(main())
