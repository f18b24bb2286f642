"""A cache where others could write: what they leave there is neither linked, nor followed, nor written to."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from flexcomp import cache
from flexcomp.cache import KernelCache, kept_file, trusted_folder

OTHER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play two users")


@pytest.fixture
def shared(tmp_path, monkeypatch, caplog):
    """Where FLEXCOMP_CACHE lies; nothing was said or made before."""
    for one in (cache._say_once, cache._temporary_root):
        one.cache_clear()
    tmp_path.chmod(0o755)
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    caplog.set_level(logging.WARNING)
    yield tmp_path / "cache"
    for one in (cache._say_once, cache._temporary_root):
        one.cache_clear()


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_folder_of_ones_own_is_used_and_for_nobody_else(shared, caplog):
    folder = trusted_folder("kernels")
    assert folder == shared / "kernels" and not said(caplog)
    assert {stat.S_IMODE(one.stat().st_mode) for one in (shared, folder)} == {0o700}
    KernelCache().keep("k", b"code")
    assert KernelCache().find("k") == b"code"
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", [".", "kernels"])
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_one_that_others_may_write_to_is_not(shared, caplog, name, mode):
    trusted_folder("kernels")
    (shared / name).chmod(mode)
    for _ in range(2):
        folder = trusted_folder("kernels")
        assert shared not in folder.parents and stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    (message,) = said(caplog)
    assert message.startswith(f"nothing is kept for other builds: others may write to {shared / name}: chmod go-w it")
    assert "FLEXCOMP_CACHE" in message
    KernelCache().keep("k", b"code")
    assert KernelCache().find("k") == b"code" and not any(shared.glob("kernels/*"))


def test_nor_one_whose_name_others_may_give_away(shared, caplog):
    shared.parent.chmod(0o777)
    try:
        assert shared not in trusted_folder("kernels").parents
        assert f"anybody may rename what lies in {shared.parent}" in said(caplog)[0]
        shared.parent.chmod(0o1777)  # as /tmp
        assert shared in trusted_folder("kernels").parents
    finally:
        shared.parent.chmod(0o755)


def test_links_are_not_followed(shared, caplog, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    shared.mkdir(mode=0o700)
    (shared / "kernels").symlink_to(outside)
    assert shared not in trusted_folder("kernels").parents and len(said(caplog)) == 1
    (shared / "kernels").unlink()
    kept = KernelCache()
    kept.keep("k", b"code")
    entry, added = kept.folder / "k.o", kept.folder / "added"
    for one in (entry, added):
        one.unlink()
    added.symlink_to(precious)
    (tmp_path / "copy").write_bytes(cache._digest("k", b"evil") + b"evil")
    entry.symlink_to(tmp_path / "copy")
    assert kept.find("k") is None
    kept.keep("k", b"code")  # in the place of the link
    kept.trim()
    assert kept.find("k") == b"code" and precious.read_text() == "precious"
    assert (tmp_path / "copy").read_bytes().endswith(b"evil")
    (tmp_path / "linked").symlink_to(shared)  # which a user may have made to another disk
    os.environ["FLEXCOMP_CACHE"] = str(tmp_path / "linked")
    assert trusted_folder("kernels") == tmp_path / "linked" / "kernels" and len(said(caplog)) == 1


@as_root
@pytest.mark.parametrize("name", ["", "kernels"])
def test_a_folder_of_another_user_is_not_used(shared, caplog, name):
    (shared / name).mkdir(parents=True, mode=0o755)
    os.chown(shared / name, OTHER, OTHER)
    assert shared not in trusted_folder("kernels").parents
    (message,) = said(caplog)
    assert f"{shared / name} belongs to user {OTHER}: remove it" in message


@as_root
def test_nor_is_a_file_of_another_user(shared):
    kept = KernelCache()
    kept.keep("k", b"code")
    os.chown(kept.folder / "k.o", OTHER, OTHER)
    assert kept.find("k") is None
    os.chown(kept.folder / "k.o", 0, 0)
    (kept.folder / "k.o").chmod(0o666)
    assert kept.find("k") is None


@as_root
def test_two_users(shared):
    """One makes the folder first, with a link to a file of the other's; the other builds, and is not misled."""
    precious = shared.parent / "precious"
    precious.write_text("precious")
    shared.parent.chmod(0o1777)
    child = os.fork()
    if child == 0:
        try:
            os.chdir(shared.parent)  # which is in a folder that the other may not enter
            os.setgid(OTHER)
            os.setuid(OTHER)
            os.umask(0)
            os.makedirs("cache/kernels", mode=0o777)
            os.symlink(precious, "cache/kernels/added")
            Path("cache/kernels/k.o").write_bytes(cache._digest("k", b"evil") + b"evil")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    kept = KernelCache()
    assert kept.find("k") is None
    kept.keep("k", b"code")
    assert kept.find("k") == b"code" and precious.read_text() == "precious"
    assert len(list((shared / "kernels").iterdir())) == 2


@pytest.mark.parametrize("damage", ["flipped", "cut", "no checksum", "a link"])
def test_files_that_are_linked_have_checksums(shared, damage):
    made = []

    def make(scratch: Path) -> Path:
        made.append(scratch)
        (scratch / "runtime.o").write_bytes(b"machine code")
        return scratch / "runtime.o"

    folder = trusted_folder("runtime-1")
    path = kept_file(folder, "runtime.o", make)
    assert kept_file(folder, "runtime.o", make) == path and len(made) == 1
    if damage == "no checksum":
        (folder / "runtime.o.sha256").unlink()
    elif damage == "a link":
        path.rename(folder / "other")
        path.symlink_to(folder / "other")
    else:
        path.write_bytes(b"machine c0de" if damage == "flipped" else b"machine")
    assert kept_file(folder, "runtime.o", make).read_bytes() == b"machine code"
    assert len(made) == 2 and not path.is_symlink()


def test_of_several_that_want_a_file_one_makes_it(shared):
    made, begun = [], threading.Event()

    def make(scratch: Path) -> Path:
        made.append(scratch)
        begun.set()
        others[0].join(0.2)  # which waits; without a turn it would make the file, too, and end
        (scratch / "runtime.o").write_bytes(b"machine code")
        return scratch / "runtime.o"

    folder = trusted_folder("runtime-1")
    others = [threading.Thread(target=lambda: begun.wait() and kept_file(folder, "runtime.o", make))]
    others[0].start()
    kept_file(folder, "runtime.o", make)
    others[0].join()
    assert len(made) == 1


def test_without_a_home(shared, caplog, monkeypatch):
    for name in ("FLEXCOMP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    for _ in range(2):
        folder = trusted_folder("kernels")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert said(caplog) == [
        "nothing is kept for other builds: this user has no home: make one, or name another folder in FLEXCOMP_CACHE"
    ]


def test_where_nothing_can_be_written(shared, caplog):
    shared.write_text("a file")
    assert shared not in trusted_folder("kernels").parents
    assert said(caplog) == [
        f"nothing is kept for other builds: {shared}: File exists, or name another folder in FLEXCOMP_CACHE"
    ]
