"""The networks whose graphs come with the `onnx` package, by the names that the demonstration gives them."""

FILES = {
    "vgg19": "light_vgg19.onnx",
    "resnet50": "light_resnet50.onnx",
    "squeezenet": "light_squeezenet.onnx",
    "densenet121": "light_densenet121.onnx",
    "inception_v1": "light_inception_v1.onnx",
    "inception_v2": "light_inception_v2.onnx",
    "shufflenet": "light_shufflenet.onnx",
    "alexnet": "light_bvlc_alexnet.onnx",
    "zfnet512": "light_zfnet512.onnx",
}
NAMES = tuple(FILES)
DEFAULT = ("vgg19",)
