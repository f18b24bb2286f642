// Inputs padded and outputs cut, next to loops over elements, in memory without a byte to spare; elements of padding in every type.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "program/padding.h"
#include "session/padded_copy.h"

namespace {

using namespace flexcomp;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

TensorType TypeOf(std::vector<int64_t> shape, DLDataType dtype) {
  TensorType type{dtype, std::move(shape), {}, 0};
  type.strides.resize(type.shape.size());
  int64_t elements = 1;
  for (size_t axis = type.shape.size(); axis-- > 0;) {
    type.strides[axis] = elements;
    elements *= type.shape[axis];
  }
  type.nbytes = static_cast<uint64_t>(elements) * (dtype.bits / 8);
  return type;
}

// Calls with the place of each element of `part` in `whole`.
void ForElements(const TensorType& whole, const TensorType& part, const std::function<void(uint64_t, uint64_t)>& function) {
  for (uint64_t i = 0; i < part.nbytes / (part.dtype.bits / 8); ++i) {
    uint64_t left = i, at = 0;
    for (size_t axis = 0; axis < part.shape.size(); ++axis) {
      at += left / static_cast<uint64_t>(part.strides[axis]) * static_cast<uint64_t>(whole.strides[axis]);
      left %= static_cast<uint64_t>(part.strides[axis]);
    }
    function(at, i);
  }
}

void TryCopies(const std::vector<int64_t>& shape, const std::vector<int64_t>& shorter, uint8_t bits) {
  const TensorType whole = TypeOf(shape, {kDLUInt, bits, 1}), part = TypeOf(shorter, {kDLUInt, bits, 1});
  const size_t nbytes = bits / 8;
  std::vector<std::byte> given(part.nbytes), padded(whole.nbytes, std::byte{0xee}), wanted(whole.nbytes), cut(part.nbytes);
  for (size_t i = 0; i < given.size(); ++i) given[i] = static_cast<std::byte>(i * 7 + 1);
  for (const bool alike : {true, false}) {
    std::vector<std::byte> value(nbytes, std::byte{9});
    if (!alike) value.front() = std::byte{8};
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = value[i % nbytes];
    ForElements(whole, part, [&](uint64_t at, uint64_t i) { std::memcpy(&wanted[at * nbytes], &given[i * nbytes], nbytes); });
    CopyPadded(padded.data(), whole, given.data(), part, value);
    Require(padded == wanted, "a padded input is wrong");
    CopyCut(cut.data(), part, padded.data(), whole);
    Require(cut == given, "a cut output is wrong");
  }
}

// The element that inputs of this type are padded with.
std::vector<std::byte> ElementOf(DLDataType dtype, const char* value) {
  auto program = std::make_shared<Program>();
  program->inputs.push_back({"x", 0, TypeOf({1, 4}, dtype)});
  program->metadata["pad"] = std::string(R"({"values": {"x": )") + value + R"(}, "inputs": {"x": [null, "n"]}, "outputs": {}, "rows": null})";
  const std::vector<std::shared_ptr<const Program>> programs{program};
  const auto padding = Padding::Of(programs);
  const std::vector<int64_t> shorter{1, 3};
  const std::vector<std::span<const int64_t>> extents{shorter};
  Require(padding->FitOf(programs, extents).inputs[0].nbytes == 3u * (dtype.bits / 8), "a shorter input has another size");
  const auto bytes = padding->value(0);
  return {bytes.begin(), bytes.end()};
}

void TryValue(DLDataType dtype, const char* value, uint64_t bits) {
  const std::vector<std::byte> found = ElementOf(dtype, value);
  Require(found.size() == dtype.bits / 8u && std::memcmp(found.data(), &bits, found.size()) == 0, value);
}

}  // namespace

int main() {
  for (int64_t a = 1; a <= 3; ++a)
    for (int64_t b = 1; b <= 3; ++b)
      for (int64_t c = 1; c <= 2; ++c)
        for (int64_t i = 1; i <= a; ++i)
          for (int64_t j = 1; j <= b; ++j)
            for (int64_t k = 1; k <= c; ++k)
              for (const uint8_t bits : {8, 16, 32, 64}) TryCopies({a, b, c}, {i, j, k}, bits);
  TryCopies({}, {}, 32);
  TryCopies({5}, {2}, 16);
  TryValue({kDLFloat, 16, 1}, "0.1", 0x2e66);
  TryValue({kDLFloat, 16, 1}, "-1e-7", 0x8002);
  TryValue({kDLFloat, 16, 1}, "65504", 0x7bff);
  TryValue({kDLFloat, 16, 1}, "0", 0);
  TryValue({kDLBfloat, 16, 1}, "0.1", 0x3dcd);
  TryValue({kDLFloat, 32, 1}, "-1e9", 0xce6e6b28);
  TryValue({kDLFloat, 64, 1}, "1", 0x3ff0000000000000);
  TryValue({kDLInt, 64, 1}, "-1", ~uint64_t{0});
  TryValue({kDLInt, 8, 1}, "-128", 0x80);
  TryValue({kDLUInt, 8, 1}, "255", 0xff);
  TryValue({kDLUInt, 64, 1}, "1", 1);
  TryValue({kDLBool, 8, 1}, "1", 1);
  return 0;
}
