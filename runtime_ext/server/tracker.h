// A server's line to a TVM RPC tracker, which hands its address to one client at a time.
#pragma once

#include <chrono>
#include <string>

#include "net.h"

namespace flexcomp::server {

class Tracker {
 public:
  // `reported_host`: the address that clients are told; empty: the one that the tracker sees.
  Tracker(std::string host, int port, std::string key, std::string reported_host)
      : host_(std::move(host)), port_(port), key_(std::move(key)), reported_host_(std::move(reported_host)) {}

  // Offers the server at `server_port` to a next client, which will name the key that is returned. Connects if need be.
  // Throws NetworkError, after a few seconds at most, after which the next call connects anew.
  std::string Offer(int server_port);

  // To be called now and then while nobody comes. False: a client was sent and did not come; offer anew. Throws as Offer.
  bool StillOffered();

  void Disconnect() { line_ = UniqueFd(); }

 private:
  std::string Ask(const std::string& request, Clock::time_point until);
  void Order(const std::string& request, Clock::time_point until);

  std::string host_;
  int port_;
  std::string key_, reported_host_;
  UniqueFd line_;
  std::string offered_;
  std::chrono::steady_clock::time_point last_pending_;
};

}  // namespace flexcomp::server
