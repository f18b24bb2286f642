#include "generate.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder/decoder.h"
#include "model.h"
#include "process_memory.h"
#include "process_start.h"
#include "report.h"

namespace flexcomp::runner {
namespace {

namespace json = tvm::ffi::json;

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
  uint64_t tokens = 0, inferences = 0;
  const char* finish = "length";
  int64_t first_ns = 0, last_ns = 0;  // of the monotonic clock
};

Reply Follow(const Model& model, const Decoder& decoder, const Arguments& arguments) {
  Reply reply;
  const auto infer = [&](size_t shape, const Decoder::OnTensors& fill, const Decoder::OnTensors& drain) {
    model.RunIn(shape, fill, drain);
    ++reply.inferences;
  };
  Line line;
  std::vector<float> logits(decoder.vocabulary());
  std::vector<int64_t> next = arguments.generate;
  for (uint64_t position = 0;;) {
    decoder.Take(infer, position, next, logits);
    position += next.size();
    next = {Likeliest(logits)};
    reply.last_ns = MonotonicNs();
    if (reply.first_ns == 0) reply.first_ns = reply.last_ns;
    if (arguments.stop_tokens.contains(next[0])) {
      reply.finish = "stop";
      return reply;
    }
    line.Append(next[0]);
    if (++reply.tokens == arguments.tokens) return reply;
    if (position == decoder.capacity()) {
      reply.finish = "capacity";
      return reply;
    }
  }
}

}  // namespace

json::Object Generate(const Arguments& arguments, int64_t started) {
  const Model model(arguments);
  const Decoder decoder = model.AsDecoder();
  const uint64_t idle_rss = RssBytes();
  ResetPeakRss();
  if (arguments.warm) model.Warm();
  const int64_t begun = MonotonicNs();
  const Reply reply = Follow(model, decoder, arguments);
  const uint64_t peak_rss = PeakRssBytes();

  const json::Object stats = model.Stats();
  json::Object report;
  report.Set("prompt_tokens", static_cast<int64_t>(arguments.generate.size()));
  report.Set("tokens", static_cast<int64_t>(reply.tokens));
  report.Set("finish", tvm::ffi::String(reply.finish));
  report.Set("start_ms", static_cast<double>(begun - started) * 1e-6);
  report.Set("first_token_ms", static_cast<double>(reply.first_ns - begun) * 1e-6);
  const double later_s = static_cast<double>(reply.last_ns - reply.first_ns) * 1e-9;
  report.Set("tokens_per_s", reply.tokens > 1 && later_s > 0 ? json::Value(static_cast<double>(reply.tokens - 1) / later_s) : json::Value(nullptr));
  report.Set("inferences", static_cast<int64_t>(reply.inferences));
  report.Set("bytes_read", stats["total_bytes_read"]);
  AddModel(report, model, stats, arguments, idle_rss, peak_rss);
  return report;
}

}  // namespace flexcomp::runner
