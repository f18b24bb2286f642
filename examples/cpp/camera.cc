// A camera's loop that gives memory back between its frames: camera LIBRARY PICTURE FRAMES, where PICTURE holds float32 numbers as the
// network takes them.
//
//     c++ -std=c++17 camera.cc $(pkg-config --cflags --libs flexcomp) -o camera
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

uint64_t resident(flexcomp_session* session) {
  flexcomp_stats stats{};
  stats.size = sizeof stats;
  check(flexcomp_get_stats(session, &stats));
  return stats.resident;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: %s LIBRARY PICTURE FRAMES\n", argv[0]), 2;
  flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  options.budget = FLEXCOMP_BUDGET_SMALLEST;
  flexcomp_session* session;
  check(flexcomp_open(argv[1], &options, &session));
  flexcomp_tensor_info info{};
  info.size = sizeof info;
  check(flexcomp_describe_tensor(session, FLEXCOMP_OUTPUT, 0, 0, &info));
  std::vector<float> scores(info.nbytes / sizeof(float));

  for (int frame = 0; frame < std::atoi(argv[3]); ++frame) {
    std::ifstream file(argv[2], std::ios::binary);  // the camera
    std::vector<char> pixels(std::istreambuf_iterator<char>(file), {});
    const flexcomp_tensor in = FLEXCOMP_TENSOR(pixels.data(), pixels.size());
    const flexcomp_tensor out = FLEXCOMP_TENSOR(scores.data(), scores.size() * sizeof(float));
    check(flexcomp_set_budget(session, FLEXCOMP_BUDGET_ALL));
    check(flexcomp_run(session, &in, 1, &out, 1));
    const uint64_t busy = resident(session);
    check(flexcomp_set_budget(session, FLEXCOMP_BUDGET_SMALLEST));  // the memory is back when this returns
    std::printf("class %td; %llu bytes in memory, %llu until the next frame\n", std::max_element(scores.begin(), scores.end()) - scores.begin(),
                static_cast<unsigned long long>(busy), static_cast<unsigned long long>(resident(session)));
  }
  check(flexcomp_close(session));
}
