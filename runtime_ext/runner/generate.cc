#include "generate.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
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

Reply Follow(const Model& model, const Arguments& arguments) {
  const auto capacity = Got<flexcomp_decoder_info>(flexcomp_describe_decoder, model.session()).capacity;
  Reply reply;
  Line line;
  std::vector<int64_t> given = arguments.generate;
  for (uint64_t position = 0;;) {
    int64_t next;
    Require(flexcomp_decode(model.session(), position, given.data(), static_cast<uint32_t>(given.size()), nullptr, &next));
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
    if (position == capacity) {
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
