#include "program/tapes.h"

#include <algorithm>
#include <span>

namespace flexcomp {
namespace {

constexpr size_t kMostOperations = 3;  // of a load in a tape
constexpr int64_t kNowhere = -1;

uint64_t PreparedNbytes(const Prepared& made, const Program& program) {
  return made.count * program.layers[made.layer].weights->block_nbytes;
}

// A place to read to that nothing else uses: the prepared form is mostly larger than the stored one, and this is its end, in whole
// pages. So reads of loads that are prepared from the same place need not wait for each other.
int64_t Apart(const Load& load, const Program& program) {
  if (!load.pinned || !load.prepared) return kNowhere;
  const Prepared& made = *load.prepared;
  const uint64_t nbytes = PreparedNbytes(made, program);
  if (nbytes < load.nbytes) return kNowhere;
  const uint64_t place = (made.at + nbytes - load.nbytes) / kPage * kPage;
  return place < made.at ? kNowhere : static_cast<int64_t>(place);
}

// The first inference's step that reads what this load prepares; nullptr: no such step.
const Cold* ColdOf(const Load& load, const Rung& rung) {
  if (!load.prepared || !load.pinned) return nullptr;
  const auto cold = std::ranges::find_if(rung.cold, [&](const Cold& one) { return rung.steps[one.step].layer == load.prepared->layer; });
  return cold == rung.cold.end() ? nullptr : &*cold;
}

// The loads before this one are ahead, or have no operations in a steady inference.
size_t AheadEnd(const Rung& rung) {
  const auto end = std::ranges::find_if(rung.loads, [](const Load& load) { return !load.ahead && !load.pinned; });
  return static_cast<size_t>(end - rung.loads.begin());
}

}  // namespace

class TapeRoom::Writer {
 public:
  Writer(TapeRoom& room, const Rung& rung, const Program& program, bool queued, const Omitted& omitted)
      : room_(room), rung_(rung), program_(program), queued_(queued), omitted_(omitted), ahead_end_(AheadEnd(rung)) {}

  // A tape of these steps, with the operations that `add` writes for each load.
  template <typename Add>
  Tape Write(std::span<const Step> steps, const Add& add) {
    const size_t begin = room_.operations_.size(), need_begin = room_.need_.size();
    room_.end_.clear();
    for (load_ = 0; load_ < rung_.loads.size(); ++load_) {
      if (!omitted_.load(load_)) add(rung_.loads[load_]);
      room_.end_.push_back(static_cast<uint32_t>(room_.operations_.size() - begin));
    }
    for (const Step& step : steps) room_.need_.push_back(step.need > 0 ? room_.end_[step.need - 1] : 0);
    return {{room_.operations_.data() + begin, room_.operations_.size() - begin}, steps, {room_.need_.data() + need_begin, steps.size()}};
  }

  // The first inference finds nothing.
  void AddFirst(const Load& load) {
    const int32_t after = load.ahead ? 0 : static_cast<int32_t>(load.after);
    if (const Cold* cold = ColdOf(load, rung_)) {
      const FileRange pages = PagesOf(program_.layers[cold->layer]);
      const bool read = load_ > 0 && ColdOf(rung_.loads[load_ - 1], rung_) == cold;
      if (!read) AddRead(pages.begin, cold->at, pages.nbytes(), Operation::kAnytime);
      return;
    }
    if (IsReadBefore(load)) return AddPrepare(load, after);
    const bool apart = queued_ && Apart(load, program_) != kNowhere;
    const bool alone = load.kept || (load.pinned && load.after == 0 && (!load.prepared || apart));
    AddWhole(load, alone ? Operation::kAnytime : after, after);
  }
  void AddFill(const Load& load) {
    if (load.kept && !IsReadBefore(load)) AddRead(load.source, load.target, load.nbytes, 0);
    if (load.pinned) AddWhole(load, 0, 0);
  }
  void AddSecond(const Load& load) {
    if (const Cold* cold = ColdOf(load, rung_))
      AddSettled(load, *cold, load_ < ahead_end_ ? Ahead(cold->step + 1) : static_cast<int32_t>(load.after));
    AddSteady(load);
  }
  void AddSettle(const Load& load) {
    if (const Cold* cold = ColdOf(load, rung_)) AddSettled(load, *cold, 0);
  }
  void AddSteady(const Load& load) {
    const int32_t after = load.ahead ? Ahead(load.after) : static_cast<int32_t>(load.after);
    if (load.kept) AddPrepare(load, after);
    if (!load.kept && !load.pinned) AddWhole(load, after, after);
  }

