// libFuzzer on the reader of programs and its checks. Inputs are programs; mutations know the format and seal what they
// change, so that it gets behind the checksum.
#include <tvm/ffi/error.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "session/describe.h"
#include "mutator.h"
#include "program/program.h"
#include "program/signature.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  fuzz::Random random(seed);
  std::string program(reinterpret_cast<char*>(data), size);
  if (random() % 16 == 0) {
    program.resize(most);
    program.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(program.data()), size, most));
  } else {
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) fuzz::Mutate(program, random);
  }
  if (random() % 64 != 0) fuzz::Seal(program);
  if (program.size() > most) program.resize(most);
  std::memcpy(data, program.data(), program.size());
  return program.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const flexcomp::Program program = flexcomp::ReadProgram(std::string_view(reinterpret_cast<const char*>(data), size));
    for (const flexcomp::Layer& layer : program.layers) (void)flexcomp::SymbolOf(layer);
    (void)flexcomp::DescribeProgram(program);
    flexcomp::CheckPlans(program);
  } catch (const tvm::ffi::Error& error) {
    if (error.kind() != "ArtifactError") {
      std::fprintf(stderr, "%s: %s\n", std::string(error.kind()).c_str(), error.what());
      std::abort();
    }
  }
  return 0;
}
