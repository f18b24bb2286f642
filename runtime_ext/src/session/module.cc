// The two modules that other languages see: the program inside a model's library, and an open session.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/translated.h"
#include "session/describe.h"
#include "session/on_device.h"
#include "program/encoded.h"
#include "program/program.h"
#include "program/shapes.h"
#include "session/session.h"
#include "storage/measure_storage.h"
#include "threads/cores.h"

namespace flexcomp {
namespace {

namespace ffi = tvm::ffi;

#define FLEXCOMP_SESSION_KIND "flexcomp.session.1"

class SessionModule final : public TranslatedModule {
 public:
  SessionModule(const Shapes& shapes, const std::string& weights_path, const SessionOptions& options)
      : owner_(new Session(shapes, weights_path, options)), session_(*owner_) {}

  const char* kind() const final { return FLEXCOMP_SESSION_KIND; }
  int GetPropertyMask() const final { return ffi::Module::kRunnable; }

  ffi::Optional<ffi::Function> Find(const ffi::String& name) final {
    const ffi::Module self = ffi::GetRef<ffi::Module>(this);  // functions keep the session alive
    if (name == "run")
      return ffi::Function::FromPacked([self, this](ffi::PackedArgs args, ffi::Any*) { Run(args); });
    if (name == "new_output")
      return ffi::Function::FromTyped([self, this](int64_t index) { return session_.NewOutput(static_cast<size_t>(index)); });
    if (name == "shape_of")
      return ffi::Function::FromPacked([self, this](ffi::PackedArgs args, ffi::Any* found) { *found = ShapeOf(args); });
    if (name == "run_in_place")
      return ffi::Function::FromTyped([self, this](const ffi::Optional<ffi::Function>& fill,
                                                   const ffi::Optional<ffi::Function>& drain) {
        session_.RunInPlace(OnPorts(fill), OnPorts(drain));
      });
    if (name == "repeat")
      return ffi::Function::FromTyped([self, this](int64_t fewest, int64_t most, double seconds) {
        return ffi::String(RunRepeatedly(session_, {fewest, most, seconds}));
      });
    if (name == "set_budget")
      return ffi::Function::FromTyped([self, this](int64_t budget) {
        if (budget < 0) RaiseError("BudgetError", "a budget of ", budget, " bytes was asked for");
        return ffi::String(DescribeRung(session_.SetBudget(static_cast<uint64_t>(budget))));
      });
    if (name == "warm") return ffi::Function::FromTyped([self, this] { return session_.Warm(); });
    if (name == "get_states" || name == "get_state_parts")
      return ffi::Function::FromPacked([self, this, parts = name == "get_state_parts"](ffi::PackedArgs args, ffi::Any*) {
        GetStates(args, parts);
      });
    if (name == "set_states" || name == "set_state_parts")
      return ffi::Function::FromPacked([self, this, parts = name == "set_state_parts"](ffi::PackedArgs args, ffi::Any*) {
        SetStates(args, parts);
      });
    if (name == "reset_states") return ffi::Function::FromTyped([self, this] { session_.ResetStates(); });
    if (name == "stats")
      return ffi::Function::FromTyped(
          [self, this] { return ffi::String(DescribeState(session_.shapes(), session_.state())); });
    if (name == "rungs")
      return ffi::Function::FromTyped([self, this] {
        ffi::Array<ffi::String> rungs;
        for (const RungHead* rung : session_.RungsOfShapes()) rungs.push_back(DescribeRung(*rung));
        return rungs;
      });
    if (name == "read_rate")
      return ffi::Function::FromTyped([self, this](int64_t request_nbytes, int64_t nbytes) {
        if (request_nbytes <= 0 || nbytes <= 0) RaiseError("InputError", "reads of ", request_nbytes, " bytes, ", nbytes, " in all");
        return session_.ReadRate(static_cast<uint64_t>(request_nbytes), static_cast<uint64_t>(nbytes));
      });
    if (name == "device_rates")
      return ffi::Function::FromTyped([self, this] { return ffi::String(DescribeRates(session_.MeasureDevice())); });
    if (name == "park") return ffi::Function::FromTyped([self, this](int64_t rung) { Park(rung, {}); });
    if (name == "park_sharing")
      return ffi::Function::FromTyped([self, this](int64_t rung, const ffi::Bytes& places) { Park(rung, places); });
    if (name == "make_shared")
      return ffi::Function::FromTyped([self, this](int64_t shareable) { session_.MakeShared(static_cast<uint64_t>(shareable)); });
    if (name == "read_ahead") return ffi::Function::FromTyped([self, this](bool reading) { session_.ReadAhead(reading); });
    if (name == "leave_lane") return ffi::Function::FromTyped([self, this] { session_.LeaveLane(); });
    if (name == "cancel") return ffi::Function::FromTyped([self, this] { session_.Cancel(); });
    if (name == "stop") return ffi::Function::FromTyped([self, this] { session_.Stop(); });
    if (name == "trace") return ffi::Function::FromTyped([self, this] { return ffi::String(DescribeTrace(session_.trace())); });
    if (name == "resident_arena")
      return ffi::Function::FromTyped([self, this] { return static_cast<int64_t>(session_.ResidentArena()); });
    if (name == "close") return ffi::Function::FromTyped([self, this] { session_.Close(); });
    return std::nullopt;
  }

