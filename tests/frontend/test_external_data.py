"""Weights in files of their own: wherever in the model, by links as Hugging Face's cache has them, and nowhere else."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from flexcomp.errors import ModelError
from flexcomp.frontend import external_data, external_files, load_model
from flexcomp.frontend.file_bytes import FileBytes
from flexcomp.frontend.onnx_model import read_onnx

from .models import model, node, random

WEIGHT = random(4, 6)


def saved(folder, network=None, size=0):
    """A model and its data in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    network = network or model([node("MatMul", "x w", "y")], {"x": (2, 4)}, ["y"], {"w": WEIGHT})
    path = folder / "model.onnx"
    onnx.save(network, path, save_as_external_data=True, location="model.data", size_threshold=size, convert_attribute=True)
    return path


def weights(path):
    return load_model(path).weights


def refused(path, message):
    with pytest.raises(ModelError, match=f"keeps weights in a separate file that cannot be read: .*{message}"):
        load_model(path)


def cached(tmp_path):
    """As in Hugging Face's cache: links in a snapshot to blobs that are named by their hashes."""
    path = saved(tmp_path / "snapshots" / "c0ffee" / "onnx")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for one, name in ((path, "1111"), (path.with_suffix(".data"), "2222")):
        one.rename(blobs / name)
        one.symlink_to(f"../../../blobs/{name}")
    return path


def test_a_snapshot_of_links(tmp_path, monkeypatch):
    path = cached(tmp_path)
    assert np.array_equal(weights(path)[0], WEIGHT)
    assert external_files(path) == {path.with_suffix(".data")}
    (tmp_path / "other").symlink_to(path.parent)
    assert np.array_equal(weights(tmp_path / "other" / "model.onnx")[0], WEIGHT)
    monkeypatch.chdir(path.parent)
    assert np.array_equal(weights("model.onnx")[0], WEIGHT)


def test_links_that_end_in_the_folder(tmp_path):
    path = saved(tmp_path / "model")
    data = path.with_suffix(".data")
    (data.parent / "parts").mkdir()
    data.rename(data.parent / "parts" / "real")
    data.symlink_to("parts/real")
    assert np.array_equal(weights(path)[0], WEIGHT)


@pytest.mark.parametrize("where", ["elsewhere/data", "blobs_of_others/data", "snapshots/blobs/data"])
def test_links_that_end_anywhere_else_are_refused(where, tmp_path):
    path = cached(tmp_path)
    other = tmp_path / where
    other.parent.mkdir(parents=True)
    other.write_bytes((tmp_path / "blobs" / "2222").read_bytes())
    path.with_suffix(".data").unlink()
    path.with_suffix(".data").symlink_to(other)
    refused(path, "leads out of the model's folder")


def test_a_link_in_the_place_of_the_blobs_leads_nowhere(tmp_path):
    path = cached(tmp_path)
    (tmp_path / "blobs").rename(tmp_path / "elsewhere")
    (tmp_path / "blobs").symlink_to("elsewhere")
    refused(path, "leads out of the model's folder")


def test_blobs_are_read_from_snapshots_only(tmp_path):
    path = saved(tmp_path / "models" / "a")
    (tmp_path / "blobs").mkdir()
    path.with_suffix(".data").rename(tmp_path / "blobs" / "1")
    path.with_suffix(".data").symlink_to("../../blobs/1")
    refused(path, "leads out of the model's folder")


@pytest.mark.parametrize("location", ["../model.data", "a/../../model.data", "/etc/passwd", "", "model.data\0"])
def test_names_that_lead_out_are_refused(location, tmp_path):
    path = saved(tmp_path / "model")
    (tmp_path / "model.data").write_bytes(WEIGHT.tobytes())
    network = onnx.load(path, load_external_data=False)
    next(e for e in network.graph.initializer[0].external_data if e.key == "location").value = location
    path.write_bytes(network.SerializeToString())
    refused(path, "is not the name of a file in the model's folder")


def test_pipes_devices_and_folders_are_refused(tmp_path):
    path = saved(tmp_path)
    data = path.with_suffix(".data")
    data.unlink()
    os.mkfifo(data)
    refused(path, "is not a regular file")
    data.unlink()
    data.symlink_to("/dev/zero")
    refused(path, "is not a regular file")
    data.unlink()
    data.mkdir()
    refused(path, "is not a regular file")


def test_a_second_name_of_a_file_is_refused(tmp_path):
    path = saved(tmp_path)
    os.link(path.with_suffix(".data"), tmp_path / "other")
    refused(path, "has several hard links")


