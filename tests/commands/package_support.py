"""Debian packages, as the tests of deploy/ and of the installation ask for them."""
import os
import re
import subprocess

from model_support import SOURCE

# Documents, manuals and translations, which a slim image of Debian leaves out.
LEFT_OUT = re.compile(r"/usr/share/(doc/(?!.*/copyright$)|man/|locale/|info/|lintian/)")


def output(*words):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=120).stdout


def setup_list(*words):
    """The packages that tools/setup would install."""
    return output("bash", SOURCE / "tools/setup", *words, "--list").split()


def files_of(packages):
    """The paths of installed packages, directories among them, without those that a slim image leaves out."""
    return [path for path in output("dpkg", "-L", *packages).splitlines() if path.startswith("/") and not LEFT_OUT.match(path)]


def installed():
    """The dependencies of each installed package."""
    lines = output("dpkg-query", "-W", "-f=${db:Status-Status}\t${Package}\t${Depends}, ${Pre-Depends}\n").splitlines()
    return {name: depends for status, name, depends in (line.split("\t") for line in lines) if status == "installed"}


def names_in(depends):
    """The alternatives of each dependency of a package: lists of names."""
    return [[re.split(r"[ :(]", word.strip())[0] for word in field.split("|")] for field in depends.split(",") if field.strip()]


def closure(packages, without=()):
    """Packages and the packages that they depend on."""
    found, waiting, depends = set(), list(packages), installed()
    while waiting:
        package = waiting.pop()
        if package in found or package in without:
            continue
        found.add(package)
        for names in names_in(depends[package]):
            waiting += [name for name in names if name in depends][:1]
    return found
