// libFuzzer on the reader of programs and its checks. Inputs are programs; mutations know the format and seal what they
// change, so that it gets behind the checksum.
#include <tvm/ffi/error.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "session/describe.h"
#include "mutator.h"
#include "program/encoded.h"
#include "program/program.h"
#include "program/signature.h"
#include "program/tapes.h"

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

// The operations of an accepted program touch the arena and the file only.
static void CheckTapes(const flexcomp::Program& program) {
  const auto inside = [](uint64_t at, uint64_t nbytes, uint64_t limit) { return at <= limit && nbytes <= limit - at; };
  flexcomp::TapeRoom room(program);
  for (size_t i = 0; i < program.rungs.size(); ++i) {
    const flexcomp::Rung& rung = program.Decode(i);
    for (const bool queued : {false, true}) {
      room.Open(rung, queued);
      const flexcomp::Tapes& tapes = room.tapes();
      for (const flexcomp::Tape* tape : {&tapes.first, &tapes.fill, &tapes.second, &tapes.settle, &tapes.steady})
        for (const flexcomp::Operation& operation : tape->operations) {
          const bool reads = operation.kind == flexcomp::Operation::Kind::kRead;
          const uint64_t limit = reads ? flexcomp::RoundUp(program.weights.data_nbytes, flexcomp::kPage) : rung.arena;
          if (!inside(operation.from, operation.from_nbytes, limit) || !inside(operation.to, operation.nbytes, rung.arena)) std::abort();
        }
    }
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const flexcomp::Shapes shapes = flexcomp::DecodeShapes(tvm::ffi::Bytes(reinterpret_cast<const char*>(data), size));
    (void)flexcomp::DescribeNetwork(shapes);
    for (const auto& program : shapes.programs()) {
      for (const flexcomp::Layer& layer : program->layers) (void)flexcomp::SymbolOf(layer);
      flexcomp::CheckPlans(*program);
      CheckTapes(*program);
    }
  } catch (const tvm::ffi::Error& error) {
    if (error.kind() != "ArtifactError") {
      std::fprintf(stderr, "%s: %s\n", std::string(error.kind()).c_str(), error.what());
      std::abort();
    }
  }
  return 0;
}
