#include "model.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "library.h"
#include "npy.h"

namespace flexcomp::runner {
namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

uint64_t Bytes(const json::Object& object, const char* key) { return static_cast<uint64_t>(object[key].cast<int64_t>()); }

std::string Metadata(const json::Object& info, const char* key) {
  const auto metadata = info["metadata"].cast<json::Object>();
  return metadata.count(ffi::String(key)) ? std::string(metadata[key].cast<ffi::String>()) : "";
}

// Whether inputs decide what runs.
bool ShapesDiffer(const json::Object& info) { return info.count(ffi::String("shapes")) > 0 || !Metadata(info, "pad").empty(); }

// Descriptions of inputs and outputs in each shape.
json::Array ShapesOf(const json::Object& info) {
  return info.count(ffi::String("shapes")) ? info["shapes"].cast<json::Array>() : json::Array{info};
}

ffi::Function OnPlaces(const Decoder::OnTensors& function) {
  return ffi::Function::FromPacked([&function](ffi::PackedArgs places, ffi::Any*) {
    std::vector<DLTensor> tensors;
    for (int i = 0; i < places.size(); ++i) tensors.push_back(*places[i].cast<DLTensor*>());
    function(tensors);
  });
}

uint64_t Resolved(const Budget& budget, const json::Object& info) {
  const uint64_t smallest = Bytes(info, "min_budget_bytes"), resident = Bytes(info, "resident_bytes");
  // Libraries of earlier versions have no other default.
  const uint64_t asked =
      budget.Bytes(smallest, info.count("default_budget_bytes") ? Bytes(info, "default_budget_bytes") : resident, resident);
  if (asked < smallest) throw std::runtime_error(TooSmall(asked, smallest, Metadata(info, "minimum"), budget.units));
  return asked;
}

std::string Options(const Arguments& arguments, const std::string& library, uint64_t budget) {
  json::Object options = SessionOptions(arguments);
  options.Set("library_path", ffi::String(library));
  options.Set("budget_bytes", static_cast<int64_t>(budget));
  options.Set("threads", int64_t{arguments.threads});
  if (!arguments.compute_cpus.empty()) options.Set("compute_cpus", ffi::String(arguments.compute_cpus));
  if (!arguments.loader_cpu.empty()) options.Set("loader_cpu", ffi::String(arguments.loader_cpu));
  if (!arguments.trace.empty()) options.Set("trace", true);
  return std::string(json::Stringify(options));
}

}  // namespace

Model::Model(const Arguments& arguments) {
  const Library library = OpenLibrary(arguments.model);
  info_ = library.info;
  const std::string weights = arguments.weights.empty() ? library.weights : arguments.weights;
  asked_ = Resolved(arguments.budget, info_);
  session_ = FunctionOf(library.program, "open")(ffi::String(weights), ffi::String(Options(arguments, library.path, asked_))).cast<ffi::Module>();
  ShapesByName given;
  if (ShapesDiffer(info_)) try {
    for (const auto& [name, path] : arguments.inputs) given[name] = NpyFile::ShapeOf(path);
  } catch (const std::runtime_error& error) {
    throw UsageError(error.what());
  }
  Take(ShapeFor(given), given);
  run_ = FunctionOf(*session_, "run_in_place");
  stats_ = FunctionOf(*session_, "stats");
  set_budget_ = FunctionOf(*session_, "set_budget");
  if (arguments.warm) warm_ = FunctionOf(*session_, "warm");
  if (arguments.reset_state) reset_states_ = FunctionOf(*session_, "reset_states");
  if (arguments.callers > 0 && HasState())
    throw UsageError("--callers checks that every inference gives the same outputs, but those of this network depend on its state");
  if (arguments.read_rate > 0) read_rate_ = FunctionOf(*session_, "read_rate");
  if (arguments.device_rates) device_rates_ = FunctionOf(*session_, "device_rates");
  if (!arguments.trace.empty()) trace_ = FunctionOf(*session_, "trace");
}

size_t Model::ShapeFor(const ShapesByName& given) const {
  if (!ShapesDiffer(info_)) return 0;
  const json::Array shapes = ShapesOf(info_);
  const auto ports = [&](size_t shape) {
    const auto described = shapes[static_cast<int64_t>(shape)].cast<json::Object>()["inputs"].cast<json::Array>();
    return Sized(ParsePorts(described), info_, "inputs", given);
  };
  const auto agrees = [&](const Port& port) { return given.count(port.name) == 0 || given.at(port.name) == port.shape; };
  size_t chosen = 0;  // the largest, where files do not say
  while (chosen + 1 < shapes.size() && !std::ranges::all_of(ports(chosen), agrees)) ++chosen;
  std::vector<ffi::Any> extents;
  for (const Port& port : ports(chosen)) {
    const std::vector<int64_t>& shape = given.count(port.name) ? given.at(port.name) : port.shape;
    extents.emplace_back(ffi::Shape(shape.begin(), shape.end()));
  }
  std::vector<ffi::AnyView> views(extents.begin(), extents.end());
  ffi::Any found;
  FunctionOf(*session_, "shape_of").CallPacked(views.data(), static_cast<int32_t>(views.size()), &found);
  return static_cast<size_t>(found.cast<int64_t>());
}

