from __future__ import annotations

from flexcomp.device import copies


def test_only_files_in_memory_stay_in_caches(tmp_path, monkeypatch):
    mounts, caches = tmp_path / "mounts", tmp_path / "cache"
    mounts.write_text("/dev/vda / ext4 rw 0 0\ntmpfs /somewhere tmpfs rw 0 0\n")
    for index, size in enumerate(("32K", "1024K", "32768K")):
        folder = caches / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
        (folder / "level").write_text(f"{index + 1}\n")
    monkeypatch.setattr(copies, "_MOUNTS", mounts)
    monkeypatch.setattr(copies, "_CACHES", caches)
    assert copies.cache_of_copies("/elsewhere/model.weights") == 0
    assert copies.cache_of_copies("/somewhere/deep/model.weights") == int(0.6 * (32 << 20))
    assert copies.cache_sizes() == {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
    monkeypatch.setattr(copies, "_CACHES", tmp_path / "none")
    assert copies.cache_of_copies("/somewhere/model.weights") == 0
