#include "notes.h"

#include <sched.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace flexcomp::runner {
namespace {

std::vector<int> Numbers(const std::string& list) {
  std::vector<int> numbers;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t dash = word.find('-');
    const int last = std::stoi(word.substr(dash == std::string::npos ? 0 : dash + 1));
    for (int number = std::stoi(word); number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

// That compute threads may run on.
int64_t CoreCount(const std::string& list) {
  if (!list.empty()) return static_cast<int64_t>(Numbers(list).size());
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return std::thread::hardware_concurrency();  // there are more than fit into a set
}

}  // namespace

Json Notes(const flexcomp_session_info& info) {
  Json notes = Json::Array();
  if (const int64_t cores = CoreCount(info.compute_cpus); cores > 0 && info.threads > cores)
    notes.Append(std::to_string(info.threads) + " threads share " + std::to_string(cores) + (cores == 1 ? " core" : " cores") +
                 " and wait for each other: fewer are faster");
  return notes;
}

Json CoresIn(const char* list) {
  if (*list == 0) return nullptr;
  Json numbers = Json::Array();
  for (const int number : Numbers(list)) numbers.Append(number);
  return numbers;
}

}  // namespace flexcomp::runner
