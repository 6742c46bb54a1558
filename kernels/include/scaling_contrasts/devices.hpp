// Which of a problem's devices a process drives: all, or, where several boxes take part, one box's share.
#pragma once

namespace scaling_contrasts {

struct devices_t {
    int first = 0;
    int count = 0;  ///< 0: all

    bool hold(int device) const { return count == 0 || (device >= first && device < first + count); }
};

/// The devices of one box: equal shares, in order.
inline devices_t devices_of(int box, int boxes, int world_size) {
    int const each = world_size / boxes;
    return {box * each, each};
}

}  // namespace scaling_contrasts
