# The first module of svcnode.pyz. Python 2 can parse it, so that an old Python prints a message instead of a traceback.
import sys

if sys.version_info < (3, 11):  # noqa: UP036  any Python may run this file
    found = "%d.%d" % sys.version_info[:2]  # noqa: UP031  an f-string is a syntax error in old versions
    sys.exit("svcnode.pyz: Python 3.11 or later is needed, and this is %s: python3.12 svcnode.pyz ..." % found)  # noqa: UP031

import pyz_unpack

sys.exit(pyz_unpack.main())
