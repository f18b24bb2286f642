// A scenario again and again in forked processes, with one call of the C library failing in each.
//
// driver SCENARIO LIBRARY WEIGHTS X Y OPTIONS BUDGET... reads numbers from standard input. SCENARIO is "session", or with the library
// of the runtime in the environment's FLEXCOMP_RUNTIME "source-descriptor", "source-reader", or "pool-N" with N lanes. X and Y are files of floats, input and expected
// output; OPTIONS is the JSON that sessions are opened with. For 0 it prints how many calls there are; for n, and each way in which
// the n-th call can fail, a line of fields between tabs:
//   n, variant, call, verdict, step, message
// Verdicts: right (nobody noticed), error (clear, once, and what was asked for done the next time), unfired (there are fewer
// calls this time), wrong, unclear, crash, hang.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "pool_scenario.h"
#include "session_scenario.h"
#include "source_scenario.h"

namespace {

using namespace faults;

constexpr int kSecondsToHang = 30;

// Whether a thread of the process wants a core or waits for the disk: on a busy machine it may wait for a core for long.
bool IsAtWork(pid_t process) {
  const std::string tasks = "/proc/" + std::to_string(process) + "/task";
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const size_t name = stat.rfind(") ");
    if (name != std::string::npos && (stat[name + 2] == 'R' || stat[name + 2] == 'D')) return true;
  }
  return false;
}

// The status of a child that has ended; none: it slept for too long, and was killed.
std::optional<int> StatusOf(pid_t child) {
  sigset_t ended;
  sigemptyset(&ended);
  sigaddset(&ended, SIGCHLD);
  const timespec second{1, 0};
  int status = 0;
  for (int asleep = 0; asleep < kSecondsToHang; asleep = IsAtWork(child) ? 0 : asleep + 1) {
    if (::waitpid(child, &status, WNOHANG) == child) return status;
    ::sigtimedwait(&ended, nullptr, &second);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return std::nullopt;
}

// Runs the scenario in a process of its own.
void Play(const Scenario& scenario, uint64_t n, int variant) {
  new (outcome) Outcome();
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit computing{kSecondsToHang, kSecondsToHang};
    ::setrlimit(RLIMIT_CPU, &computing);
    fault_step(false);
    scenario.Play(n, variant);
    End();
  }
  const std::optional<int> status = StatusOf(child);
  if (!status || (WIFSIGNALED(*status) && (WTERMSIG(*status) == SIGXCPU || WTERMSIG(*status) == SIGKILL)))
    Note("hang", outcome->doing, outcome->message);
  else if (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0)
    Note("crash", outcome->doing, WIFSIGNALED(*status) ? ::strsignal(WTERMSIG(*status)) : "it ended itself");
  else if (n > 0 && outcome->call.name == nullptr)
    Note("unfired", "", "");
}

// On one core threads that wait sleep at once, and many processes can be tried at a time. Lanes need one each.
void UseCores(int count) {
  cpu_set_t all, used;
  if (::sched_getaffinity(0, sizeof(all), &all) != 0) std::exit(2);
  CPU_ZERO(&used);
  const int first = ::sched_getcpu();
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&used) < count; ++i) {
    const int core = (first + i) % CPU_SETSIZE;
    if (CPU_ISSET(core, &all)) CPU_SET(core, &used);
  }
  if (CPU_COUNT(&used) < count || ::sched_setaffinity(0, sizeof(used), &used) != 0) std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 10) return 2;
  const std::string name = argv[1];
  const int lanes = name.starts_with("pool-") ? std::atoi(name.c_str() + 5) : 1;
  UseCores(lanes);
  sigset_t ended;
  sigemptyset(&ended);
  sigaddset(&ended, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &ended, nullptr);  // it is waited for
  std::unique_ptr<Scenario> made;
  if (name == "session") made = std::make_unique<SessionScenario>();
  else if (name.starts_with("source-")) made = std::make_unique<SourceScenario>(std::string_view(name).substr(7));
  else made = std::make_unique<PoolScenario>(lanes);
  Scenario& scenario = *made;
  scenario.library = argv[2], scenario.weights = argv[3], scenario.options = argv[6];
  scenario.x = ReadFloats(argv[4]), scenario.y = ReadFloats(argv[5]);
  for (int i = 7; i < argc; ++i) scenario.budgets.push_back(std::atoll(argv[i]));
  scenario.Prepare();
  outcome = static_cast<Outcome*>(::mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (uint64_t n; std::cin >> n;) {
    if (n == 0) {
      Play(scenario, 0, 0);
      if (std::strcmp(outcome->verdict, "right") != 0) {
        std::fprintf(stderr, "%s: %s: %s\n", outcome->verdict, outcome->step, outcome->message);
        return 1;
      }
      std::printf("%llu\n", static_cast<unsigned long long>(outcome->count));
    } else {
      for (int variant = 0, variants = 1; variant < variants; ++variant) {
        Play(scenario, n, variant);
        variants = outcome->call.variants;
        const char* name = outcome->call.name;
        std::printf("%llu\t%d\t%s\t%s\t%s\t%s\n", static_cast<unsigned long long>(n), variant, name != nullptr ? name : "",
                    outcome->verdict, outcome->step, outcome->message);
      }
    }
    std::fflush(stdout);
  }
  return 0;
}