 private:
  // shape_of(shapes of the inputs...), in the order of the program's ports: the number of the shape that takes them.
  int64_t ShapeOf(ffi::PackedArgs args) {
    std::vector<ffi::Shape> shapes;
    std::vector<std::span<const int64_t>> extents;
    for (int i = 0; i < args.size(); ++i) shapes.push_back(args[i].cast<ffi::Shape>());
    for (const ffi::Shape& shape : shapes) extents.emplace_back(shape.data(), shape.size());
    return static_cast<int64_t>(session_.shapes().FitOf(extents).shape);
  }

  // run(inputs..., outputs...), in the order of the program's ports; None: nobody wants that output.
  void Run(ffi::PackedArgs args) {
    const size_t inputs = session_.program().inputs.size(), outputs = session_.program().outputs.size();
    if (static_cast<size_t>(args.size()) != inputs + outputs)
      RaiseError("InputError", "run takes ", inputs, " inputs and ", outputs, " outputs, not ", args.size(), " tensors");
    const std::vector<const DLTensor*> tensors = Tensors(args, inputs);
    const std::span all(tensors);
    session_.Run(all.first(inputs), all.last(outputs));
  }

  // Pairs of the number of weights (`shareable` of the program) and the address of their shared place, each 8 bytes.
  void Park(int64_t rung, const ffi::Bytes& places) {
    if (rung < 0 || places.size() % sizeof(Sharing::Place) != 0) RaiseError("InputError", "there is no rung ", rung, ", or there are no such places");
    std::vector<Sharing::Place> shared(places.size() / sizeof(Sharing::Place));
    std::memcpy(shared.data(), places.data(), places.size());
    session_.Park(static_cast<size_t>(rung), std::move(shared));
  }

  // The first `needed` are no None.
  static std::vector<const DLTensor*> Tensors(ffi::PackedArgs args, size_t needed = SIZE_MAX) {
    std::vector<const DLTensor*> tensors(args.size());
    for (int i = 0; i < args.size(); ++i) {
      if (static_cast<size_t>(i) >= needed && args[i] == nullptr) continue;
      const auto tensor = args[i].try_cast<DLTensor*>();
      if (!tensor) RaiseError("InputError", "argument ", i, " is not a tensor");
      tensors[i] = *tensor;
    }
    return tensors;
  }

  // get_states(tensors...) and set_states(index, tensor, ...): pairs of a state's index and its new value. get_state_parts and
  // set_state_parts take the first elements along one axis, too.
  void GetStates(ffi::PackedArgs args, bool parts) {
    if (static_cast<size_t>(args.size()) != session_.program().states.size())
      RaiseError("InputError", "there are ", session_.program().states.size(), " states, not ", args.size());
    session_.GetStates(Tensors(args), parts);
  }
  void SetStates(ffi::PackedArgs args, bool parts) {
    if (args.size() % 2 != 0) RaiseError("InputError", "there is no tensor behind argument ", args.size() - 1);
    std::vector<const DLTensor*> tensors(session_.program().states.size(), nullptr);
    for (int i = 0; i + 1 < args.size(); i += 2) {
      const auto index = args[i].try_cast<int64_t>();
      const auto tensor = args[i + 1].try_cast<DLTensor*>();
      if (!index || *index < 0 || static_cast<size_t>(*index) >= tensors.size() || !tensor)
        RaiseError("InputError", "argument ", i, " is not the index of a state, or there is no tensor behind it");
      tensors[*index] = *tensor;
    }
    session_.SetStates(tensors, parts);
  }

  // run_in_place(fill, drain): functions of the inputs or outputs, in the order of the program's ports, or None.
  static Session::PortsCallback OnPorts(const ffi::Optional<ffi::Function>& function) {
    if (!function.has_value()) return {};
    return [function = *function](std::span<DLTensor> ports) {
      std::vector<ffi::AnyView> args;
      for (DLTensor& port : ports) args.emplace_back(&port);
      ffi::Any nothing;
      function.CallPacked(args.data(), static_cast<int32_t>(args.size()), &nothing);
    };
  }

  Session::Owner owner_;
  Session& session_;
};

class ProgramModule final : public TranslatedModule {
 public:
  explicit ProgramModule(ffi::Bytes blob) : blob_(std::move(blob)), shapes_(DecodeShapes(blob_)) {}

  void CheckPlans() const {
    for (const auto& program : shapes_.programs()) flexcomp::CheckPlans(*program);
  }

  const char* kind() const final { return FLEXCOMP_PROGRAM_KIND; }
  int GetPropertyMask() const final { return ffi::Module::kBinarySerializable | ffi::Module::kRunnable; }
  ffi::Bytes SaveToBytes() const final { return blob_; }

