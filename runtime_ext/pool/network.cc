#include "pool/network.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "base/resident.h"

namespace flexcomp {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

ffi::Function Find(const ffi::Module& module, const char* name) {
  auto function = module->GetFunction(name);
  if (!function.has_value())
    RaiseError("ArtifactError", "the library was built by another version of flexcomp, whose runtime has no \"", name,
               "\": build it again");
  return *std::move(function);
}

template <typename T>
T FieldOf(const json::Object& object, const char* name) {
  const auto value = object.Get(ffi::String(name));
  if (value.has_value())
    if (auto cast = value->template try_cast<T>()) return *std::move(cast);
  RaiseError("ArtifactError", "the library does not say its \"", name, "\": build it again");
}

uint64_t NaturalOf(const json::Value& value) {
  const auto number = value.try_cast<int64_t>();
  if (!number || *number < 0 || static_cast<uint64_t>(*number) > kMostShareBytes) Raise("ArtifactError", "the library's sizes are wrong: build it again");
  return static_cast<uint64_t>(*number);
}

uint64_t BytesOf(const json::Object& object, const char* name) {
  const auto number = FieldOf<int64_t>(object, name);
  if (number < 0 || static_cast<uint64_t>(number) > kMostShareBytes) RaiseError("ArtifactError", "the library's \"", name, "\" is ", number);
  return static_cast<uint64_t>(number);
}

ShareRung RungOf(const json::Object& rung) {
  const uint64_t arena = BytesOf(rung, "arena_bytes"), working = BytesOf(rung, "working_bytes");
  const auto seconds = FieldOf<double>(rung, "predicted_ms") * 1e-3;
  if (working > arena || !std::isfinite(seconds) || seconds < 0) Raise("ArtifactError", "the library's ladder is wrong: build it again");
  return {WholePages(working), WholePages(arena - working), seconds};
}

}  // namespace

uint64_t WholePages(uint64_t nbytes) noexcept { return (nbytes + SystemPage() - 1) / SystemPage() * SystemPage(); }

Network::Network(const ffi::Module& program, std::string library, std::string weights, const json::Object& options)
    : program_(program), library_(std::move(library)), weights_(std::move(weights)), options_(JsonText(options)) {
  const auto info = json::Parse(Find(program_, "summary")().cast<ffi::String>()).cast<json::Object>();
  if (info.count(ffi::String("shapes"))) shapes_ = FieldOf<json::Array>(info, "shapes");
  if (info.count(ffi::String("metadata"))) metadata_ = FieldOf<json::Object>(info, "metadata");
  for (const json::Value& said : FieldOf<json::Array>(info, shapes_.empty() ? "ladder" : "lane_ladder")) {
    const auto rung = said.cast<json::Object>();
    ladder_.push_back(RungOf(rung));
    std::vector<double>& seconds = seconds_.emplace_back();
    if (shapes_.empty()) {
      seconds.push_back(ladder_.back().seconds);
      continue;
    }
    for (const json::Value& one : FieldOf<json::Array>(rung, "shapes_ms")) seconds.push_back(one.cast<double>() * 1e-3);
    if (seconds.size() != shapes_.size()) Raise("ArtifactError", "the library's ladder is wrong: build it again");
  }
  shape_mix.emplace(std::max(shapes_.size(), size_t{1}));
  if (ladder_.empty()) Raise("ArtifactError", "the library has no ladder: build it again");
  const json::Object first = shapes_.empty() ? FieldOf<json::Array>(info, "ladder")[0].cast<json::Object>() : shapes_[0].cast<json::Object>();
  smallest_budget_ = FieldOf<int64_t>(first, shapes_.empty() ? "budget_bytes" : "min_budget_bytes");
  state_nbytes_ = WholePages(BytesOf(info, "state_bytes"));
  inputs_ = FieldOf<json::Array>(info, "inputs");
  outputs_ = FieldOf<json::Array>(info, "outputs");
  const auto shareable = program_->GetFunction("shareable");
  if (!shareable.has_value()) return;
  const auto said = json::Parse((*shareable)().cast<ffi::String>()).cast<json::Object>();
  for (const json::Value& key : FieldOf<json::Array>(said, "keys")) keys_.emplace_back(key.cast<ffi::String>());
  for (const json::Value& nbytes : FieldOf<json::Array>(said, "bytes")) key_nbytes_.push_back(WholePages(NaturalOf(nbytes)));
  if (keys_.size() != key_nbytes_.size()) Raise("ArtifactError", "the library's weights have no sizes: build it again");
}

