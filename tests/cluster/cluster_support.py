"""The common part of the tests of a cluster on one machine, and the abilities that the machine needs, with a message
when it lacks one."""
import os, shutil, unittest


def skip(reason):
    """Skips the whole file."""
    raise unittest.SkipTest(reason)


def need_root():
    if os.geteuid() != 0:
        skip("this needs root")


def need_programs(names, option):
    missing = [name for name in names if not shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")]
    if missing:
        skip(f"there is no {', '.join(missing)}; 'tools/setup {option}' installs what is needed")