  ffi::Optional<ffi::Function> Find(const ffi::String& name) final {
    const ffi::Module self = ffi::GetRef<ffi::Module>(this);
    if (name == "info") return ffi::Function::FromTyped([self, this] { return ffi::String(DescribeNetwork(shapes_)); });
    if (name == "summary") return ffi::Function::FromTyped([self, this] { return ffi::String(DescribeNetwork(shapes_, true)); });
    const bool shares = shapes_.size() == 1;
    if (name == "shareable" && shares) return ffi::Function::FromTyped([self, this] { return ffi::String(DescribeShareable(shapes_[0])); });
    if (name == "resting" && shares) return ffi::Function::FromTyped([self, this] { return ffi::String(DescribeResting(shapes_[0])); });
    if (name == "shape_of")
      return ffi::Function::FromPacked([self, this](ffi::PackedArgs args, ffi::Any* found) { *found = ShapeOf(args); });
    if (name == "blob") return ffi::Function::FromTyped([self, this] { return blob_; });
    if (name == "machine")
      return ffi::Function::FromTyped([self, this] { return ffi::String(DescribeMachine(shapes_[0])); });
    if (name == "write_piece")
      return ffi::Function::FromTyped([self](const ffi::String& path, int64_t offset, const ffi::Bytes& bytes) {
        WritePiece(path, static_cast<uint64_t>(offset), {bytes.data(), bytes.size()});
      });
    if (name == "settle_file") return ffi::Function::FromTyped([self](const ffi::String& path) { SettleFile(path); });
    if (name == "open")
      return ffi::Function::FromTyped([self, this](const ffi::String& weights_path, const ffi::String& options) {
        return ffi::Module(ffi::make_object<SessionModule>(shapes_, weights_path, ParseOptions(options)));
      });
    return std::nullopt;
  }

 private:
  // shape_of(axes, extents..., axes, extents...), of each input: as of a session, in numbers, which come from other machines, too.
  int64_t ShapeOf(ffi::PackedArgs args) const {
    std::vector<std::vector<int64_t>> inputs;
    for (int i = 0; i < args.size();) {
      const auto axes = args[i++].cast<int64_t>();
      if (axes < 0 || axes > args.size() - i) Raise("InputError", "shape_of takes the number of axes of each input, and their extents");
      std::vector<int64_t>& extents = inputs.emplace_back();
      for (int64_t axis = 0; axis < axes; ++axis) extents.push_back(args[i++].cast<int64_t>());
    }
    const std::vector<std::span<const int64_t>> extents(inputs.begin(), inputs.end());
    return static_cast<int64_t>(shapes_.FitOf(extents).shape);
  }

  ffi::Bytes blob_;
  const Shapes shapes_;  // sessions may outlive the module, and decode plans
};

// For a library: its sessions check the plans that they use.
ffi::Module LoadProgram(const ffi::Bytes& blob) {
  return Translated([&] {
    KeptOutOfMemory();
    return ffi::Module(ffi::make_object<ProgramModule>(blob));
  });
}

// For makers of programs, who want to find errors: all plans are checked.
ffi::Module CreateProgram(const ffi::Bytes& blob) {
  return Translated([&] {
    const auto module = ffi::make_object<ProgramModule>(blob);
    module->CheckPlans();
    return ffi::Module(module);
  });
}

// The choice of a session on a machine with these cores (Linux's list format) under `sysfs`, empty: on this one.
ffi::String ChooseCoresOf(const ffi::String& sysfs, const ffi::String& cpus, int64_t threads, bool asked) {
  CoreOptions options;
  if (!sysfs.empty()) options.root = sysfs;
  const auto set = cpus.empty() ? CpuSet::OfThisThread() : CpuSet::Parse(cpus);
  if (!set) return DescribeCores({});
  return DescribeCores(ChooseCores(ReadCores(options.root, *set), static_cast<int>(std::clamp<int64_t>(threads, 1, INT32_MAX)), asked));
}

// Of the storage that a file lies on.
ffi::String MeasureStorageOf(const ffi::String& path, double seconds) {
  return Translated([&] { return ffi::String(DescribeStorage(MeasureStorage(path, Place({}, 1, 1).loader, seconds))); });
}

void DefineAll() {
  DefineOnce(FLEXCOMP_PROGRAM_KIND ".choose_cores", ChooseCoresOf);
  DefineOnce(FLEXCOMP_PROGRAM_KIND ".create", CreateProgram);
  DefineOnce(FLEXCOMP_PROGRAM_KIND ".measure_storage", MeasureStorageOf);
  DefineOnce("ffi.Module.load_from_bytes." FLEXCOMP_PROGRAM_KIND, LoadProgram);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  // Nobody could catch an error here. Where there is no memory even the second time, this kind of module is missing,
  // and loading one reports that.
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      return DefineAll();
    } catch (const std::exception&) {
    }
  }
}

}  // namespace
}  // namespace flexcomp
