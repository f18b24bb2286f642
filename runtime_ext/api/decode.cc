// Tokens in, the next one out.
#include <flexcomp.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "api/sessions.h"
#include "api/status.h"
#include "api/structs.h"
#include "decoder/decoder.h"

using namespace flexcomp;

flexcomp_status flexcomp_describe_decoder(flexcomp_session* session, flexcomp_decoder_info* info) {
  return api::Guarded([&] {
    const std::shared_ptr<const api::Opened> found = api::FindOpened(session);
    const Decoder decoder(found->shapes());
    flexcomp_decoder_info made{};
    made.vocabulary = decoder.vocabulary();
    made.capacity = decoder.capacity();
    made.longest = decoder.longest();
    api::Give(info, made, sizeof made, "info");
  });
}

flexcomp_status flexcomp_decode(flexcomp_session* session, uint64_t position, const int64_t* tokens, uint32_t count, float* logits,
                                int64_t* next) {
  return api::Guarded([&] {
    const std::shared_ptr<Session> found = api::FindToWait(session);
    const Decoder decoder(found->shapes());
    if (count == 0) Raise("InputError", "there are no tokens to decode");
    api::RequirePointer(tokens, "tokens");
    std::vector<float> own;
    std::span<float> row;
    if (logits != nullptr) {
      row = {logits, decoder.vocabulary()};
    } else if (next != nullptr) {
      own.resize(decoder.vocabulary());
      row = own;
    }
    const auto infer = [&found](size_t shape, const Decoder::OnTensors& fill, const Decoder::OnTensors& drain) {
      found->TakeShape(shape);
      found->RunInPlace(fill, drain);
    };
    decoder.Take(infer, position, {tokens, count}, row);
    if (next != nullptr) *next = Likeliest(row);
  });
}
