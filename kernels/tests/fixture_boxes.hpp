// Where boxes that are threads of a test meet: a port of the loopback, and a token.
#pragma once
#include "scaling_contrasts/rails/mesh.hpp"

namespace boxes {

class meeting_point_t {
  public:
    meeting_point_t() {
        using namespace scaling_contrasts::rails;
        port_ = own_address(listen_on(resolve({"127.0.0.1", "0"})[0], "").get()).port();
        descriptor_t const file(::mkstemp(token_.data()));  // for its owner alone
        [[maybe_unused]] auto const size = ::write(file.get(), "a secret of the tests", 21);
    }
    ~meeting_point_t() { ::unlink(token_.c_str()); }
    meeting_point_t(meeting_point_t const&) = delete;
    meeting_point_t& operator=(meeting_point_t const&) = delete;

    scaling_contrasts::rails::meeting_t meeting(int boxes, int box) const {
        scaling_contrasts::rails::meeting_t out;
        out.boxes = boxes, out.box = box;
        out.rendezvous = "127.0.0.1:" + std::to_string(port_);
        out.token_file = token_;
        return out;
    }

  private:
    int port_ = 0;
    std::string token_ = "/tmp/sc_token_XXXXXX";
};

}  // namespace boxes