 private:
  // Whether a load before this one keeps the same bytes.
  bool IsReadBefore(const Load& load) const {
    const auto same = [&](const Load& one) { return one.kept && one.source == load.source && one.target == load.target && one.nbytes == load.nbytes; };
    return load.kept && std::any_of(rung_.loads.begin(), rung_.loads.begin() + load_, same);
  }
  int32_t Ahead(uint32_t steps) const { return static_cast<int32_t>(int64_t{steps} - static_cast<int64_t>(rung_.steps.size()) - 1); }

  Operation& Add(Operation::Kind kind, int32_t after, uint64_t from, uint64_t to, uint64_t nbytes) {
    Operation& operation = room_.operations_.emplace_back();
    operation = {.kind = kind, .after = after, .from = from, .to = to, .nbytes = nbytes, .from_nbytes = nbytes,
                 .load = static_cast<uint32_t>(load_)};
    return operation;
  }
  void AddRead(uint64_t source, uint64_t to, uint64_t nbytes, int32_t after) { Add(Operation::Kind::kRead, after, source, to, nbytes); }
  void AddCopy(uint64_t from, const Load& load, int32_t after) {
    if (from != load.target) Add(Operation::Kind::kCopy, after, from, load.target, load.nbytes);
  }
  void AddPrepare(const Load& load, int32_t after) {
    const Prepared& made = *load.prepared;
    const FileRange stored = StoredRange(program_.layers[made.layer], made.first, made.count);
    Operation& operation = Add(Operation::Kind::kPrepare, after, load.target + (stored.begin - load.source), made.at, PreparedNbytes(made, program_));
    operation.from_nbytes = stored.nbytes();
    operation.layer = made.layer;
    operation.first = made.first;
    operation.count = made.count;
  }
  void AddWhole(const Load& load, int32_t read_after, int32_t after) {
    // Where this process copies, read bytes should still be in the caches when they are prepared.
    const int64_t apart = queued_ ? Apart(load, program_) : kNowhere;
    const uint64_t to = apart == kNowhere ? load.target : static_cast<uint64_t>(apart);
    AddRead(load.source, to, load.nbytes, read_after);
    AddCopy(to, load, after);
    if (load.prepared) AddPrepare(load, after);
  }
  void AddSettled(const Load& load, const Cold& cold, int32_t after) {
    AddCopy(cold.at + (load.source - PagesOf(program_.layers[cold.layer]).begin), load, after);
    AddPrepare(load, after);
  }

  TapeRoom& room_;
  const Rung& rung_;
  const Program& program_;
  const bool queued_;
  const Omitted omitted_;
  const size_t ahead_end_;
  size_t load_ = 0;
};

Step FirstStep(const Cold& cold, const Rung& rung, const Program& program) {
  const Step& step = rung.steps[cold.step];
  const Layer& layer = program.layers[cold.layer];
  const uint64_t at = cold.at + (layer.weights->offset - PagesOf(layer).begin);
  return {cold.layer, 0, layer.weights->blocks, step.need, static_cast<int64_t>(at), layer.scratch_nbytes > 0 ? step.scratch_at : -1};
}

TapeRoom::TapeRoom(const Program& program) {
  const Most most = MostOf(program);
  operations_.reserve(kTapes * kMostOperations * most.loads);  // memory that no tape uses costs nothing
  if (most.cold > 0) cold_steps_.reserve(most.steps);
  need_.reserve(kTapes * most.steps);
  end_.reserve(most.loads);
}

void TapeRoom::Make(const Rung& rung, const Program& program, bool queued, const Omitted& omitted) noexcept {
  operations_.clear();
  need_.clear();
  cold_steps_.clear();
  std::span<const Step> steps = rung.steps, first = steps;
  const auto is_cold = [&](const Cold& cold) { return !omitted.layer(steps[cold.step].layer); };
  const bool begins_cold = std::ranges::any_of(rung.cold, is_cold);
  if (begins_cold) {
    cold_steps_.assign(steps.begin(), steps.end());
    for (const Cold& cold : rung.cold)
      if (is_cold(cold)) cold_steps_[cold.step] = FirstStep(cold, rung, program);
    first = cold_steps_;
  }
  Writer writer(*this, rung, program, queued, omitted);
  tapes_ = {};
  tapes_.first = writer.Write(first, [&](const Load& load) { writer.AddFirst(load); });
  tapes_.fill = writer.Write({}, [&](const Load& load) { writer.AddFill(load); });
  if (begins_cold) {
    tapes_.second = writer.Write(steps, [&](const Load& load) { writer.AddSecond(load); });
    tapes_.settle = writer.Write({}, [&](const Load& load) { writer.AddSettle(load); });
  }
  tapes_.steady = writer.Write(steps, [&](const Load& load) { writer.AddSteady(load); });
}

}  // namespace flexcomp