void Model::Take(size_t shape, const ShapesByName& given) {
  if (info_.count(ffi::String("shapes"))) {
    take_shape_ = FunctionOf(*session_, "take_shape");
    (*take_shape_)(static_cast<int64_t>(shape));
    info_ = InShape(info_, shape);
  }
  inputs_ = ParsePorts(info_["inputs"].cast<json::Array>());
  outputs_ = ParsePorts(info_["outputs"].cast<json::Array>());
  if (Metadata(info_, "pad").empty()) return;
  std::vector<Port> own = Sized(inputs_, info_, "inputs", given);
  padded_ = !std::ranges::equal(own, inputs_, {}, &Port::shape, &Port::shape);
  if (!padded_) return;
  inputs_ = std::move(own);
  outputs_ = Sized(outputs_, info_, "outputs", given);
  run_copying_ = FunctionOf(*session_, "run");
}

std::vector<Model::Rung> Model::Ladder() const {
  std::vector<Rung> rungs;
  for (const ffi::Any& any : info_["ladder"].cast<json::Array>()) {
    const auto rung = any.cast<json::Object>();
    rungs.push_back({rung["budget_bytes"].cast<int64_t>(), rung["arena_bytes"].cast<int64_t>()});
  }
  return rungs;
}

void Model::Run(const Inputs& inputs, const Look& look) const {
  if (reset_states_) (*reset_states_)();
  if (padded_) {
    Tensors own(inputs_), results(outputs_);
    std::vector<ffi::AnyView> all = own.views(), outputs = results.views();
    inputs.Fill(ffi::PackedArgs(all.data(), static_cast<int32_t>(all.size())));
    all.insert(all.end(), outputs.begin(), outputs.end());
    ffi::Any nothing;
    run_copying_->CallPacked(all.data(), static_cast<int32_t>(all.size()), &nothing);
    if (look) look(ffi::PackedArgs(outputs.data(), static_cast<int32_t>(outputs.size())));
    return;
  }
  const auto fill = ffi::Function::FromPacked([&](ffi::PackedArgs places, ffi::Any*) { inputs.Fill(places); });
  ffi::Optional<ffi::Function> drain;
  if (look) drain = ffi::Function::FromPacked([&](ffi::PackedArgs places, ffi::Any*) { look(places); });
  (*run_)(fill, drain);
}

Decoder Model::AsDecoder() const {
  std::vector<std::vector<Port>> parsed;  // holds what is described
  std::vector<Decoder::Ports> shapes;
  const auto described = [&parsed](const json::Value& ports) {
    std::vector<Decoder::Tensor> tensors;
    for (const Port& port : parsed.emplace_back(ParsePorts(ports.cast<json::Array>()))) tensors.push_back({port.name, port.dtype, port.shape});
    return tensors;
  };
  for (const json::Value& any : ShapesOf(info_)) {
    const auto shape = any.cast<json::Object>();
    shapes.push_back({described(shape["inputs"]), described(shape["outputs"])});
  }
  return {shapes, HasState() ? described(info_["states"]) : std::vector<Decoder::Tensor>()};
}

void Model::RunIn(size_t shape, const Decoder::OnTensors& fill, const Decoder::OnTensors& drain) const {
  if (take_shape_) (*take_shape_)(static_cast<int64_t>(shape));
  (*run_)(OnPlaces(fill), drain ? ffi::Optional<ffi::Function>(OnPlaces(drain)) : std::nullopt);
}

double Model::ReadRate(int64_t request) const {
  const int64_t nbytes = std::clamp<int64_t>(Stats()["bytes_read"].cast<int64_t>(), 64 << 20, 512 << 20);
  return (*read_rate_)(request, nbytes).cast<double>();
}

json::Object Model::DeviceRates() const { return json::Parse((*device_rates_)().cast<ffi::String>()).cast<json::Object>(); }

json::Object Model::Stats() const { return json::Parse((*stats_)().cast<ffi::String>()).cast<json::Object>(); }

}  // namespace flexcomp::runner
