"""What is wrong with files, folders and tools is said before the work, in one line that names what the user named."""

from __future__ import annotations

import os
import shutil

import numpy as np
import onnx
import pytest

from flexcomp import files
from flexcomp.compiler import linker
from flexcomp.device.target import resolve_target
from flexcomp.errors import TargetError
from tests.cli import calls

# Nothing can be made here, by root neither.
NOWHERE = "/proc/flexcomp"


@pytest.fixture
def here(tmp_path):
    """Files and folders of all wrong kinds."""
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.json").write_text('{"format":')
    (tmp_path / "text").write_text("nothing that flexcomp would write\n")
    os.mkfifo(tmp_path / "pipe")
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    return tmp_path


def assert_refused(done, code, *words):
    """One line and nothing before it: no stage of the work had begun."""
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "[Errno" not in line and ".flexcomp-" not in line
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent", "No such file"), ("folder", "it is a folder"), ("empty", "it is empty"), ("pipe", "it is no file")],
)
@pytest.mark.parametrize("command", ["build", "tune", "bench"])
def test_models(cli, here, command, name, reason):
    path = here / name
    if command == "bench":
        path = path.with_suffix(".onnx")
        if (here / name).exists():
            (here / name).rename(path)
    args = {"build": ["-o", here / "x.so"], "tune": ["-o", here / "x.jsonl"], "bench": []}[command]
    done = cli(command, path, *args)
    if command == "build" and name == "folder":  # a folder may be a model with its tokenizer
        assert_refused(done, 2, f"{path} has no tokenizer, and tokenizer.json is needed")
        return
    assert_refused(done, 3, f"cannot read the model {path}: {reason}")


@pytest.mark.parametrize("command", ["build", "plan", "trace", "profile", "package", "picture", "run", "server", "demo"])
def test_outputs_that_cannot_be_made(cli, model, library, command):
    output, code = f"{NOWHERE}/x", 4
    match command:
        case "build":
            args, output, code = ["build", model, "-o"], f"{output}.so", 3
        case "plan":
            args, output = ["plan", library, "--picture"], f"{output}.png"
        case "trace":
            args = ["plan", library, "--trace"]
        case "profile":
            args = ["profile", library, "-o"]
        case "package":
            args = ["package", library, "-o"]
        case "picture":
            args, output = ["inspect", library, "--picture"], f"{output}.png"
        case "run":
            args = ["run", library, "--output-dir"]
        case "server":
            args, code = ["remote", "server", "-o"], 3
        case "demo":
            args, code = ["demo", "--dir"], 3
    assert_refused(cli(*args, output), code, f"cannot write {output}", "/proc is not writable")


@pytest.mark.parametrize(
    ("option", "name", "reason"),
    [
        ("--profile", "absent", "No such file"),
        ("--profile", "folder", "Is a directory"),
        ("--profile", "empty", "is not JSON"),
        ("--profile", "broken.json", "is not JSON"),
        ("--tuning", "absent", "No such file"),
        ("--tuning", "folder", "Is a directory"),
        ("--tuning", "text", "no record of a tuner"),
    ],
)
def test_profiles_and_tuning_databases(cli, model, here, option, name, reason):
    """Wrong usage, whichever of them it is, and said before a model that is broken too."""
    (here / "broken.onnx").write_text("no network")
    done = cli("build", here / "broken.onnx", "-o", here / "x.so", option, here / name)
    assert_refused(done, 2, str(here / name), reason)


def test_a_file_that_is_no_database_is_not_cut_short(cli, model, here):
    """What follows the last line of a database is taken for a record that was interrupted, and removed."""
    (here / "notes").write_text("my notes")
    assert_refused(cli("tune", model, "-o", here / "notes"), 3, "is no tuning database")
    assert (here / "notes").read_text() == "my notes"


def test_nothing_is_written_over_what_is_read(cli, model, library, here):
    for args in (["plan", library, "--trace"], ["profile", library, "-o"]):
        for path in (library, library.with_suffix(".weights")):
            before = path.read_bytes()
            assert_refused(cli(*args, path), 4, f"cannot write {path}: it is what is being read")
            assert path.read_bytes() == before
    shutil.copy(model, here / "model.so")
    assert_refused(cli("build", here / "model.so", "-o", here / "model.so"), 3, "it is what is being read")


def test_the_models_own_weights_are_not_written_over(cli, model, tmp_path):
    """An ONNX file may keep them beside itself, under any name."""
    onnx.save(onnx.load(model), tmp_path / "net.onnx", save_as_external_data=True, location="net.weights")
    before = (tmp_path / "net.weights").read_bytes()
    done = cli("build", tmp_path / "net.onnx", "-o", tmp_path / "net.so")
    assert_refused(done, 3, f"cannot write {tmp_path / 'net.weights'}: it is what is being read")
    assert (tmp_path / "net.weights").read_bytes() == before


def test_a_disk_that_is_full(cli, model, tmp_path, monkeypatch):
    code = (
        "import shutil, flexcomp.cli; usage = shutil.disk_usage; "
        "shutil.disk_usage = lambda path: usage(path)._replace(free=1000); flexcomp.cli.main()"
    )
    done = calls.run("-c", code, "build", model, "-o", tmp_path / "x.so")
    assert_refused(done, 3, "1,000 bytes are free", f"{model.stat().st_size:,}")


