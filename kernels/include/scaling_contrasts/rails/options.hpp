// What a run over several boxes is told: who takes part, where they meet, and how the rails between them are set.
// A box is one process with all the devices it drives; a rail joins a device to its counterpart on another box.
#pragma once
#include <string>

namespace scaling_contrasts::rails {

inline constexpr int max_boxes_k = 16;

/// Who takes part and where they meet.
struct meeting_t {
    int boxes = 1;
    int box = 0;               ///< this one, 0 to boxes - 1
    std::string rendezvous;    ///< `host:port` or `[host]:port`, where box 0 listens
    std::string token_file;    ///< holds the secret that all boxes share
    std::string interface;     ///< listen on this network interface alone; empty: the one that leads to the rendezvous
    double join_seconds = 60;  ///< for all boxes to come
    double rails_seconds = 0;  ///< for another box's message in a step; 0: the larger of 30 and 5 predicted steps
};

/// How a device's embeddings travel.
struct options_t {
    std::string transport = "auto";  ///< `verbs`, `tcp`, or `auto`: verbs where every box can
    bool overlap = true;             ///< false: wait for arrivals before anything is scored, to measure the difference
    int sockets = 2;                 ///< tcp: connections of one rail
    std::string gpu_memory =
        "auto";  ///< `direct`: registered; `host`: staged through the host; auto: direct if possible
    // verbs; the defaults of NCCL, which RoCE fabrics are tuned for
    std::string device;     ///< `mlx5_0`; empty: the nearest one to the GPU that reaches the other boxes
    int gid_index = -1;     ///< -1: the RoCE v2 one of the interface and its address family
    int mtu = 0;            ///< 256, 512, ... 4096; 0: the smaller of both ports'
    int service_level = 0;  ///< 0 to 15
    int traffic_class = 0;  ///< 0 to 255: four times the DSCP
    int timeout = 18;       ///< an acknowledgement is awaited 4.096 us * 2^timeout
    int retries = 7;        ///< 0 to 7, then the rail fails
};

}  // namespace scaling_contrasts::rails
