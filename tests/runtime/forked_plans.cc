// Plans that one thread decodes, in a process that is forked meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "program/program.h"

using namespace flexcomp;

namespace {

constexpr int kForks = 300;
constexpr unsigned kPatienceS = 20;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

void DecodeAll(const Program& program) {
  for (size_t rung = 0; rung < program.rungs.size(); ++rung)
    Require(program.Decode(rung).steps.size() == program.rungs[rung].steps, "a plan is not whole");
}

}  // namespace

int main(int, char** argv) {
  std::ifstream file(argv[1], std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  // A new one for each fork: a plan is decoded once.
  std::atomic<std::shared_ptr<const Program>> current = std::make_shared<const Program>(ReadProgram(bytes));
  std::atomic<bool> enough = false;
  std::thread decoding([&] {
    while (!enough) {
      const auto program = std::make_shared<const Program>(ReadProgram(bytes));
      current = program;
      DecodeAll(*program);
    }
  });
  for (int i = 0; i < kForks; ++i) {
    const auto program = current.load();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(kPatienceS);  // ends it
      DecodeAll(*program);
      std::_Exit(0);
    }
    int status;
    Require(child > 0 && ::waitpid(child, &status, 0) == child && status == 0, "a forked process cannot decode plans");
  }
  enough = true;
  decoding.join();
}
