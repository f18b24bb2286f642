#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <sstream>
#include <utility>

namespace flexcomp::runner {

const char kUsage[] =
    R"(flexcomp-run MODEL.so [options]
flexcomp-run DECODER.so --generate 1,2,3 [options]
flexcomp-run --pool MODEL.so MODEL.so ... --budget B [options]

  --weights FILE          the weights file (default: MODEL.weights)
  --budget B              memory: bytes, 64MB, 64MiB, a fraction of the resident size such as 0.1 or 10%, min, or all
                          (default: the smallest that is nearly as fast as any)
  --threads N             compute threads (default: as built, at most the cores for them)
  --compute-cpus LIST     cores for kernels, such as 4-7 (default: the big ones, where cores differ)
  --loader-cpu LIST       cores for loading weights (default: the little ones, where cores differ)
  --no-affinity           let the system place all threads
  --no-work-stealing      threads that wait for weights do not prepare any meanwhile
  --repeat N              timed inferences (default 1)
  --warmup N              inferences before them (default 0)
  --start cold|warm       let the first inference load what stays in memory (default), or load it before
  --reset-state           clear the network's state before every inference (default: it goes on from one to the next)
  --input NAME=FILE.npy   an input tensor; inputs not given are random (integers: zero)
  --output-dir DIR        write each output to DIR/NAME.npy ("/" in names becomes "_")
  --seed N                of the random inputs (default 0)
  --verify                check every byte of the weights first, and whenever it is read
  --no-direct             read through the page cache instead of O_DIRECT
  --read-bandwidth N      imitate storage of N bytes per second
  --read-rate N           afterwards measure the storage alone, by reads of N bytes
  --device-rates          afterwards measure what a GPU costs besides its kernels: copies, launches, events
  --trace FILE            write when steps and loads ran: a line of JSON for each timed inference
  --generate TOKENS       a decoder's next tokens after these, numbers with commas between: the likeliest ones, printed as
                          they come, before the report. No options of inferences on tensors count
  --tokens N              at most so many (default: until the caches are full)
  --stop-tokens TOKENS    the reply ends before one of these
  --suppress-tokens TOKENS, --begin-suppress-tokens TOKENS
                          these do not come, or not as the first: settings of generation_config.json
  --pool                  several models share the budget: each gets --repeat requests, one after the other, beside the
                          others'. Of the other options --threads (of a lane), --warmup, --output-dir (DIR/MODEL), --seed,
                          --verify, --no-direct, --read-bandwidth, --no-affinity, --no-work-stealing count. A model's
                          NAME is its file's, without .so
  --lanes N               so many inferences at a time (default 1)
  --urgency NAME=X        what a second of its latency costs (default 1)
  --rate NAME=X           no more than X requests a second (default: as many as there can be)
  --deadline-ms NAME=MS   refuse requests that would take longer
  --started NS            when this process was started, by the monotonic clock (default: as the system counts)
  --switch-budgets N      afterwards switch the budget N times at random, with one inference each
  --callers N             ... while N threads run inferences, at random times, and check each output

Prints one JSON object. Exit codes: 0 done, 2 wrong usage, 4 cannot run.
)";

namespace {

template <typename T>
T Number(const std::string& option, const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const char* const after = text.data() + text.size();
  if ((error == std::errc::result_out_of_range && end == after) || (error == std::errc{} && end == after && value < 0)) {
    std::ostringstream most;
    most << std::numeric_limits<T>::max();
    throw UsageError(option + " takes a number from 0 to " + most.str() + ", not " + text);
  }
  if (error != std::errc{} || end != after) throw UsageError(option + " takes a number, not \"" + text + "\"");
  return value;
}

// "1,2,3"
std::vector<int64_t> Tokens(const std::string& option, const std::string& text) {
  std::vector<int64_t> tokens;
  std::istringstream words(text + ",");  // a comma ends each, so that an empty last one is seen
  for (std::string word; std::getline(words, word, ',');) {
    if (word.empty()) throw UsageError(option + " takes tokens such as 1,2,3, not \"" + text + "\"");
    tokens.push_back(Number<int64_t>(option, word));
  }
  return tokens;
}

}  // namespace

