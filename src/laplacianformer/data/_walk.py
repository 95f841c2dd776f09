"""The files below folders, and those that patterns match: each real file once, whatever symbolic links there are, and
what was left out."""

import glob
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

logger = logging.getLogger(__name__)

_MOST_NAMED = 5  # paths that were left out, in one line of the log


@dataclass
class Listing:
    """What is below a folder. Only `files` are read: opening a named pipe would wait forever."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)  # itself and those below it
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # folders, and why
    linked: list[str] = field(default_factory=list)  # links to what is listed anyway, or to a folder around the link
    special: list[str] = field(default_factory=list)  # named pipes, devices and sockets
    loops: list[str] = field(default_factory=list)  # links that lead to themselves

    def warn(self, folder: Path | str) -> None:
        """Say in the log, in one line each, what was left out."""
        warn_left_out(folder, self.linked, "symbolic links to files or folders that are listed anyway")
        warn_left_out(folder, self.special, "named pipes, devices or sockets")
        warn_left_out(folder, self.loops, "symbolic links that lead to themselves")


def warn_left_out(where: Path | str, paths: Sequence[str], what: str) -> None:
    """One line in the log that counts these paths, if there are any, and names up to five."""
    if paths:
        named = sorted(paths)[:_MOST_NAMED]
        more = f" and {len(paths) - len(named)} more" if len(paths) > len(named) else ""
        logger.warning("%s: left out %d %s: %s%s", where, len(paths), what, ", ".join(named), more)


def list_files(folder: Path | str, suffixes: Collection[str], *, hidden: bool) -> Listing:
    """The files with one of these suffixes (in lower case) in a folder and its subfolders, in no order.

    Links are followed after everything that is not a link, so that a file is listed under its own name where it has one
    in the folder. hidden: also files and folders whose name begins with a dot.
    """
    return _Walk(frozenset(suffixes), hidden=hidden).below(str(folder))


def matching(pattern: str) -> list[str]:
    """The names that match a pattern, in which ** stands for any folders; glob itself follows links in circles."""
    parts = pattern.split(os.sep)
    if "**" not in parts:
        return glob.glob(pattern)
    head, tail = os.sep.join(parts[: parts.index("**")]), parts[parts.index("**") + 1 :]
    found: list[str] = []
    for start in glob.glob(f"{head}{os.sep}") if head or pattern.startswith(os.sep) else [os.curdir]:
        for folder in list_files(start, (), hidden=False).folders:
            inside = glob.escape(folder.removeprefix(f"{os.curdir}{os.sep}"))
            if tail:
                found += matching(os.path.join(inside, *tail))
            else:
                found += [name for name in glob.glob(os.path.join(inside, "*")) if not os.path.isdir(name)]
    return found


class _Walk:
    """One listing while it is made. A path comes with its real path, in which no part is a link."""

    def __init__(self, suffixes: frozenset[str], *, hidden: bool) -> None:
        self.suffixes, self.hidden = suffixes, hidden
        self.listing = Listing()
        self.folders, self.files = set[str](), set[str]()  # real paths of what was seen
        self.links: list[tuple[str, str]] = []  # path of a link, and the real path of the folder that it is in

    def below(self, folder: str) -> Listing:
        self._add_folder(folder, os.path.realpath(folder))
        while self.links:
            found, self.links = sorted(self.links), []
            for link, inside in found:
                self._follow(link, inside)
        return self.listing

    def _add_folder(self, folder: str, real: str) -> None:
        stack = [(folder, real)]
        while stack:
            path, real = stack.pop()
            if real in self.folders:  # a link has led here before
                continue
            self.folders.add(real)
            self.listing.folders.append(path)
            try:
                with os.scandir(path) as entries:
                    stack += self._subfolders(entries, real)
            except OSError as error:
                self.listing.unreadable.append((path, error.strerror or str(error)))

    def _subfolders(self, entries: "os._ScandirIterator[str]", real: str) -> list[tuple[str, str]]:
        """Add the files of a folder, and return its folders."""
        folders = []
        for entry in entries:
            if entry.name.startswith(".") and not self.hidden:
                continue
            if entry.is_symlink():
                self.links.append((entry.path, real))
            elif entry.is_dir(follow_symlinks=False):
                folders.append((entry.path, os.path.join(real, entry.name)))
            elif self._wanted(entry.path):
                if entry.is_file(follow_symlinks=False):
                    self._add_file(entry.path, os.path.join(real, entry.name))
                else:
                    self.listing.special.append(entry.path)
        return folders

    def _follow(self, link: str, inside: str) -> None:
        real = os.path.realpath(link)
        if os.path.isdir(link):
            around = os.path.commonpath([real, inside]) == real
            if around or real in self.folders:
                self.listing.linked.append(link)
            else:
                self._add_folder(link, real)
        elif not self._wanted(link):
            if os.path.islink(real):
                self.listing.loops.append(link)
        elif os.path.isfile(link) or not os.path.exists(link):  # one that leads nowhere is an image that can't be read
            self._add_file(link, real)
        else:
            self.listing.special.append(link)

    def _wanted(self, path: str) -> bool:
        return os.path.splitext(path)[1].lower() in self.suffixes

    def _add_file(self, path: str, real: str) -> None:
        if real in self.files:
            self.listing.linked.append(path)
        else:
            self.files.add(real)
            self.listing.files.append(path)


# ---- files by names of files, folders and patterns ----


def find(
    names: Sequence[str], suffixes: Collection[str], kind: str, *, warn: bool = True
) -> Iterator[tuple[Path, str]]:
    """The files that names of files, folders (with their subfolders, without hidden files) and patterns stand for.

    Each comes with an empty string, or with the reason why there is no such file. In a folder and among the matches of
    a pattern, each real file is there once, whatever links there are.

    Args:
        suffixes: of files in folders, in lower case.
        kind: what these files are called in messages.
        warn: say in the log what was left out.
    """
    finder = _Finder(suffixes, kind, warn=warn)
    for name in names:
        yield from finder.find(name)


class _Finder:
    """What `find` looks for."""

    def __init__(self, suffixes: Collection[str], kind: str, *, warn: bool) -> None:
        self.suffixes, self.kind, self.warn = suffixes, kind, warn

    def find(self, name: str) -> Iterator[tuple[Path, str]]:
        try:
            yield from self._in_folder(Path(name)) if os.path.isdir(name) else self._named(name)
        except OSError as error:  # a name that is too long, a folder that may not be entered
            yield Path(name), error.strerror or str(error)

    def _named(self, name: str) -> Iterator[tuple[Path, str]]:
        path = Path(name)
        if path.is_file():
            yield path, ""
        elif path.exists():
            yield path, "not a regular file"
        elif glob.has_magic(name):
            yield from self._matches(name)
        else:
            yield path, "no such file or folder"

    def _matches(self, pattern: str) -> Iterator[tuple[Path, str]]:
        matches = matching(pattern)
        names: dict[str, str] = {}  # the shortest by real path: a link to a folder around it makes names longer
        for match in sorted(matches, key=lambda match: (len(match), match)):
            names.setdefault(os.path.realpath(match), match)
        if self.warn:
            left_out = sorted(set(matches) - set(names.values()))
            warn_left_out(pattern, left_out, "names of files or folders that match under another name")
        seen = set[str]()  # files may match, and so may the folder that they are in
        for name in sorted(names.values()):
            for path, failure in self.find(name):
                real = os.path.realpath(path)
                if real not in seen:
                    seen.add(real)
                    yield path, failure
        if not matches:
            yield Path(pattern), "no file matches this pattern"

    def _in_folder(self, folder: Path) -> Iterator[tuple[Path, str]]:
        listing = list_files(folder, self.suffixes, hidden=False)
        if self.warn:
            listing.warn(folder)
        yield from ((path, "") for path in sorted(map(Path, listing.files)))
        yield from ((Path(path), f"can't be listed: {reason}") for path, reason in sorted(listing.unreadable))
        if not listing.files and not listing.unreadable:
            yield folder, f"no {self.kind} in this folder (looked for {', '.join(sorted(self.suffixes))})"
