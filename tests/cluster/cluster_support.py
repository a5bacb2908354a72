"""What the tests of a cluster on one machine share: what the machine must be able to do, said where it cannot."""
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
