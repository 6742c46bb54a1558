// Which of a problem's devices a process drives: all, or, where several boxes take part, one box's share; and what they
// do.
#pragma once

namespace scaling_contrasts {

struct devices_t {
    int first = 0;
    int count = 0;  ///< 0: all

    bool hold(int device) const { return count == 0 || (device >= first && device < first + count); }
};

/// A pass over all blocks of candidates, in the order of a step. Only softmax losses gather; only one_set_info_nce does
/// so over positives too.
enum class pass_t { gather_k, positives_k, score_k };

/// The devices of one box: equal shares, in order.
inline devices_t devices_of(int box, int boxes, int world_size) {
    int const each = world_size / boxes;
    return {box * each, each};
}

}  // namespace scaling_contrasts
