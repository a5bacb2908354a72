"""Cycles inside rooms: files of one archive that call each other in a loop, by the symbols of the built objects."""
import os
import re
import subprocess


def calls_of(archive):
    """{file: the files of the archive that define functions which it uses}"""
    listed = subprocess.run(["nm", "-A", archive], capture_output=True, text=True, check=True).stdout
    symbols = re.findall(r"^[^:]*:([^:]+)\.o:[0-9a-f ]* (\w) (\S+)$", listed, re.M)
    home = {name: file for file, kind, name in symbols if kind == "T"}
    calls = {file: set() for file, _, _ in symbols}
    for file, kind, name in symbols:
        if kind == "U" and home.get(name, file) != file:
            calls[file].add(home[name])
    return calls


def reach(calls, start):
    """All files that calls from `start` may come to."""
    seen, waiting = set(), list(calls[start])
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += calls[file]
    return seen


def cycles_of(archive):
    """Sorted lists of files, each a set whose members all come back to each other."""
    calls = calls_of(archive)
    reached = {file: reach(calls, file) for file in calls}
    found = {tuple(sorted(other for other in reached[file] if file in reached[other]))
             for file in calls if file in reached[file]}
    return [list(cycle) for cycle in sorted(found)]


def archives_under(build):
    for where, _, names in os.walk(build):
        for name in sorted(names):
            match = re.fullmatch(r"lib(\w+)\.a", name)
            if match:
                yield match.group(1), os.path.join(where, name)
