// Uses the loss from its header alone: a few steps of gradient descent on the embeddings themselves.
//
//   cmake --install build --prefix /tmp/sc
//   cmake -S examples/header_only -B build-example -DCMAKE_PREFIX_PATH=/tmp/sc && cmake --build build-example
#include <cmath>
#include <cstdio>
#include <scaling_contrasts.hpp>

namespace sc = scaling_contrasts;

int main() {
    sc::problem_t problem;  // one set of rows; equal labels are positives
    problem.rows = 96;
    problem.dims = 128;
    problem.prefixes = {32, 64, 128};
    problem.gradient_type = sc::gradient_type_t::float32_k;

    auto const count = static_cast<std::size_t>(problem.rows * problem.dims);
    std::vector<sc::bf16_t> embeddings(count);
    std::vector<float> gradient(count);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(problem.rows));
    for (int i = 0; i < problem.rows; ++i) {
        labels[static_cast<std::size_t>(i)] = i / 3;  // any numbers will do
        sc::fill_row(1, 0, i, i, problem.dims, embeddings.data() + i * problem.dims);
    }

    sc::step_t step(problem, {{embeddings.data(), labels.data(), gradient.data()}}, 2);
    for (int iteration = 0; iteration <= 50; ++iteration) {
        sc::scalars_t const result = step.run();
        if (iteration % 50 == 0)
            std::printf("step %2d on %s: loss %.4f, dL/dt %.4f, dL/db %.4f\n", iteration, step.engine().c_str(),
                        result.loss, result.scale_gradient, result.bias_gradient);
        float const rate = 2e6f;  // embeddings are not normalised: their gradient shrinks with their length squared
        for (std::size_t i = 0; i < count; ++i)
            embeddings[i] = sc::bf16_t(static_cast<float>(embeddings[i]) - rate * gradient[i]);
    }
}
