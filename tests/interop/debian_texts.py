"""Texts in many scripts from Debian's packages: manuals, dictionaries and translations. They are fetched with apt-get,
which needs no right to install anything, and unpacked into build/interop-texts, where they stay."""
import gettext
import gzip
import os
import pathlib
import re
import subprocess
import tempfile
import unicodedata
import unittest

from interop_support import SOURCE

CACHE = pathlib.Path(os.environ.get("CAMBIUM_INTEROP_TEXTS", SOURCE / "build/interop-texts"))
BYTES = 2_000_000  # of each script
PIECE = 3000  # characters of a text
# Script: a package, its files, and a name that most letters of the script begin with in Unicode.
SCRIPTS = {"Latin": ("installation-guide-amd64", "usr/share/doc/**/install.[fprv][iort].txt.gz", "LATIN"),
           "Cyrillic": ("manpages-ru", "usr/share/man/**/*.gz", "CYRILLIC"),
           "Greek": ("libreoffice-help-el", "usr/share/**/0*.html", "GREEK"),
           "Han": ("manpages-zh", "usr/share/man/**/*.gz", "CJK"),
           "Japanese": ("manpages-ja", "usr/share/man/**/*.gz", "HIRAGANA"),
           "Hangul": ("hunspell-ko", "usr/share/hunspell/ko.dic", "HANGUL"),
           "Arabic": ("hunspell-ar", "usr/share/hunspell/ar.dic", "ARABIC"),
           "Hebrew": ("hunspell-he", "usr/share/hunspell/he_IL.dic", "HEBREW"),
           "Devanagari": ("libreoffice-help-hi", "usr/share/**/0*.html", "DEVANAGARI"),
           "Thai": ("hunspell-th", "usr/share/hunspell/th_TH.dic", "THAI"),
           "Tamil and others": ("iso-codes", "usr/share/locale/[abghkmopt][aemnruy]/**/*.mo", "TAMIL")}


def fetch(package):
    """The folder of a package's files; the test is skipped where apt does not know it, or reaches no server."""
    directory = CACHE / package
    if directory.exists():
        return directory
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        try:
            subprocess.run(["apt-get", "download", "--quiet", package], cwd=work, check=True, capture_output=True, timeout=300)
            file, = pathlib.Path(work).glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", file, work + "/files"], check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            told = (getattr(error, "stderr", None) or b"").decode().strip()
            raise unittest.SkipTest(f"apt-get cannot fetch {package}, for texts in {CACHE}: {told or error}")
        os.rename(work + "/files", directory)
    return directory


def read(path):
    if path.suffix == ".mo":
        with open(path, "rb") as file:
            return "\n".join(text for text in gettext.GNUTranslations(file)._catalog.values() if isinstance(text, str))
    data = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    text = data.decode(errors="ignore")
    return re.sub(r"<(script|style).*?</\1>|<[^>]*>", "", text, flags=re.DOTALL) if path.suffix == ".html" else text


def assigned(text):
    """Without what Python's Unicode does not know, 14 in 3.11: of that the libraries know more, or less."""
    known = {c: c if unicodedata.category(c) not in ("Cn", "Cs") else "?" for c in set(text)}
    return "".join(map(known.__getitem__, text))


def texts_of(script):
    """Pieces of about BYTES bytes, from as many files as it takes, and the rest where there is less."""
    package, pattern, beginning = SCRIPTS[script]
    size, pieces = 0, []
    for path in sorted(path for path in fetch(package).glob(pattern) if path.is_file() and not path.is_symlink()):
        text = assigned(read(path))
        for start in range(0, len(text), PIECE):
            if size > BYTES:
                break
            pieces.append(text[start:start + PIECE])
            size += len(pieces[-1].encode())
    letters = sum(unicodedata.name(c, "").startswith(beginning) for piece in pieces[::10] for c in piece)
    assert letters > 0.02 * sum(map(len, pieces[::10])), f"{script}: {letters} letters"
    return pieces
