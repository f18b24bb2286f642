#include "tracker.h"

#include <random>

namespace flexcomp::server {
namespace {

// Numbers of TVM's protocol (tvm/rpc/base.py).
constexpr int32_t kTrackerMagic = 0x2f271;
constexpr char kSuccess[] = "0";
enum Code { kPut = 3, kUpdateInfo = 5, kGetPendingMatchKeys = 7 };

constexpr std::chrono::seconds kPatience{8};  // with a client that was sent here

std::string Quoted(const std::string& text) { return '"' + text + '"'; }  // arguments hold no quotes

std::string List(int code, const std::string& rest) { return "[" + std::to_string(code) + rest + "]"; }

}  // namespace

std::string Tracker::Offer(int server_port) {
  const std::string host = reported_host_.empty() ? "null" : Quoted(reported_host_);
  const std::string port = std::to_string(server_port);
  try {
    if (line_.get() < 0) {
      line_ = Connect(host_, port_);
      LimitSilence(line_.get(), 30);
      SendNumber(line_.get(), kTrackerMagic);
      if (ReceiveNumber(line_.get()) != kTrackerMagic) throw NetworkError("it is no RPC tracker");
      Order(List(kUpdateInfo, R"(, {"key": )" + Quoted("server:" + key_) + R"(, "addr": [)" + host + ", " + port + "]}"));
    }
    std::random_device random;
    offered_ = key_ + ":" + std::to_string(random()) + std::to_string(random());
    Order(List(kPut, ", " + Quoted(key_) + ", [" + port + ", " + Quoted(offered_) + "], " + host));
  } catch (const NetworkError& error) {
    Disconnect();
    throw NetworkError("tracker " + host_ + ":" + std::to_string(port_) + ": " + error.what());
  }
  last_pending_ = std::chrono::steady_clock::now();
  return offered_;
}

bool Tracker::StillOffered() {
  const auto now = std::chrono::steady_clock::now();
  if (Ask(List(kGetPendingMatchKeys, "")).find(Quoted(offered_)) != std::string::npos) last_pending_ = now;
  return now - last_pending_ < kPatience;
}

std::string Tracker::Ask(const std::string& request) {
  SendText(line_.get(), request);
  return ReceiveText(line_.get());
}

void Tracker::Order(const std::string& request) {
  if (const std::string answer = Ask(request); answer != kSuccess) throw NetworkError("it answers " + answer);
}

}  // namespace flexcomp::server
