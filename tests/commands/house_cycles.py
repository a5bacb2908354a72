"""Cycles inside rooms: files of one archive that call each other in a loop, by the symbols of the built objects."""
import os
import re
import subprocess


def calls_of(archive):
    """{file: the files of the archive that define functions which it uses}. A file is its place in the archive and its
    name, because folders have files of the same name."""
    listed = subprocess.run(["nm", archive], capture_output=True, text=True, check=True).stdout
    members = re.split(r"^(\S+)\.o:$", listed, flags=re.M)
    symbols = {(place, members[place]): re.findall(r"^[0-9a-f ]* (\w) (\S+)$", members[place + 1], re.M)
               for place in range(1, len(members), 2)}
    home = {name: file for file, found in symbols.items() for kind, name in found if kind == "T"}
    return {file: {home[name] for kind, name in found if kind == "U" and home.get(name, file) != file}
            for file, found in symbols.items()}


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
    """Sorted lists of names of files, each a set whose members all come back to each other. What is compiled once for
    each instruction set counts once."""
    calls = calls_of(archive)
    reached = {file: reach(calls, file) for file in calls}
    found = {tuple(sorted(name for _, name in (other for other in reached[file] if file in reached[other])))
             for file in calls if file in reached[file]}
    return [list(cycle) for cycle in sorted(found)]


def archives_under(build):
    for where, _, names in os.walk(build):
        for name in sorted(names):
            match = re.fullmatch(r"lib(\w+)\.a", name)
            if match:
                yield match.group(1), os.path.join(where, name)
