#include "reuse.h"

#include <algorithm>

namespace flexcomp::planner {

// Whole numbers of pages, so that sums of doubles and of integers are the same.
std::vector<double> ReuseDistances(const std::vector<Segment>& segments) {
  int64_t end = 0;
  for (const Segment& one : segments) end = one.pinned ? end : std::max(end, one.address + one.nbytes);
  std::vector<int64_t> written(end / kPage);  // per page: bytes loaded before the write, less the page's address
  std::vector<int64_t> numbers;
  int64_t total = 0;
  const auto pages = [&](const Segment& one) { return written.begin() + one.address / kPage; };
  for (const Segment& one : segments) {
    if (one.pinned) continue;
    numbers.push_back(total - one.address);
    std::fill_n(pages(one), one.nbytes / kPage, numbers.back());
    total += one.nbytes;
  }
  std::vector<double> result;
  for (const Segment& one : segments) {
    if (one.pinned) continue;
    const int64_t number = total + numbers[result.size()], count = one.nbytes / kPage;
    int64_t sum = 0;
    for (auto page = pages(one); page != pages(one) + count; ++page) sum += *page;
    std::fill_n(pages(one), count, number);
    result.push_back(static_cast<double>(number) - static_cast<double>(sum) / static_cast<double>(count));
  }
  return result;
}

}  // namespace flexcomp::planner
