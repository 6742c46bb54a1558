// Stands in for cuda_backend.cu where CMake found no CUDA compiler: says so, and runs nothing.
#include "backend.hpp"

namespace scaling_contrasts::bench {

backend_factory_t const& cuda_factory() {
    static backend_factory_t const factory = {
        .device = "cuda",
        .engines_built = {},
        .engines_usable = {},
        .device_names = {},
        .bus_ids = {},
        .versions = {},
        .unsupported = [](problem_t const&, run_options_t const&) -> std::string {
            return "this binary was built without CUDA; install nvcc and build again";
        },
        .make = [](problem_t const&, run_options_t const&) -> std::unique_ptr<backend_t> { return nullptr; },
    };
    return factory;
}

backend_factory_t const& collectives_factory() { return cuda_factory(); }

}  // namespace scaling_contrasts::bench
