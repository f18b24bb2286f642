// The ranges of an arena apart in memory: every address of a program's calls and loads is in its own one.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/call_table.h"
#include "program/tapes.h"
#include "storage/loader.h"

using namespace flexcomp;

namespace {

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

// Fills what is read with a byte.
class Source final : public ByteSource {
 public:
  void Begin(uint64_t, std::byte* target, size_t nbytes) noexcept override { std::memset(target, 7, nbytes); }
  bool Ready() noexcept override { return true; }
  int End() noexcept override { return 0; }
  int ReadNow(uint64_t, std::byte*, size_t) noexcept override { return ENOTSUP; }  // loaders do not
  int Check() const noexcept override { return 0; }
  bool direct() const noexcept override { return true; }
  bool queued() const noexcept override { return true; }
};

// A range with as much on both sides that nobody writes to.
struct Range {
  explicit Range(uint64_t nbytes) : nbytes(nbytes), bytes(3 * nbytes, std::byte{1}) {}
  std::byte* base() { return bytes.data() + nbytes; }
  bool Holds(const std::byte* at, uint64_t count) { return at >= base() && at + count <= base() + nbytes; }
  uint64_t nbytes;
  std::vector<std::byte> bytes;
};

void Try(const Program& program, const Rung& rung) {
  Range working(rung.working), kept(rung.arena - rung.working);
  const Places places(working.base(), kept.base(), rung.working);

  CallTable table(program, {std::vector<Kernel>(program.layers.size()), std::vector<Kernel>(program.layers.size())});
  table.Prepare(program, rung, rung.steps, places);
  for (size_t i = 0; i < rung.steps.size(); ++i) {
    const Layer& layer = program.layers[rung.steps[i].layer];
    for (size_t a = 0; a < layer.args.size(); ++a) {
      const TVMFFIAny& arg = table.calls()[i].args[a];
      if (arg.type_index != kTVMFFIDLTensorPtr) continue;
      const auto* data = static_cast<const std::byte*>(static_cast<const DLTensor*>(arg.v_ptr)->data);
      const bool weights = layer.args[a].kind == ArgKind::kWeight;
      const bool stays = weights && static_cast<uint64_t>(rung.steps[i].weights_at) >= rung.working;
      const uint64_t nbytes = weights ? rung.steps[i].count * layer.weights->block_nbytes : layer.args[a].type.nbytes;
      Require((stays ? kept : working).Holds(data, nbytes), "an argument is outside of its range");
    }
  }

  WeightsFile file("weights", std::make_unique<Source>());
  Loader loader(file, {}, false);
  TapeRoom tapes(program);
  tapes.Open(rung, true);
  loader.Open(tapes.tapes(), places, rung.working);
  loader.Start();
  for (uint32_t i = 0; i < rung.steps.size(); ++i) {
    Require(loader.Await(loader.tape().need[i]), "the loads were interrupted");
    loader.Computed(i + 1);
  }
  Require(loader.Finish(), "the loads were interrupted");
  loader.GiveUp();  // reading ahead
  for (const Operation& read : rung.operations) {
    const bool stays = read.to >= rung.working;
    Range& range = stays ? kept : working;
    const std::byte* at = range.base() + read.to - (stays ? rung.working : 0);
    Require(range.Holds(at, read.nbytes), "a load is outside of its range");
    for (uint64_t byte = 0; byte < read.nbytes; ++byte) Require(at[byte] == std::byte{7}, "a load has not arrived");
  }
  for (Range* range : {&working, &kept})
    for (uint64_t i = 0; i < range->nbytes; ++i)
      Require(range->bytes[i] == std::byte{1} && range->bytes[2 * range->nbytes + i] == std::byte{1}, "bytes outside are written");
}

}  // namespace

int main(int, char** argv) {
  std::ifstream in(argv[1], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const Program program = ReadProgram(bytes);
  for (size_t i = 0; i < program.rungs.size(); ++i) Try(program, program.Decode(i));
}
