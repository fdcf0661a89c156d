import sys

from svcnode.cli import main

sys.exit(main())