def test_compilers_that_are_missing_or_no_use(cli, model, library, tmp_path, monkeypatch):
    done = cli("build", model, "-o", tmp_path / "x.so", "--target", "llvm -mtriple=riscv64-linux-gnu")
    assert_refused(done, 3, "riscv64-linux-gnu-g++ is missing", "apt-get install")
    done = cli("tune", model, "-o", tmp_path / "x.jsonl", "--target", "llvm -mtriple=riscv64-linux-gnu")
    assert_refused(done, 3, "riscv64-linux-gnu-g++ is missing")
    assert_refused(cli("package", library, "-o", tmp_path / "p", "--cxx", "false"), 4, "false is no C++ compiler")
    assert not (tmp_path / "x.jsonl").exists()
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'error: out of order' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(TargetError, match=r"cannot make a shared library: error: out of order"):
        linker.require_linker(resolve_target("native"), str(broken))


def test_remote_commands_look_before_they_connect(cli, library, here):
    there = ["--rpc", "localhost:1"]
    assert_refused(cli("remote", "run", here / "absent.so", *there), 4, "there is no library")
    assert_refused(cli("remote", "measure", here / "absent.so", *there), 4, "there is no library")
    assert_refused(cli("remote", "profile", here / "absent.so", "-o", here / "p", *there), 4, "there is no library")
    assert_refused(cli("remote", "profile", library, "-o", f"{NOWHERE}/p", *there), 4, f"cannot write {NOWHERE}/p")
    assert_refused(cli("remote", "run", library, "--output-dir", NOWHERE, *there), 4, "cannot write")
    for name, reason in (("absent", "No such file"), ("text", "is no .npy file"), ("object.npy", "is no .npy file")):
        assert_refused(cli("remote", "run", library, "--input", f"x={here / name}", *there), 2, str(here / name), reason)
    (here / "alone.so").write_bytes(library.read_bytes())
    assert_refused(cli("remote", "run", here / "alone.so", *there), 4, "alone.weights is missing")


def test_outputs_are_complete_or_not_there(tmp_path):
    target = tmp_path / "new" / "x"
    with pytest.raises(ZeroDivisionError), files.replacing(target) as partial:
        partial.write_text("a beginning")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with files.replacing(target) as partial:
        partial.write_text("one")
        assert not target.exists()
    with pytest.raises(OSError, match=f"^cannot write {target}: "), files.replacing(target) as partial:
        partial.write_text("another")
        with open("/dev/full", "w") as full:
            full.write("x" * 100000)
    assert target.read_text() == "one" and list(target.parent.iterdir()) == [target]


def test_errors_name_the_output_and_not_the_temporary_file(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match=f"^cannot write {tmp_path / 'x'}: Is a directory$"), files.replacing(tmp_path / "x") as f:
        f.write_text("")
    with pytest.raises(FileNotFoundError) as caught, files.replacing(tmp_path / "y"):
        (tmp_path / "source").read_text()
    assert caught.value.filename == str(tmp_path / "source")  # it is not the output that is missing


def test_devices_are_written_to_and_links_followed(tmp_path):
    with files.replacing("/dev/null") as partial:
        partial.write_text("gone")
    assert not os.path.isfile("/dev/null")
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with files.replacing(tmp_path / "link") as partial:
        partial.write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_a_trial_leaves_nothing(tmp_path):
    files.require_writable(tmp_path / "a" / "b" / "x")
    files.require_folder(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "No such file"),
        ("folder", "it is a folder"),
        ("pipe", "it is no file"),
        ("empty", "is no .npy file"),
        ("text", "is no .npy file"),
        ("object.npy", "is no .npy file"),
        ("cut.npy", "is no .npy file"),
        ("several.npz", "an archive of several"),
    ],
)
def test_inputs(cli, library, here, name, reason):
    np.savez(here / "several.npz", np.zeros(3))
    np.save(here / "cut.npy", np.zeros((1, 3, 32, 32), "f4"))
    os.truncate(here / "cut.npy", 1000)
    done = cli("run", library, "--input", f"x={here / name}")
    assert_refused(done, 2, f"the input {here / name}", reason)


@pytest.mark.parametrize(
    "options",
    [
        ["--budget", "9" * 5000],
        ["--budget", "9" * 500 + ".5MB"],
        ["--threads", "1000000000"],
        ["--input", "x:1,3,99999999999,999999999"],
        ["--target", "llvm -num-cores=100000000"],
    ],
)
def test_numbers_that_are_too_large(cli, model, tmp_path, options):
    done = cli("build", model, "-o", tmp_path / "x.so", *options)
    assert done.returncode == (3 if "--target" in options else 2)
    assert "Traceback" not in done.stderr and "passes" not in done.stderr
    assert done.stderr.splitlines()[-1].lower().startswith("error: ")


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
def test_times_without_end(cli, model, library, tmp_path, seconds):
    for args in (
        ["tune", model, "-o", tmp_path / "t", "--timeout-ms", seconds],
        ["remote", "run", library, "--rpc", "localhost:1", "--rpc-wait-ms", seconds],
    ):
        done = cli(*args)
        assert done.returncode == 2 and f"Invalid value for '{args[-2]}'" in done.stderr
