// ScalingContrasts: contrastive losses over a ladder of Matryoshka prefixes, forward and backward in one step.
//
//   types.hpp    problems, sets, losses, bf16
//   inputs.hpp   the synthetic embeddings of the benchmark
//   ladder.hpp   prefixes as bands of columns
//   cell.hpp     the mathematics of one cell
//   memory.hpp   counted host memory
//   threads.hpp  the thread pool
//   cpu/         the CPU engine: layout, instruction sets, the schedule of a block
//   devices.hpp  which devices a process drives
//   rails/       between processes and machines, apart: include rails/step.hpp and rails/cpu_box.hpp
//   step.hpp     begin, score, finish, all_reduce over the devices of this process
//
// Needs C++20, GCC or Clang, and threads. See examples/header_only.
#pragma once
#include "scaling_contrasts/inputs.hpp"
#include "scaling_contrasts/step.hpp"
#include "scaling_contrasts/types.hpp"