const std::vector<Network::Resting>& Network::RestingOn(size_t rung) {
  if (resting_.empty()) {
    std::vector<std::vector<Resting>> resting;
    for (const json::Value& said : json::Parse(Find(program_, "resting")().cast<ffi::String>()).cast<json::Array>()) {
      auto& on = resting.emplace_back();
      for (const json::Value& pair : said.cast<json::Array>()) {
        const auto one = pair.cast<json::Array>();
        on.push_back({static_cast<uint32_t>(NaturalOf(one[0])), NaturalOf(one[1])});
        uint64_t freed = 0;
        for (const Resting& other : on) freed += other.freed;
        if (on.back().number >= keys_.size() || resting.size() > ladder_.size() || freed > ladder_[resting.size() - 1].kept)
          Raise("ArtifactError", "the library is wrong about the weights that stay: build it again");
      }
    }
    if (resting.size() != ladder_.size()) Raise("ArtifactError", "the library does not say which weights stay: build it again");
    resting_ = std::move(resting);
  }
  return resting_[rung];
}

double Network::LoadingSeconds() const noexcept {
  if (!cold) return 0;
  uint64_t nbytes = target_kept();
  if (target_common)
    for (const auto& [number, shared] : target_common->weights)
      if (shared->contents != SharedWeights::Contents::kThere) nbytes += shared->nbytes;
  return static_cast<double>(nbytes) / storage_rate;
}

void Network::Open(const LanePlace& place) {
  auto options = json::Parse(options_).cast<json::Object>();
  options.Set("library_path", ffi::String(library_));
  options.Set("budget_bytes", smallest_budget_);
  options.Set("lane_address", static_cast<int64_t>(reinterpret_cast<intptr_t>(place.memory.base())));
  options.Set("lane_bytes", static_cast<int64_t>(place.memory.reserved()));
  options.Set("other_threads", int64_t{place.other_threads});
  if (place.threads > 0) options.Set("threads", int64_t{place.threads});
  if (!place.compute_cpus.empty()) options.Set("compute_cpus", ffi::String(place.compute_cpus));
  if (!place.loader_cpus.empty()) options.Set("loader_cpu", ffi::String(place.loader_cpus));
  const auto session = Find(program_, "open")(ffi::String(weights_), JsonText(options)).cast<ffi::Module>();
  const ffi::Function close = Find(session, "close");
  run_ = Find(session, "run");
  park_ = Find(session, "park");
  if (!keys_.empty()) {
    park_sharing_ = Find(session, "park_sharing");
    make_shared_ = Find(session, "make_shared");
  }
  read_ahead_ = Find(session, "read_ahead");
  leave_lane_ = Find(session, "leave_lane");
  cancel_ = Find(session, "cancel");
  stop_ = Find(session, "stop");
  stats_ = Find(session, "stats");
  resident_ = Find(session, "resident_arena");
  if (!shapes_.empty() || metadata_.count(ffi::String("pad"))) shape_of_ = Find(session, "shape_of");
  close_ = close;
}

bool Network::Serves(const Network& other) const noexcept {
  return library_ == other.library_ && weights_ == other.weights_ && options_ == other.options_ && state_nbytes_ == 0;
}

Network::~Network() { Close(); }

void Network::Close() noexcept {
  if (is_open()) Caught([&] { close_(); });  // other holders of the session cannot keep its memory
}

void Network::Run(const std::vector<ffi::Any>& tensors) const {
  std::vector<ffi::AnyView> views(tensors.begin(), tensors.end());
  ffi::Any nothing;
  run_.CallPacked(views.data(), static_cast<int32_t>(views.size()), &nothing);
}

Network::Reading Network::LastReading() const noexcept try {
  const json::Object stats = Stats();
  return {stats["stall_ms"].cast<double>() * 1e-3, stats["read_ms"].cast<double>() * 1e-3,
          static_cast<double>(stats["bytes_read"].cast<int64_t>())};
} catch (const std::exception&) {
  return {};  // a library of another version with another format, or no memory for the answer
}

size_t Network::ShapeOf(const std::vector<ffi::Any>& tensors) const {
  if (shapes_.empty()) return 0;
  std::vector<ffi::Shape> extents;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const auto tensor = ffi::AnyView(tensors[i]).try_cast<DLTensor*>();
    if (!tensor || *tensor == nullptr) return 0;  // the session says what is missing
    extents.emplace_back((*tensor)->shape, (*tensor)->shape + (*tensor)->ndim);
  }
  const std::vector<ffi::AnyView> views(extents.begin(), extents.end());
  return static_cast<size_t>(ShapeOf(ffi::PackedArgs(views.data(), static_cast<int32_t>(views.size()))));
}

int64_t Network::ShapeOf(ffi::PackedArgs extents) const {
  if (shape_of_ == nullptr) return 0;
  ffi::Any found;
  shape_of_.CallPacked(extents, &found);
  return found.cast<int64_t>();
}

json::Object Network::Stats() const { return json::Parse(stats_().cast<ffi::String>()).cast<json::Object>(); }

}  // namespace flexcomp
