"""`python -m sojourn_deviceplugin`."""

import sys

from sojourn_deviceplugin.cli import main

sys.exit(main())
