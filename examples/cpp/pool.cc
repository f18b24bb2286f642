// Two networks in one budget: pool BUDGET LIBRARY LIBRARY PICTURE, where PICTURE holds float32 numbers as both networks take them.
//
//     c++ -std=c++17 pool.cc $(pkg-config --cflags --libs flexcomp) -o pool
#include <flexcomp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

namespace {

void check(flexcomp_status status) {
  if (status == FLEXCOMP_OK) return;
  std::fprintf(stderr, "error: %s\n", flexcomp_message());
  std::exit(1);
}

struct Member {
  flexcomp_session* session;
  flexcomp_request* request;
  std::vector<float> scores;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return std::fprintf(stderr, "usage: %s BUDGET LIBRARY LIBRARY PICTURE\n", argv[0]), 2;
  const flexcomp_pool_options options = FLEXCOMP_POOL_OPTIONS_INIT(std::strtoull(argv[1], nullptr, 10));
  flexcomp_pool* pool;
  check(flexcomp_pool_open(&options, &pool));
  std::vector<Member> members(2);
  for (int i = 0; i < 2; ++i) {
    flexcomp_member_options member = FLEXCOMP_MEMBER_OPTIONS_INIT;
    member.urgency = i == 0 ? 2 : 1;  // a second of the first network counts twice
    check(flexcomp_pool_add(pool, i == 0 ? "first" : "second", argv[2 + i], &member, &members[i].session));
    flexcomp_tensor_info info{};
    info.size = sizeof info;
    check(flexcomp_describe_tensor(members[i].session, FLEXCOMP_OUTPUT, 0, 0, &info));
    members[i].scores.resize(info.nbytes / sizeof(float));
  }

  std::ifstream file(argv[4], std::ios::binary);
  std::vector<char> pixels(std::istreambuf_iterator<char>(file), {});
  const flexcomp_tensor in = FLEXCOMP_TENSOR(pixels.data(), pixels.size());
  for (Member& member : members) {
    const flexcomp_tensor out = FLEXCOMP_TENSOR(member.scores.data(), member.scores.size() * sizeof(float));
    check(flexcomp_submit(member.session, &in, 1, &out, 1, nullptr, &member.request));
  }
  for (Member& member : members) {
    check(flexcomp_wait(member.request));
    std::printf("class %td\n", std::max_element(member.scores.begin(), member.scores.end()) - member.scores.begin());
  }
  flexcomp_pool_stats stats{};
  stats.size = sizeof stats;
  check(flexcomp_pool_get_stats(pool, &stats));
  std::printf("%llu of %llu bytes\n", static_cast<unsigned long long>(stats.claimed), static_cast<unsigned long long>(stats.budget));
  check(flexcomp_pool_close(pool));
}