def test_a_link_that_changes_before_the_file_is_opened(tmp_path, monkeypatch):
    """The check is of the opened file: a link that led to an allowed file when it was looked at does not help."""
    path = saved(tmp_path / "model")
    secret = tmp_path / "secret"
    secret.write_bytes(WEIGHT.tobytes())
    data, opened = path.with_suffix(".data"), os.open

    def swapped(name, *flags):
        if name == str(data):
            data.unlink()
            data.symlink_to(secret)
        return opened(name, *flags)

    monkeypatch.setattr(external_data.os, "open", swapped)
    refused(path, "leads out of the model's folder")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("length", "4", "has 4 bytes, and its shape needs 96"), ("offset", "8", "ends at byte 104 of a file of 96"),
     ("offset", "-1", "must be non-negative"), ("length", "much", "invalid literal")],
)  # fmt: skip
def test_places_that_do_not_fit_the_file_are_refused(key, value, message, tmp_path):
    path = saved(tmp_path)
    network = onnx.load(path, load_external_data=False)
    entries = {e.key: e for e in network.graph.initializer[0].external_data}
    entries[key].value = value
    path.write_bytes(network.SerializeToString())
    refused(path, message)


def branch(name, weight):
    return helper.make_graph(
        [node("MatMul", f"x {name}_w", name)], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 6))],
        [numpy_helper.from_array(weight, f"{name}_w")],
    )  # fmt: skip


NETWORKS = {
    "Constant": lambda weight: [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight, "w")), node("MatMul", "x w", "y"),
    ],
    "branch": lambda weight: [node("If", "c", "y", then_branch=branch("t", weight), else_branch=branch("e", -weight))],
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_tensors_of_nodes_and_branches(name, tmp_path):
    network = model(NETWORKS[name](WEIGHT), {"x": (2, 4)}, ["y"], {"c": np.array(True)} if name == "branch" else {})
    network.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 6)))
    path = saved(tmp_path, network, size=20)
    assert external_files(path) == {path.with_suffix(".data")}
    assert np.array_equal(weights(path)[0], WEIGHT)
    with pytest.raises(ModelError, match="of the given ONNX model lies in a separate file"):
        load_model(onnx.load(path, load_external_data=False))


def test_a_large_constant_is_a_large_weight(tmp_path):
    weight = random(4, 1 << 17)
    path = saved(tmp_path, model(NETWORKS["Constant"](weight), {"x": (2, 4)}, ["y"]), size=20)
    assert np.array_equal(weights(path)[0], weight)


def product_of_two(folder, weight):
    """x w v, with both weights in the same file, or in two."""
    return saved(folder, model([node("MatMul", "x w", "p"), node("MatMul", "p v", "y")], {"x": (2, 512)}, ["y"], weight))


LARGE = {"w": random(512, 512), "v": random(512, 512)[:, ::-1].copy()}


def test_files_are_read_when_weights_are_needed(tmp_path):
    path = product_of_two(tmp_path, LARGE)
    found = weights(path)
    path.unlink()
    path.with_suffix(".data").unlink()
    assert {array.tobytes() for array in map(np.asarray, found)} == {array.tobytes() for array in LARGE.values()}


@pytest.mark.parametrize("how", ["other", "shorter"])
def test_a_file_that_changes_before_its_weights_are_needed_is_refused(how, tmp_path):
    path = product_of_two(tmp_path, LARGE)
    found, data = weights(path), path.with_suffix(".data")
    if how == "other":
        data.write_bytes(bytes(data.stat().st_size))
        os.utime(data, ns=(0, 0))
    else:
        os.truncate(data, 4096)
    with pytest.raises(ModelError, match=r"model\.data has changed since the build began to read it: build again"):
        np.asarray(found[0])


def test_of_many_files_few_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(external_data, "_MOST_OPEN", 1)
    path = product_of_two(tmp_path, LARGE)
    network = onnx.load(path)
    for tensor in network.graph.initializer:
        onnx.external_data_helper.set_external_data(tensor, f"{tensor.name}.data", 0)
        (tmp_path / f"{tensor.name}.data").write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
    path.write_bytes(network.SerializeToString())
    before, opened = len(os.listdir("/proc/self/fd")), FileBytes.read
    read = []
    monkeypatch.setattr(FileBytes, "read", lambda self, *place: [read.append(place), opened(self, *place)][1])
    model = read_onnx(path)
    assert read == [(0, 512 * 512 * 4)] and len(os.listdir("/proc/self/fd")) <= before + 1
    for name, weight in LARGE.items():
        np.testing.assert_array_equal(model.large[name], weight)
