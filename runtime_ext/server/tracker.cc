#include "tracker.h"

#include <random>

namespace flexcomp::server {
namespace {

// Numbers of TVM's protocol (tvm/rpc/base.py).
constexpr int32_t kTrackerMagic = 0x2f271;
constexpr char kSuccess[] = "0";
enum Code {
  kPut = 3,
  kUpdateInfo = 5,
  kGetPendingMatchKeys = 7
};

constexpr std::chrono::seconds kPatience{8};    // with a client that was sent here
constexpr std::chrono::seconds kAnswersWithin{5};  // meanwhile nobody is served

std::string Quoted(const std::string& text) { return '"' + text + '"'; }  // arguments hold no quotes

std::string List(int code, const std::string& rest) { return "[" + std::to_string(code) + rest + "]"; }

}  // namespace

std::string Tracker::Offer(int server_port) {
  const std::string host = reported_host_.empty() ? "null" : Quoted(reported_host_);
  const std::string port = std::to_string(server_port);
  const auto until = Clock::now() + kAnswersWithin;
  try {
    if (line_.get() < 0) {
      line_ = Connect(host_, port_, until);
      SendNumber(line_.get(), kTrackerMagic, until);
      if (ReceiveNumber(line_.get(), until) != kTrackerMagic) throw NetworkError("it is no RPC tracker");
      Order(List(kUpdateInfo, R"(, {"key": )" + Quoted("server:" + key_) + R"(, "addr": [)" + host + ", " + port + "]}"), until);
    }
    std::random_device random;
    offered_ = key_ + ":" + std::to_string(random()) + std::to_string(random());
    Order(List(kPut, ", " + Quoted(key_) + ", [" + port + ", " + Quoted(offered_) + "], " + host), until);
  } catch (const NetworkError& error) {
    Disconnect();
    throw NetworkError("tracker " + host_ + ":" + std::to_string(port_) + ": " + error.what());
  }
  last_pending_ = Clock::now();
  return offered_;
}

bool Tracker::StillOffered() {
  const auto now = Clock::now();
  if (Ask(List(kGetPendingMatchKeys, ""), now + kAnswersWithin).find(Quoted(offered_)) != std::string::npos) last_pending_ = now;
  return now - last_pending_ < kPatience;
}

std::string Tracker::Ask(const std::string& request, Clock::time_point until) {
  SendText(line_.get(), request, until);
  return ReceiveText(line_.get(), until);
}

void Tracker::Order(const std::string& request, Clock::time_point until) {
  if (const std::string answer = Ask(request, until); answer != kSuccess) throw NetworkError("it answers " + answer);
}

}  // namespace flexcomp::server
