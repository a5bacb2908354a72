"""Counts faults of the English: openings that a reader stumbles over, misleading and home-made words, sentences that are
too long, and public prototypes that no comment explains.

`count(group)` reads the comments, help and messages of a group of files; house_test.py demands that all counts are
zero."""
import ast
import io
import os
import re
import tokenize

from house_support import ROOMS, ROOT, files_under, read

MOST_WORDS = 30  # of a sentence
MOST_WORDS_OF_DOCS = 25
OPENING = re.compile(r"(What|Of|Who|Behind|Where)\b")
C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*|\'(?:\\.|[^\'\\\n])*\'', re.S)
# Words that a newcomer has to ask about, in comments and in identifiers of C. The field has words for all of them.
HOME_MADE = re.compile(r"\b(stems?|told|kin|trainees?|news|go(?:es|ing|ne)? on|went on)\b", re.I)
# Uses that every reader knows: things are told apart, and somebody is told to stop, or that a rank is gone.
WELL_KNOWN = re.compile(r"\btold (apart|from|otherwise|that|to (?!rank))", re.I)
# Words that read as translated: "only", "its own", "GPU", "maximum" and "minimum" say it as a native speaker does.
TRANSLATED = re.compile(r"\b(alone|of (?:its|their|his|your|our) own|(?<!model )(?<!design )(?:c)ards?(?!\.(?:json|c))|(?<!at )(?:most|least)(?! (?:of|recent|\w+ly)\b))\b", re.I)
HEADING = re.compile(r"/\* ---- .* ---- \*/")


# ---- texts of files: (is a comment, the words) ----

def plain(text):
    return re.sub(r"\s+", " ", text).strip()


def texts_of_c(source):
    for match in C_TOKEN.finditer(source):
        token = match.group(0)
        if token.startswith("/*"):
            lines = [re.sub(r"^\s*\*", "", line) for line in token[2:-2].split("\n")]
            for paragraph in paragraphs_of("\n".join(lines)):
                yield True, paragraph
        elif token.startswith("//"):
            yield True, plain(token[2:])
        elif token.startswith('"'):
            parts = re.findall(r'"((?:\\.|[^"\\\n])*)"', token)
            for line in re.split(r"(?:\\n)+", "".join(parts)):
                yield False, plain(re.sub(r"\\.", " ", line))


def identifiers_of_c(source):
    """{identifier: its words} of what is neither a comment nor a literal."""
    return {name: name.replace("_", " ") for name in re.findall(r"[A-Za-z_]\w*", C_TOKEN.sub(" ", source))}


def texts_of_python(source):
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield True, plain(token.string.lstrip("#"))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            for paragraph in paragraphs_of(ast.get_docstring(node) or ""):
                yield True, paragraph
        elif isinstance(node, ast.keyword) and node.arg in ("help", "description") and isinstance(node.value, ast.Constant):
            for paragraph in paragraphs_of(str(node.value.value)):
                yield False, paragraph
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "USAGE" and isinstance(node.value, ast.Constant):
            for paragraph in paragraphs_of(node.value.value.replace("\n  --", "\n\n--")):
                yield False, paragraph


def texts_of_markdown(source):
    source = re.sub(r"^```.*?^```", "", source, flags=re.M | re.S)
    for paragraph in re.split(r"\n(?=\s*\n|#|\s*[-*] |\s*\d+\. |\|)", source):
        if re.match(r"\s*\n?    \S", paragraph) and not re.match(r"\s*([-*]|\d+\.) ", paragraph):
            continue  # code
        for cell in paragraph.split(" | ") if paragraph.lstrip("\n").startswith("|") else [paragraph]:
            yield True, plain(re.sub(r"^\s*(#+|[-*]|\d+\.|\|) ", "", cell.lstrip("\n")))


def texts_of_html(source):
    """Texts and labels of a page, and comments and strings of its script."""
    script = "".join(re.findall(r"(?s)<script.*?</script>", source))
    page = re.sub(r"(?s)<(script|style).*?</\1>", "", source)
    for comment in re.findall(r"(?m)^ *//(.*(?:\n *//.*)*)", script):
        yield True, plain(re.sub(r"\n *//", " ", comment))
    labels = re.findall(r'(?:title|placeholder|aria-label)="([^"]*)"', page)
    strings = re.findall(r"""(?:"((?:\\.|[^"\\\n])*)"|`([^`]*)`)""", script)
    for text in [*re.split(r"<[^>]*>", page), *labels, *("".join(both) for both in strings)]:
        yield False, plain(text)


def texts_of_shell(source):
    """Comments, and the help of a tool: the text that it prints of its own file."""
    for block in re.findall(r"(?m)(?:^ *#(?: .*)?\n)+", source):
        for paragraph in paragraphs_of(re.sub(r"(?m)^ *# ?", "", block)):
            yield True, paragraph
    for block in re.findall(r"(?ms)^usage\(\) \{\n.*?<<'EOF'\n(.*?)^EOF$", source):
        for paragraph in paragraphs_of(re.sub(r"(?m)^  --", "\n--", block)):
            yield False, paragraph


