// Files that several threads open, share and give back, in a process that is forked meanwhile.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "storage/open_file.h"

using flexcomp::OpenFile;

namespace {

constexpr int kThreads = 2, kForks = 300;
constexpr unsigned kPatienceS = 20;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

}  // namespace

int main(int, char** argv) {
  const std::string path = argv[1];
  std::atomic<bool> enough = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      while (!enough) {
        struct stat status, again;
        const auto one = OpenFile(path, 0, &status), other = OpenFile(path, 0, &again), third = OpenFile(path, O_SYNC, &again);
        Require(one && one == other && one != third, "a file is not open once");
        Require(::pread(one->get(), &status, 1, 0) == 1, "a file was closed that somebody has");
      }
    });
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(kPatienceS);  // ends it
      struct stat status;
      std::_Exit(OpenFile(path, 0, &status) ? 0 : 1);
    }
    int status;
    Require(child > 0 && ::waitpid(child, &status, 0) == child && status == 0, "a forked process cannot open files");
  }
  enough = true;
  for (auto& thread : threads) thread.join();
  struct stat status;
  Require(!OpenFile(path + ".none", 0, &status) && errno == ENOENT, "a file that is not there was opened");
}
