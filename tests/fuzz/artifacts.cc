// Opens and runs artifacts whose program or weights were changed, in this process, thousands of times.
//
// artifacts SECONDS SEED NETWORK... takes networks as networks.py writes them: NETWORK.so, .weights, .program and .tensors,
// its inputs and the outputs it should give. Every case is a network with something changed:
//   an unsealed program     refused, whatever was changed
//   a sealed program        refused; or its outputs are right; or they are not, and the change is of the documented class, which
//                           gives a layer or a port another value, or a layer another kernel, of the same type and size
//   weights, with verify    refused
//   weights, without        refused if the header or the size was changed; nothing else is promised but to end
// It ends with the first case that is none of these, by a signal if need be, and leaves its program in FAILED.program. Arenas
// lie between guards (guarded_arena.cc). Prints counts.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "kernels/call_table.h"
#include "mutator.h"
#include "program/program.h"
#include "session/session.h"

namespace {

using fuzz::Random;

constexpr unsigned kHangs = 60;  // seconds; a case takes about a millisecond

struct Network {
  std::string name, program, weights;
  std::vector<flexcomp::Port> inputs, outputs;
  std::vector<std::string> given, expected;  // bytes
};

// What the handler of signals leaves behind.
char current[256];
std::string current_program;

void Leave(int signal) {
  if (FILE* file = std::fopen("FAILED.program", "wb")) {
    std::fwrite(current_program.data(), 1, current_program.size(), file);
    std::fclose(file);
  }
  std::fprintf(stderr, "%s: %s\n", signal == SIGALRM ? "hang" : "signal", current);
  std::_Exit(1);
}

[[noreturn]] void Fail(const std::string& reason) {
  std::fprintf(stderr, "%s: ", reason.c_str());
  Leave(0);
  std::abort();
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail("cannot read " + path);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  const timespec long_ago[2] = {{1, 1}, {1, 1}};  // what was changed just now would be waited for
  if (::utimensat(AT_FDCWD, path.c_str(), long_ago, 0) != 0) Fail("cannot write " + path);
}

Network Load(const std::string& name) {
  Network network{name, ReadFile(name + ".program"), ReadFile(name + ".weights"), {}, {}, {}, {}};
  if (::dlopen((name + ".so").c_str(), RTLD_NOW) == nullptr) Fail(std::string("cannot load ") + ::dlerror());
  const flexcomp::Program program = flexcomp::ReadProgram(network.program);
  network.inputs = program.inputs;
  network.outputs = program.outputs;
  const std::string tensors = ReadFile(name + ".tensors");
  size_t at = 0;
  const auto take = [&](const std::vector<flexcomp::Port>& ports, std::vector<std::string>& into) {
    for (const flexcomp::Port& port : ports) {
      into.push_back(tensors.substr(at, port.type.nbytes));
      at += port.type.nbytes;
    }
  };
  take(network.inputs, network.given);
  take(network.outputs, network.expected);
  if (at != tensors.size()) Fail("the tensors of " + name + " do not fit its program");
  return network;
}

bool Near(const flexcomp::Port& port, const std::string& found, const std::string& expected) {
  if (port.type.dtype.code != kDLFloat || port.type.dtype.bits != 32) return found == expected;
  float largest = 0, apart = 0;
  for (size_t at = 0; at < found.size(); at += sizeof(float)) {
    float have, want;
    std::memcpy(&have, found.data() + at, sizeof(float));
    std::memcpy(&want, expected.data() + at, sizeof(float));
    largest = std::fmax(largest, std::fabs(want));
    apart = have == want              ? apart
            : std::isnan(have - want) ? INFINITY
                                      : std::fmax(apart, std::fabs(have - want));
  }
  return apart <= 1e-4f * largest + 1e-6f;
}

// failed: an error while it ran.
enum class Outcome {
  right,
  other,
  refused,
  failed
};

// One inference on the network's inputs. Ports that are not the network's are filled and looked at all the same.
bool RunOnce(flexcomp::Session& session, const Network& network) {
  const flexcomp::Program& program = session.program();
  const auto alike = [](const std::vector<flexcomp::Port>& have, const std::vector<flexcomp::Port>& want) {
    bool same = have.size() == want.size();
    for (size_t i = 0; same && i < have.size(); ++i)
      same = have[i].type.shape == want[i].type.shape && have[i].type.dtype.code == want[i].type.dtype.code &&
             have[i].type.dtype.bits == want[i].type.dtype.bits;
    return same;
  };
  if (!alike(program.inputs, network.inputs) || !alike(program.outputs, network.outputs)) {
    session.RunInPlace(
        [&](std::span<DLTensor> inputs) {
          for (size_t i = 0; i < inputs.size(); ++i) {
            const uint64_t nbytes = program.inputs[i].type.nbytes;
            for (uint64_t at = 0; at < nbytes; ++at) static_cast<char*>(inputs[i].data)[at] = static_cast<char>(at * 7);
          }
        },
        {});
    return false;
  }
  std::vector<std::string> given = network.given, found;
  for (const flexcomp::Port& port : network.outputs) found.emplace_back(port.type.nbytes, '\xaa');
  std::vector<DLTensor> tensors;
  const auto add = [&tensors](const std::vector<flexcomp::Port>& ports, std::vector<std::string>& bytes) {
    for (size_t i = 0; i < ports.size(); ++i)
      tensors.push_back(flexcomp::MakeTensor(ports[i].type, reinterpret_cast<std::byte*>(bytes[i].data())));
  };
  add(network.inputs, given);
  add(network.outputs, found);
  std::vector<const DLTensor*> pointers;
  for (const DLTensor& tensor : tensors) pointers.push_back(&tensor);
  const std::span<const DLTensor* const> all(pointers);
  session.Run(all.first(given.size()), all.last(found.size()));
  bool right = true;
  for (size_t i = 0; i < found.size(); ++i) right &= Near(network.outputs[i], found[i], network.expected[i]);
  return right;
}

// Opens a session on one of the program's budgets and runs it there and on another. `message`: of an error.
Outcome OpenAndRun(const Network& network, const std::string& program, const std::string& weights, bool verify, Random& random,
                   std::string& message) {
  flexcomp::Session::Owner session;
  try {
    auto read = std::make_shared<const flexcomp::Program>(flexcomp::ReadProgram(program));
    const auto budget = [&] { return read->rungs[random() % read->rungs.size()].budget; };
    flexcomp::SessionOptions options;
    options.library_path = network.name + ".so";
    options.threads = 1;
    options.budget = budget();
    options.storage.verify = verify;
    options.storage.direct = false;
    const uint64_t next = budget();
    session = flexcomp::Session::Owner(new flexcomp::Session(read, weights, options));
    try {
      bool right = RunOnce(*session, network);
      right &= RunOnce(*session, network);  // what was read ahead
      try {
        session->SetBudget(next);
      } catch (const tvm::ffi::Error& error) {
        if (error.kind() != "ArtifactError") throw;
        message = error.what();  // that plan was not looked at before
        return Outcome::refused;
      }
      right &= RunOnce(*session, network);
      return right ? Outcome::right : Outcome::other;
    } catch (const tvm::ffi::Error& error) {
      message = error.what();
      return Outcome::failed;
    }
  } catch (const tvm::ffi::Error& error) {
    message = error.what();
    return Outcome::refused;
  } catch (const std::bad_alloc&) {
    message = "no memory";
    return Outcome::refused;
  } catch (const std::system_error& error) {
    message = error.what();
    return Outcome::refused;
  }
}

// Whether a change of this may give another answer without an error: see docs/runtime.md, "What is accepted".
bool MayDiffer(const std::string& changed) {
  // clang-format off
  static const std::set<std::string> kMay = {
      "arg.value",  "arg.offset",  "layer.args",  // which value, or part of one, of the same type
      "port.value", "port.type",   "type.shape", "type.code", "type.bits", "body.inputs", "body.outputs",  // of ports
      "layer.kernel",  // of the same signature
      // Which bytes of the file are the rows that are read.
      "arg.table", "arg.rows", "arg.block", "arg.lanes", "arg.parts", "part.at", "part.nbytes", "part.count",
  };
  // clang-format on
  return kMay.contains(changed);
}

std::map<std::string, uint64_t> counts;

void TryProgram(const Network& network, Random& random) {
  current_program = network.program;
  std::vector<std::string> changed;
  for (uint64_t changes = random() % 4 == 0 ? 2 + random() % 3 : 1; changes > 0; --changes)
    changed.push_back(fuzz::Mutate(current_program, random));
  std::string names;
  for (const std::string& name : changed) names += " " + name;
  std::snprintf(current + std::strlen(current), sizeof(current) - std::strlen(current), ", changed:%s", names.c_str());
  if (current_program == network.program) {
    ++counts["programs that were changed back"];
    return;
  }
  try {
    flexcomp::CheckPlans(flexcomp::ReadProgram(current_program));
    Fail("accepted without its checksum");
  } catch (const tvm::ffi::Error& error) {
    if (error.kind() != "ArtifactError") Fail(error.what());
    ++counts["unsealed programs refused"];
  }
  fuzz::Seal(current_program);
  if (current_program == network.program) return;  // only its checksum or size was changed
  std::string message;
  switch (OpenAndRun(network, current_program, network.name + ".weights", false, random, message)) {
    case Outcome::refused:
      ++counts["sealed programs refused"];
      break;
    case Outcome::failed:
      ++counts["sealed programs that ended in an error"];
      if (std::getenv("SHOW_ERRORS") != nullptr) std::fprintf(stderr, "%s: %s\n", current, message.c_str());
      break;
    case Outcome::right:
      ++counts["sealed programs with right outputs"];
      break;
    case Outcome::other:
      if (std::any_of(changed.begin(), changed.end(), MayDiffer)) {
        ++counts["sealed programs with other outputs, of the documented class"];
      } else {
        Fail("other outputs");
      }
  }
}

void TryWeights(const Network& network, const std::string& scratch, Random& random) {
  std::string content = network.weights;
  const bool in_header = random() % 2 == 0;
  const size_t header = flexcomp::ReadProgram(network.program).weights.header_nbytes;
  const size_t at = in_header ? random() % header : header + random() % (content.size() - header);
  switch (random() % 4) {
    case 0:
      content[at] = static_cast<char>(random());
      break;
    case 1:
      content[at] ^= static_cast<char>(1 << random() % 8);
      break;
    case 2:
      for (size_t i = at; i < std::min(content.size(), at + 1 + random() % 64); ++i) content[i] = static_cast<char>(random());
      break;
    default:
      if (random() % 2 == 0) {
        content.resize(at);
      } else {
        content.append(1 + random() % 5000, '\0');
      }
  }
  if (content == network.weights) return;
  WriteFile(scratch, content);
  const bool sized = content.size() == network.weights.size();
  const bool only_data = sized && content.compare(0, header, network.weights, 0, header) == 0;
  std::string message;
  if (OpenAndRun(network, network.program, scratch, true, random, message) != Outcome::refused)
    Fail("changed weights were accepted with verify");
  ++counts["weights refused with verify"];
  const Outcome outcome = OpenAndRun(network, network.program, scratch, false, random, message);
  if (!only_data && outcome != Outcome::refused) Fail("another header or size was accepted");
  if (only_data && outcome != Outcome::right && outcome != Outcome::other) Fail("weights without verify: " + message);
  ++counts[only_data ? "weights run without verify" : "weights refused without verify"];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: artifacts SECONDS SEED NETWORK...\n");
    return 2;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGALRM, SIGABRT}) ::signal(signal, Leave);
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  std::vector<Network> networks;
  Random random(seed);
  for (int i = 3; i < argc; ++i) {
    networks.push_back(Load(argv[i]));
    std::string message;
    for (int turn = 0; turn < 20; ++turn)
      if (OpenAndRun(networks.back(), networks.back().program, networks.back().name + ".weights", true, random, message) != Outcome::right)
        Fail(networks.back().name + " is wrong before anything was changed " + message);
  }
  uint64_t number = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::strtoul(argv[1], nullptr, 10));
  for (; std::chrono::steady_clock::now() < end; ++number) {
    // Every case can be had again by itself: its seed is its number.
    Random own(seed * 1000003 + number);
    const Network& network = networks[own() % networks.size()];
    std::snprintf(current, sizeof(current), "case %llu of seed %llu, %s", static_cast<unsigned long long>(number),
                  static_cast<unsigned long long>(seed), network.name.c_str());
    ::alarm(kHangs);
    if (own() % 8 == 0) {
      TryWeights(network, "changed.weights", own);
    } else {
      TryProgram(network, own);
    }
  }
  std::printf("artifacts: %llu changed\n", static_cast<unsigned long long>(number));
  for (const auto& [what, count] : counts) std::printf("  %llu %s\n", static_cast<unsigned long long>(count), what.c_str());
  return 0;
}
