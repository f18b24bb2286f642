#include "generate.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "calls.h"
#include "model.h"
#include "process_memory.h"
#include "process_start.h"
#include "report.h"

namespace flexcomp::runner {
namespace {

// The line of tokens on standard output, which ends also where an error ends the reply.
class Line {
 public:
  ~Line() {
    if (!is_empty_) std::fputc('\n', stdout);
  }
  void Append(int64_t token) {
    if (std::printf(is_empty_ ? "%lld" : ",%lld", static_cast<long long>(token)) < 0 || std::fflush(stdout) != 0)
      throw std::runtime_error(std::string("cannot print the tokens: ") + std::strerror(errno));
    is_empty_ = false;
  }

 private:
  bool is_empty_ = true;
};

struct Reply {
  uint64_t tokens = 0;
  const char* finish = "length";
  int64_t first_ns = 0, last_ns = 0;  // of the monotonic clock
};

// The likeliest token but those that the arguments suppress.
int64_t LikeliestLeft(std::span<float> logits, const Arguments& arguments, bool is_first) {
  const auto suppress = [&](const std::set<int64_t>& tokens) {
    for (const int64_t token : tokens)
      if (static_cast<uint64_t>(token) < logits.size()) logits[static_cast<size_t>(token)] = -INFINITY;
  };
  suppress(arguments.suppress_tokens);
  if (is_first) suppress(arguments.begin_suppress_tokens);
  const auto most = std::ranges::max_element(logits);
  if (*most == -INFINITY) throw std::runtime_error("--suppress-tokens and --begin-suppress-tokens leave no token that may follow");
  return most - logits.begin();
}

Reply Follow(const Model& model, const Arguments& arguments) {
  const auto info = Got<flexcomp_decoder_info>(flexcomp_describe_decoder, model.session());
  const bool suppresses = !arguments.suppress_tokens.empty() || !arguments.begin_suppress_tokens.empty();
  std::vector<float> logits(suppresses ? info.vocabulary : 0);
  Reply reply;
  Line line;
  std::vector<int64_t> given = arguments.generate;
  for (uint64_t position = 0;;) {
    int64_t next;
    float* const wanted = suppresses ? logits.data() : nullptr;
    Require(flexcomp_decode(model.session(), position, given.data(), static_cast<uint32_t>(given.size()), wanted, &next));
    if (suppresses) next = LikeliestLeft(logits, arguments, position == 0);
    position += given.size();
    given = {next};
    reply.last_ns = MonotonicNs();
    if (reply.first_ns == 0) reply.first_ns = reply.last_ns;
    if (arguments.stop_tokens.contains(next)) {
      reply.finish = "stop";
      return reply;
    }
    line.Append(next);
    if (++reply.tokens == arguments.tokens) return reply;
    if (position == info.capacity) {
      reply.finish = "capacity";
      return reply;
    }
  }
}

}  // namespace

Json Generate(const Arguments& arguments, int64_t started) {
  const Model model(arguments);
  const uint64_t idle_rss = RssBytes();
  ResetPeakRss();
  if (arguments.warm) Require(flexcomp_warm(model.session()));
  const int64_t begun = MonotonicNs();
  const Reply reply = Follow(model, arguments);
  const uint64_t peak_rss = PeakRssBytes();

  const flexcomp_stats stats = model.Stats();
  Json report = Json::Object();
  report.Set("prompt_tokens", arguments.generate.size());
  report.Set("tokens", reply.tokens);
  report.Set("finish", reply.finish);
  report.Set("start_ms", static_cast<double>(begun - started) * 1e-6);
  report.Set("first_token_ms", static_cast<double>(reply.first_ns - begun) * 1e-6);
  const double later_s = static_cast<double>(reply.last_ns - reply.first_ns) * 1e-9;
  report.Set("tokens_per_s", reply.tokens > 1 && later_s > 0 ? Json(static_cast<double>(reply.tokens - 1) / later_s) : Json(nullptr));
  report.Set("inferences", stats.runs);
  report.Set("bytes_read", stats.total_bytes_read);
  AddModel(report, model, arguments, idle_rss, peak_rss);
  return report;
}

}  // namespace flexcomp::runner