def paragraphs_of(text):
    """Indented lines are tables or code; each is a text of its own."""
    for paragraph in re.split(r"\n\s*\n|\n(?=     )|\n\s*(?=- )", text):
        yield plain(paragraph)


# ---- counting ----

def sentences(text):
    return re.split(r"(?<=[.!?])[)\"]?\s+(?=[A-Z`\"'(*\[])", text)


def without_values(text):
    """A text without its values of JSON and blocks of a template, which are no words."""
    shorter = re.sub(r"[\[{][^{}\[\]]*[\]}]", " ", text)
    return shorter if shorter == text else without_values(shorter)


def uncovered(header):
    """Names of the prototypes of a header that stand under no comment: neither in their paragraph, nor as its heading."""
    text = re.sub(r"^#(?:.*\\\n)*.*\n", "", header, flags=re.M)
    is_covered, depth, statement, found = False, 0, "", []
    for token in re.finditer(r"/\*.*?\*/|//[^\n]*|\n[ \t]*(?=\n)|[{};]|[^{};/\n]+|.|\n", text, re.S):
        part = token.group(0)
        if part.startswith(("/*", "//")):
            is_covered = is_covered or depth == 0
            is_heading = bool(HEADING.match(part))
            continue
        if part.startswith("\n") and depth == 0 and not statement.strip():
            if len(part) > 1 or part == "\n" and re.match(r"\n[ \t]*\n", text[token.start():token.start() + 200]):
                is_covered = is_covered and is_heading
                is_heading = False
            continue
        depth += (part == "{") - (part == "}")
        if part == "}" and depth == 0 and "(" not in statement and not statement.strip().startswith("enum"):
            is_covered = False
        if depth == 0 and part in ";}":
            name = re.match(r"(?!\s*(?:typedef|_Static_assert|static_assert)\b)[\w\s*]*?(\w+)\s*\((?!\*)", statement)
            if name and "=" not in statement.split("(")[0] and not is_covered:
                found.append(name.group(1))
            statement = ""
        elif depth == 0 and part != "{":
            statement += part
    return found


def home_made(text):
    text = WELL_KNOWN.sub("", text)
    return [text[max(0, match.start() - 30):match.end() + 20] for match in HOME_MADE.finditer(text)]


def files_of(group):
    if group == "docs":
        yield os.path.join(ROOT, "README.md")
        for top in ("docs", "bench", "deploy"):
            yield from files_under(os.path.join(ROOT, top), (".md",))
    elif group == "tests":
        yield from files_under(os.path.join(ROOT, "tests"), (".c", ".h", ".cu", ".cuh", ".py"))
    elif group == "tools":
        for top in (".ci", "tools", "bench/peers"):
            yield from files_under(os.path.join(ROOT, top), ("",))
    else:
        yield from sorted({path for folder, _ in ROOMS.values()
                           for path in files_under(folder, (".c", ".h", ".cu", ".cuh", ".html"))})


def texts_of(path):
    source, extension = read(path), os.path.splitext(path)[1]
    readers = {".py": texts_of_python, ".md": texts_of_markdown, ".html": texts_of_html}
    if extension in readers:
        return readers[extension](source)
    if source.startswith("#!"):
        return (texts_of_python if "python" in source.split("\n")[0] else texts_of_shell)(source)
    return texts_of_c(source)


def count_file(path, group="code"):
    """{fault: [where it is]} of one file. Messages count like comments, but for those of tests: they are data there."""
    faults = {"openings": [], "behind": [], "so many": [], "home-made words": [], "long sentences": [], "bare prototypes": []}
    for is_comment, text in texts_of(path):
        if OPENING.match(text) and (is_comment or " " in text):
            faults["openings"].append(text[:60])
        for words in ("behind", "so many"):
            faults[words] += [text[max(0, match.start() - 30):match.end() + 20]
                              for match in re.finditer(rf"\b{words}\b", text, re.I)]
        if is_comment or group != "tests":
            faults["home-made words"] += home_made(text)
            prose = text if is_comment else without_values(text)
            most = MOST_WORDS_OF_DOCS if group == "docs" else MOST_WORDS
            faults["long sentences"] += [one[:60] for one in sentences(prose) if len(one.split()) > most]
    if path.endswith((".c", ".h", ".cu", ".cuh")):
        faults["home-made words"] += [name for name, words in identifiers_of_c(read(path)).items() if home_made(words)]
    if group == "code" and path.endswith(".h") and not path.endswith("-internal.h"):
        faults["bare prototypes"] = uncovered(read(path))
    return faults


def count(group):
    """{fault: [(file, where it is)]} of "code", "tools", "tests" or "docs". A home-made identifier counts once, wherever it is used."""
    all_faults = {}
    for path in files_of(group):
        for fault, found in count_file(path, group).items():
            all_faults.setdefault(fault, []).extend((os.path.relpath(path, ROOT), one) for one in found)
    all_faults["home-made words"] = list({one: (name, one) for name, one in reversed(all_faults["home-made words"])}.values())
    return all_faults


def translated(group):
    """(file, where it is) of each word of a group of files that reads as translated."""
    return [(os.path.relpath(path, ROOT), text[max(0, match.start() - 30):match.end() + 20])
            for path in files_of(group) for _, text in texts_of(path) for match in TRANSLATED.finditer(text)]
