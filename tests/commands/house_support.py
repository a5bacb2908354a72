"""The rooms as cmake/rooms.cmake lists them, for the tests of the house and of the format."""
import os
import re

ROOT = os.environ.get("CAMBIUM_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROOM_LIST = os.path.join(ROOT, "cmake", "rooms.cmake")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def room_rows():
    """(name, folder, the rooms and headers that it knows directly, purpose) of each room, from the ground up."""
    for name, folder, knows, purpose in re.findall(r'^ +"(\w+) +(\S+) +([^"]+)" +# (.+)$', read(ROOM_LIST), re.M):
        yield name, folder, [] if knows == "-" else knows.split(), purpose


def read_rooms():
    """{room: (its folder, the rooms and headers that it knows directly)}, from the ground up."""
    return {name: (os.path.join(ROOT, folder), knows) for name, folder, knows, _ in room_rows()}


ROOMS = read_rooms()


def files_under(directory, endings):
    for where, subdirectories, names in os.walk(directory):
        subdirectories[:] = sorted(d for d in subdirectories if d not in ("build", "out", "__pycache__", ".git"))
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.join(where, name)


def sources():
    """(room, path) of every C file and header of a room; a folder inside its folder may be another room's."""
    folders = {folder: room for room, (folder, _) in ROOMS.items()}
    for room, (folder, _) in ROOMS.items():
        for path in files_under(folder, (".c", ".h")):
            where = os.path.dirname(path)
            while where not in folders:
                where = os.path.dirname(where)
            if folders[where] == room:
                yield room, path


def name_of(path):
    return os.path.relpath(path, ROOT)


MOST_PARAMETERS = 6
FUNCTION = re.compile(r"^[A-Za-z_][\w \t\n*]*?\b(\w+)\(([^;{}]*?)\)\s*[;{]", re.M)


def functions_with_many_parameters(source):
    """{function: its number of parameters} of prototypes and definitions in C with more than MOST_PARAMETERS."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|^#(?:[^\n]*\\\n)*[^\n]*", "", source, flags=re.S | re.M)
    code = re.sub(r"__attribute__\(\(.*?\)\)\s", "", code)
    code = re.sub(r"\bLEVEL\((\w+)\)", r"\1", code)  # a kernel's name, once per instruction set
    found = {}
    for name, parameters in FUNCTION.findall(code):
        while re.search(r"\([^()]*\)", parameters):
            parameters = re.sub(r"\([^()]*\)", "", parameters)  # those of a pointer to a function
        count = parameters.count(",") + 1
        if count > MOST_PARAMETERS:
            found[name] = count
    return found