Arguments ParseArguments(int argc, char** argv) {
  Arguments parsed;
  const auto take_input = [&](const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) throw UsageError("--input takes NAME=FILE.npy, not \"" + text + "\"");
    if (!parsed.inputs.emplace(text.substr(0, equals), text.substr(equals + 1)).second)
      throw UsageError("the input " + text.substr(0, equals) + " is given twice");
  };
  bool pool = false;
  std::vector<std::string> models;
  const auto of_model = [](const char* option, std::map<std::string, double>& numbers) {
    return [option, &numbers](const std::string& text) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0) throw UsageError(std::string(option) + " takes NAME=NUMBER, not \"" + text + "\"");
      const double number = Number<double>(option, text.substr(equals + 1));
      if (!(number > 0)) throw UsageError(std::string(option) + " takes a number above 0, not \"" + text + "\"");
      numbers[text.substr(0, equals)] = number;
    };
  };
  const auto of_tokens = [](const char* option, std::set<int64_t>& set) {
    return [option, &set](const std::string& text) {
      const std::vector<int64_t> tokens = Tokens(option, text);
      set = {tokens.begin(), tokens.end()};
    };
  };
  const std::map<std::string, std::function<void(const std::string&)>> options = {
      {"--lanes", [&](const std::string& text) { parsed.lanes = Number<int>("--lanes", text); }},
      {"--urgency", of_model("--urgency", parsed.urgency)},
      {"--rate", of_model("--rate", parsed.rate)},
      {"--deadline-ms", of_model("--deadline-ms", parsed.deadline_ms)},
      {"--weights", [&](const std::string& text) { parsed.weights = text; }},
      {"--budget", [&](const std::string& text) { parsed.budget = ParseBudget(text); }},
      {"--threads", [&](const std::string& text) { parsed.threads = Number<int>("--threads", text); }},
      {"--compute-cpus", [&](const std::string& text) { parsed.compute_cpus = text; }},
      {"--loader-cpu", [&](const std::string& text) { parsed.loader_cpu = text; }},
      {"--repeat", [&](const std::string& text) { parsed.repeat = Number<int>("--repeat", text); }},
      {"--warmup", [&](const std::string& text) { parsed.warmup = Number<int>("--warmup", text); }},
      {"--start",
       [&](const std::string& text) {
         if (text != "cold" && text != "warm") throw UsageError("--start takes cold or warm, not \"" + text + "\"");
         parsed.warm = text == "warm";
       }},
      {"--input", take_input},
      {"--generate", [&](const std::string& text) { parsed.generate = Tokens("--generate", text); }},
      {"--tokens", [&](const std::string& text) { parsed.tokens = Number<uint64_t>("--tokens", text); }},
      {"--stop-tokens", of_tokens("--stop-tokens", parsed.stop_tokens)},
      {"--suppress-tokens", of_tokens("--suppress-tokens", parsed.suppress_tokens)},
      {"--begin-suppress-tokens", of_tokens("--begin-suppress-tokens", parsed.begin_suppress_tokens)},
      {"--output-dir", [&](const std::string& text) { parsed.output_dir = text; }},
      {"--trace", [&](const std::string& text) { parsed.trace = text; }},
      {"--callers", [&](const std::string& text) { parsed.callers = Number<int>("--callers", text); }},
      {"--seed", [&](const std::string& text) { parsed.seed = Number<uint64_t>("--seed", text); }},
      {"--read-bandwidth",
       [&](const std::string& text) { parsed.read_bandwidth = Number<double>("--read-bandwidth", text); }},
      {"--started", [&](const std::string& text) { parsed.started = Number<int64_t>("--started", text); }},
      {"--read-rate", [&](const std::string& text) { parsed.read_rate = Number<int64_t>("--read-rate", text); }},
      {"--switch-budgets",
       [&](const std::string& text) { parsed.switch_budgets = Number<int>("--switch-budgets", text); }},
  };
  const std::map<std::string, bool*> flags = {
      {"--verify", &parsed.verify},
      {"--device-rates", &parsed.device_rates},
      {"--no-direct", &parsed.no_direct},
      {"--no-affinity", &parsed.no_affinity},
      {"--no-work-stealing", &parsed.no_work_stealing},
      {"--pool", &pool},
      {"--reset-state", &parsed.reset_state},
      {"--help", &parsed.help},
      {"-h", &parsed.help},
  };

  // Old names of options, which work for one more version.
  const std::map<std::string, std::string> renamed = {
      {"--buffered", "--no-direct"}, {"--deadline", "--deadline-ms"}, {"--no-help", "--no-work-stealing"}};

  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const size_t end = std::min(word.find('='), word.size());
    if (const auto found = renamed.find(word.substr(0, end)); found != renamed.end()) {
      std::cerr << "warning: " << found->first << " is now called " << found->second << "; the old name ends with this version\n";
      word.replace(0, end, found->second);
    }
    if (const auto flag = flags.find(word); flag != flags.end()) {
      *flag->second = true;
      continue;
    }
    if (!word.starts_with("--")) {
      models.push_back(word);
      continue;
    }
    // "--option value" or "--option=value"
    std::string value;
    bool has_value = false;
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      value = word.substr(equals + 1);
      word.resize(equals);
      has_value = true;
    }
    const auto option = options.find(word);
    if (option == options.end()) throw UsageError("unknown option " + word);
    if (!has_value) {
      if (++i == argc) throw UsageError(word + " needs a value");
      value = argv[i];
    }
    option->second(value);
  }
  if (!pool && models.size() > 1) throw UsageError("more than one model: " + models[0] + " and " + models[1] + "; without --pool");
  if (models.empty() && !parsed.help) throw UsageError("which model? flexcomp-run MODEL.so [options]");
  if (pool)
    parsed.pool = models;
  else if (!models.empty())
    parsed.model = models[0];
  if (!pool && (parsed.lanes != 1 || !parsed.urgency.empty() || !parsed.rate.empty() || !parsed.deadline_ms.empty()))
    throw UsageError("--lanes, --urgency, --rate and --deadline-ms need --pool");
  if (pool && (!parsed.weights.empty() || !parsed.compute_cpus.empty() || !parsed.loader_cpu.empty() || !parsed.inputs.empty() ||
               !parsed.trace.empty() || parsed.warm || parsed.reset_state || parsed.device_rates || parsed.read_rate > 0 || parsed.switch_budgets > 0))
    throw UsageError(
        "with --pool only --budget, --threads, --repeat, --warmup, --output-dir, --seed, --verify, --no-direct, "
        "--read-bandwidth, --no-affinity, --no-work-stealing and the pool's own options count");
  const bool of_reply = parsed.tokens != Arguments().tokens || !parsed.stop_tokens.empty() || !parsed.suppress_tokens.empty() ||
                        !parsed.begin_suppress_tokens.empty();
  if (parsed.generate.empty() && of_reply)
    throw UsageError("--tokens, --stop-tokens, --suppress-tokens and --begin-suppress-tokens need --generate");
  if (parsed.tokens == 0) throw UsageError("--tokens takes at least 1");
  if (!parsed.generate.empty() && (pool || !parsed.inputs.empty() || !parsed.output_dir.empty() || !parsed.trace.empty() || parsed.repeat != 1 ||
                                   parsed.warmup > 0 || parsed.reset_state || parsed.seed > 0 || parsed.switch_budgets > 0))
    throw UsageError(
        "with --generate, --pool, --input, --output-dir, --seed, --repeat, --warmup, --reset-state, --trace, --switch-budgets "
        "and --callers have no meaning: leave them out");
  if (parsed.lanes < 1) throw UsageError("a pool has 1 to 64 lanes, not 0");
  if (pool && !parsed.budget.nbytes && !parsed.help) throw UsageError("--pool needs --budget, in bytes, such as 64MB");
  if (parsed.repeat < 1) throw UsageError("--repeat takes at least 1");
  if (parsed.callers > 0 && parsed.switch_budgets == 0) throw UsageError("--callers needs --switch-budgets");
  return parsed;
}

}  // namespace flexcomp::runner
