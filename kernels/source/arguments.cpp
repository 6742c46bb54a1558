#include "arguments.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <thread>

#include "scaling_contrasts/ladder.hpp"

namespace scaling_contrasts::bench {

char const* const help_text_k = R"(scaling_contrasts: contrastive losses, forward and backward, on synthetic embeddings

  scaling_contrasts --loss one_set_sigmoid --rows 4096          one readable result
  scaling_contrasts --folder F --loss ... --actions check,time  the worker contract: JSON lines and .npy files in F
  scaling_contrasts --batch FILE                                cases one after the other in one process: the flags of one a line
  scaling_contrasts --capabilities                              what this build and this machine can do, as JSON
  scaling_contrasts --inputs-digest --loss ... --rows ...       SHA-256 of the case's inputs

the problem (lists joined by commas):
  --loss one_set_sigmoid|two_set_sigmoid|info_nce|one_set_info_nce   --form nt_xent|sup_con (of one_set_info_nce)
  --loss one_set_all_reduce: no loss, but rows x dims floats summed over GPUs
      (--options schedule=auto|one_shot|two_shot|in_switch|in_switch_small, dtype=bfloat16 of in_switch: as many bytes)
  --rows R (per device)   --live L0,L1,...   --dims D
  --prefixes 64,128,...   --prefix-weights W0,W1,...   --scale T   --bias B   --self-pairs true|false
  --seed N   --labels pairs|distinct|equal|mixed|fours|sixteens   --dtype bfloat16   --gradient-dtype bfloat16|float32
  --forward-only true|false (the loss alone; or the option forward_only=true)
where it runs:
  --device cpu|cuda   --world-size N (virtual devices on the CPU)   --threads N (per device)
  --fabric auto|multicast|peer (how GPUs add up: auto takes the switch where it can and nothing forbids it)
  --engine auto|cpu-avx512bf16|cpu-avx512|cpu-avx2|cpu-portable|...   (or SCALING_CONTRASTS_ENGINE)   --options key=value,...
    options: pairs=twice|once (a block of two devices is scored by each for itself, or by one for both: docs/performance_box.md)
             group_rows=8192 (GPUs: peers of few rows are scored together, up to so many rows)
             devices=turns|threads (virtual devices on the CPU take turns, or run at once)   deadline_ms=N (of a wait for a device)
several boxes, one process each (docs/rails.md); --world-size counts the devices of all:
  --nodes N   --node-rank r   --rendezvous HOST:PORT (box 0 listens)   --token-file F   --interface NAME
  --rails auto|verbs|tcp   --rails-options sockets=2,overlap=true,device=,gid_index=,mtu=,service_level=,traffic_class=,timeout=,retries=
  --join-seconds 60   --rails-seconds 0 (the larger of 30 and 5 predicted steps)
what is done:
  --profile (forward, backward and stages of one case, for people)
  --actions check,time,memory,step,profile   --check name=small,rows=64,scale=5,bias=-1,sample_rows=0:7:9 (repeatable)
  --warmup-steps N   --warmup-seconds S   --blocks N   --steps-per-block N   --max-block-seconds S
  --cache warm|cold (cold: caches are flushed before each timed step)
  --deadline-seconds S   --folder F   --json (events to stdout)
recorded only: --contract --system --variant --state --protocol
)";

namespace {

std::vector<std::string> split(std::string const& text, char separator) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0;;) {
        std::size_t const end = text.find(separator, begin);
        parts.push_back(text.substr(begin, end - begin));
        if (end == std::string::npos) return parts;
        begin = end + 1;
    }
}

template <class number_t>
number_t to_number(std::string const& what, std::string const& text, number_t least, number_t most) {
    number_t value{};
    auto const [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || problem != std::errc{} || end != text.data() + text.size())
        throw usage_error_t(what + " is '" + text + "'; give a number");
    if constexpr (std::is_floating_point_v<number_t>)
        if (!std::isfinite(value)) throw usage_error_t(what + " is '" + text + "'; give a finite number");
    if (value < least || value > most) throw usage_error_t(what + " is " + text + "; it is out of range");
    return value;
}

std::int64_t to_count(std::string const& what, std::string const& text, std::int64_t least = 1,
                      std::int64_t most = 1 << 30) {
    auto const value = to_number<std::int64_t>(what, text, INT64_MIN, INT64_MAX);
    if (value < least) throw usage_error_t(what + " is " + text + "; it must be at least " + std::to_string(least));
    if (value > most) throw usage_error_t(what + " is " + text + "; it must be at most " + std::to_string(most));
    return value;
}

double to_real(std::string const& what, std::string const& text) {
    return to_number<double>(what, text, -1e300, 1e300);
}

double to_seconds(std::string const& what, std::string const& text) { return to_number<double>(what, text, 0, 1e9); }

bool to_bool(std::string const& what, std::string const& text) {
    if (text == "true") return true;
    if (text == "false") return false;
    throw usage_error_t(what + " is '" + text + "'; give true or false");
}

template <class value_t>
value_t to_choice(std::string const& what, std::string const& text,
                  std::vector<std::pair<char const*, value_t>> const& choices) {
    std::string known;
    for (auto const& [name, value] : choices) {
        if (text == name) return value;
        known += (known.empty() ? "" : ", ") + std::string(name);
    }
    throw usage_error_t(what + " is '" + text + "'; known: " + known);
}

loss_t to_loss(std::string const& what, std::string const& text) {
    return to_choice<loss_t>(what, text,
                             {{"one_set_sigmoid", loss_t::one_set_sigmoid_k},
                              {"two_set_sigmoid", loss_t::two_set_sigmoid_k},
                              {"info_nce", loss_t::info_nce_k},
                              {"one_set_info_nce", loss_t::one_set_info_nce_k}});
}

form_t to_form(std::string const& what, std::string const& text) {
    return to_choice<form_t>(what, text, {{"nt_xent", form_t::nt_xent_k}, {"sup_con", form_t::sup_con_k}});
}

label_layout_t to_labels(std::string const& what, std::string const& text) {
    return to_choice<label_layout_t>(what, text,
                                     {{"pairs", label_layout_t::pairs_k},
                                      {"distinct", label_layout_t::distinct_k},
                                      {"equal", label_layout_t::equal_k},
                                      {"mixed", label_layout_t::mixed_k},
                                      {"fours", label_layout_t::fours_k},
                                      {"sixteens", label_layout_t::sixteens_k}});
}

template <class value_t>
std::vector<value_t> to_list(std::string const& text, char separator,
                             std::function<value_t(std::string const&)> const& convert) {
    std::vector<value_t> values;
    for (auto const& part : split(text, separator)) values.push_back(convert(part));
    return values;
}

std::vector<std::int64_t> to_counts(std::string const& what, std::string const& text, char separator) {
    return to_list<std::int64_t>(text, separator, [&](std::string const& part) { return to_count(what, part, 0); });
}

void check_problem(std::string const& where, problem_t const& problem) {
    try {
        make_ladder(problem);
    } catch (std::invalid_argument const& wrong) {
        throw usage_error_t(where + wrong.what());
    }
    auto const devices = static_cast<std::size_t>(problem.world_size);
    if (!problem.live.empty() && problem.live.size() != devices)
        throw usage_error_t(where + std::to_string(problem.live.size()) + " live counts for " +
                            std::to_string(devices) + " devices; give one each");
    for (auto const live : problem.live)
        if (live > problem.rows)
            throw usage_error_t(where + "live " + std::to_string(live) + " exceeds rows " +
                                std::to_string(problem.rows) + "; give 0 to rows");
    if (problem.live_rows() == 0)
        throw usage_error_t(where + "live is 0 on every device; at least one row must be live");
    if (problem.rows * problem.world_size > INT32_MAX)
        throw usage_error_t(where + "rows times world_size exceeds 2^31 - 1; lower one of them");
}

/// Checks are parsed last: they start from the case's own problem.
check_t to_check(std::string const& text, problem_t const& base) {
    check_t check = {.name = "", .problem = base, .sample_rows = {}};
    bool rows = false, live = false;
    for (auto const& part : split(text, ',')) {
        std::size_t const equals = part.find('=');
        std::string const key = part.substr(0, equals),
                          value = equals == std::string::npos ? "" : part.substr(equals + 1);
        std::string const what = "--check " + key;
        if (key == "name") check.name = value;
        else if (key == "rows") check.problem.rows = to_count(what, value), rows = true;
        else if (key == "live") check.problem.live = to_counts(what, value, ':'), live = true;
        else if (key == "scale") check.problem.scale = to_real(what, value);
        else if (key == "bias") check.problem.bias = to_real(what, value);
        else if (key == "labels") check.problem.labels = to_labels(what, value);
        else if (key == "sample_rows") check.sample_rows = to_counts(what, value, ':');
        else
            throw usage_error_t("--check has unknown key '" + key +
                                "'; known: name, rows, live, scale, bias, labels, sample_rows");
    }
    if (check.name.empty() || check.name.find_first_of("/\\\" ") != std::string::npos || check.name[0] == '.')
        throw usage_error_t("--check '" + text + "' needs name=..., a plain word");
    if (rows && !live) check.problem.live.clear();  // the case's live counts are of its own rows
    check_problem("--check " + check.name + ": ", check.problem);
    for (auto const row : check.sample_rows)
        if (row >= check.problem.rows * check.problem.world_size)
            throw usage_error_t("--check " + check.name + ": sample row " + std::to_string(row) +
                                " is past the last row");
    return check;
}

void add_options(arguments_t& out, std::string const& text) {
    if (text.empty()) return;
    for (auto const& part : split(text, ',')) {
        std::size_t const equals = part.find('=');
        if (equals == std::string::npos || equals == 0)
            throw usage_error_t("--options has '" + part + "'; give key=value,key=value");
        out.run.options[part.substr(0, equals)] = part.substr(equals + 1);
    }
}

/// One `key=value` of --rails-options.
void set_rails_option(rails::options_t& rails, std::string const& text) {
    std::size_t const equals = text.find('=');
    std::string const key = text.substr(0, equals), value = equals == std::string::npos ? "" : text.substr(equals + 1);
    std::string const what = "--rails-options " + key;
    auto count = [&](std::int64_t least, std::int64_t most) {
        return static_cast<int>(to_count(what, value, least, most));
    };
    if (key == "sockets") rails.sockets = count(1, 64);
    else if (key == "overlap") rails.overlap = to_bool(what, value);
    else if (key == "gpu_memory")
        rails.gpu_memory =
            to_choice<char const*>(what, value, {{"auto", "auto"}, {"direct", "direct"}, {"host", "host"}});
    else if (key == "device") rails.device = value;
    else if (key == "gid_index") rails.gid_index = count(0, 65535);
    else if (key == "mtu")
        rails.mtu =
            to_choice<int>(what, value, {{"256", 256}, {"512", 512}, {"1024", 1024}, {"2048", 2048}, {"4096", 4096}});
    else if (key == "service_level") rails.service_level = count(0, 15);
    else if (key == "traffic_class") rails.traffic_class = count(0, 255);
    else if (key == "timeout") rails.timeout = count(1, 31);
    else if (key == "retries") rails.retries = count(0, 7);
    else
        throw usage_error_t("--rails-options has '" + text +
                            "'; known: sockets, overlap, gpu_memory, device, gid_index, mtu, service_level, "
                            "traffic_class, timeout, retries");
}

/// What several boxes need, and what one box must not be given.
void check_meeting(arguments_t const& out) {
    auto const& meeting = out.meeting;
    int const devices = out.problem.world_size;
    if (meeting.box >= meeting.boxes)
        throw usage_error_t("--node-rank is " + std::to_string(meeting.box) + " of " + std::to_string(meeting.boxes) +
                            " boxes; give 0 to " + std::to_string(meeting.boxes - 1));
    if (devices % meeting.boxes != 0)
        throw usage_error_t("--world-size " + std::to_string(devices) + " is not divisible by --nodes " +
                            std::to_string(meeting.boxes) + "; it counts the devices of all boxes");
    if (devices / meeting.boxes > max_devices_k)
        throw usage_error_t("--world-size is " + std::to_string(devices) + "; a box drives at most " +
                            std::to_string(max_devices_k) + " devices");
    if (meeting.boxes == 1) return;
    if (meeting.rendezvous.empty()) throw usage_error_t("--nodes needs --rendezvous HOST:PORT, where box 0 listens");
    if (meeting.token_file.empty()) throw usage_error_t("--nodes needs --token-file, a secret that all boxes share");
}

using setter_t = std::function<void(arguments_t&, std::string const& flag, std::string const& value)>;

#define SC_SET                                                                                                         \
    []([[maybe_unused]] arguments_t& out, [[maybe_unused]] std::string const& flag,                                    \
       [[maybe_unused]] std::string const& value)

std::map<std::string, setter_t> const& problem_setters() {
    static std::map<std::string, setter_t> const setters = {
        {"--loss",
         SC_SET {
             out.all_reduce = value == "one_set_all_reduce";
             out.problem.loss = out.all_reduce ? loss_t::one_set_sigmoid_k : to_loss(flag, value);
         }},
        {"--form", SC_SET { out.problem.form = to_form(flag, value); }},
        {"--rows", SC_SET { out.problem.rows = to_count(flag, value); }},
        {"--live", SC_SET { out.problem.live = to_counts(flag, value, ','); }},
        {"--dims", SC_SET { out.problem.dims = static_cast<int>(to_count(flag, value, 1, 1 << 20));
         }},
        {"--prefixes",
         SC_SET {
             out.problem.prefixes = to_list<int>(
                 value, ',',
                 [&](std::string const& part) { return static_cast<int>(to_count(flag, part, 1, 1 << 20)); });
         }},
        {"--prefix-weights",
         SC_SET {
             out.problem.prefix_weights =
                 to_list<double>(value, ',', [&](std::string const& part) { return to_real(flag, part); });
         }},
        {"--dtype",
         SC_SET {
             out.dtype = to_choice<char const*>(flag, value, {{"bfloat16", "bfloat16"}, {"float32", "float32"}});
         }},
        {"--gradient-dtype",
         SC_SET {
             out.problem.gradient_type = to_choice<gradient_type_t>(
                 flag, value, {{"bfloat16", gradient_type_t::bfloat16_k}, {"float32", gradient_type_t::float32_k}});
         }},
        {"--scale", SC_SET { out.problem.scale = to_real(flag, value); }},
        {"--bias", SC_SET { out.problem.bias = to_real(flag, value); }},
        {"--seed", SC_SET { out.problem.seed = static_cast<std::uint32_t>(to_count(flag, value, 0, UINT32_MAX));
         }},
        {"--labels", SC_SET { out.problem.labels = to_labels(flag, value); }},
        {"--forward-only", SC_SET { out.problem.forward_only = to_bool(flag, value); }},
        {"--self-pairs", SC_SET { out.problem.self_pairs = to_bool(flag, value); }},
        {"--world-size",
         SC_SET {
             out.problem.world_size = static_cast<int>(to_count(flag, value, 1, max_devices_k * rails::max_boxes_k));
         }},
    };
    return setters;
}

std::map<std::string, setter_t> const& boxes_setters() {
    static std::map<std::string, setter_t> const setters = {
        {"--nodes",
         SC_SET {
             out.meeting.boxes = static_cast<int>(to_count(flag, value, 1, rails::max_boxes_k));
         }},
        {"--node-rank",
         SC_SET {
             out.meeting.box = static_cast<int>(to_count(flag, value, 0, rails::max_boxes_k - 1));
         }},
        {"--rendezvous", SC_SET { out.meeting.rendezvous = value; }},
        {"--token-file", SC_SET { out.meeting.token_file = value; }},
        {"--interface", SC_SET { out.meeting.interface = value; }},
        {"--join-seconds", SC_SET { out.meeting.join_seconds = to_seconds(flag, value); }},
        {"--rails-seconds", SC_SET { out.meeting.rails_seconds = to_seconds(flag, value); }},
        {"--rails",
         SC_SET {
             out.rails.transport =
                 to_choice<char const*>(flag, value, {{"auto", "auto"}, {"verbs", "verbs"}, {"tcp", "tcp"}});
         }},
        {"--rails-options",
         SC_SET {
             for (auto const& part : split(value, ',')) set_rails_option(out.rails, part);
         }},
    };
    return setters;
}

std::map<std::string, setter_t> const& run_setters() {
    static std::map<std::string, setter_t> const setters = {
        {"--contract",
         SC_SET {
             if (value != "1") throw usage_error_t("--contract is '" + value + "'; this binary speaks 1"); }},
        {"--system",
         SC_SET {
             out.system = to_choice<char const*>(
                 flag, value, {{"native", "native"}, {"native_all_reduce", "native_all_reduce"}, {"sleep", "sleep"}}); }},
        {"--variant", SC_SET { out.variant = value; }},
        {"--state", SC_SET { out.state = value; }},
        {"--protocol", SC_SET {}},
        {"--device", SC_SET { out.device = to_choice<char const*>(flag, value, {{"cpu", "cpu"}, {"cuda", "cuda"}}); }},
        {"--threads", SC_SET { out.run.threads = static_cast<int>(to_count(flag, value, 1, 4096)); }},
        {"--engine", SC_SET { out.run.engine = value; }},
        {"--fabric",
         SC_SET {
             out.run.fabric =
                 to_choice<char const*>(flag, value, {{"auto", "auto"}, {"multicast", "multicast"}, {"peer", "peer"}}); }},
        {"--options", SC_SET { add_options(out, value); }},
        {"--actions",
         SC_SET {
             out.actions = split(value, ',');
             out.events = true;
             for (auto const& action : out.actions)
                 to_choice<int>(flag, action, {{"check", 0}, {"time", 0}, {"memory", 0}, {"step", 0}, {"profile", 0}}); }},
        {"--warmup-steps", SC_SET { out.timing.warmup_steps = static_cast<int>(to_count(flag, value, 0)); }},
        {"--warmup-seconds", SC_SET { out.timing.warmup_seconds = to_seconds(flag, value); }},
        {"--blocks", SC_SET { out.timing.blocks = static_cast<int>(to_count(flag, value)); }},
        {"--steps-per-block", SC_SET { out.timing.steps_per_block = static_cast<int>(to_count(flag, value)); }},
        {"--max-block-seconds", SC_SET { out.timing.max_block_seconds = to_seconds(flag, value); }},
        {"--cache", SC_SET { out.timing.cold = to_choice<bool>(flag, value, {{"warm", false}, {"cold", true}}); }},
        {"--deadline-seconds", SC_SET { out.deadline_seconds = to_seconds(flag, value); }},
        {"--folder",
         SC_SET {
             out.folder = value;
             out.events = true; }},
    };
    return setters;
}

}  // namespace

arguments_t parse_arguments(int count, char const* const* words) {
    arguments_t out;
    out.run.threads = 0;
    if (char const* engine = std::getenv("SCALING_CONTRASTS_ENGINE")) out.run.engine = engine;
    std::vector<std::string> checks;
    for (int i = 1; i < count; ++i) {
        std::string const flag = words[i];
        if (flag == "--help" || flag == "-h") {
            out.help = true;
            continue;
        }
        if (flag == "--capabilities") {
            out.capabilities = true;
            continue;
        }
        if (flag == "--inputs-digest") {
            out.inputs_digest = true;
            continue;
        }
        if (flag == "--json") {
            out.events = true;
            continue;
        }
        if (flag == "--profile") {
            out.profile = true;
            continue;
        }
        auto const problem = problem_setters().find(flag);
        auto const run = run_setters().find(flag);
        auto const boxes = boxes_setters().find(flag);
        bool const known = problem != problem_setters().end() || run != run_setters().end() ||
                           boxes != boxes_setters().end() || flag == "--check";
        if (!known) throw usage_error_t("unknown flag '" + flag + "'; --help lists the flags");
        if (i + 1 >= count) throw usage_error_t(flag + " needs a value");
        std::string const value = words[++i];
        if (flag == "--check") checks.push_back(value);
        else if (problem != problem_setters().end()) problem->second(out, flag, value);
        else if (boxes != boxes_setters().end()) boxes->second(out, flag, value);
        else run->second(out, flag, value);
    }
    if (auto const form = out.run.options.extract("form")) out.problem.form = to_form("--options form", form.mapped());
    if (auto const pairs = out.run.options.extract("pairs"))
        out.problem.pairs_once = to_choice<bool>("--options pairs", pairs.mapped(), {{"twice", false}, {"once", true}});
    if (auto const rows = out.run.options.extract("group_rows"))
        out.problem.group_rows = to_count("--options group_rows", rows.mapped());
    if (auto const forward = out.run.options.extract("forward_only"))
        out.problem.forward_only = to_bool("--options forward_only", forward.mapped());
    check_problem("", out.problem);
    check_meeting(out);
    for (auto const& text : checks) {
        auto check = to_check(text, out.problem);
        if (std::ranges::find(out.checks, check.name, &check_t::name) != out.checks.end())
            throw usage_error_t("--check " + check.name + " is given twice; each needs a name of its own");
        out.checks.push_back(std::move(check));
    }
    if (checks.empty() && std::ranges::find(out.actions, "check") != out.actions.end())
        throw usage_error_t("--actions has check, and no check is given; add --check name=small,rows=64");
    if (out.all_reduce && out.device != "cuda")
        throw usage_error_t("--loss one_set_all_reduce is for GPUs; give --device cuda");
    if (auto const found = out.run.options.find("deadline_ms"); found != out.run.options.end())
        to_number<double>("--options deadline_ms", found->second, 1e-6, 1e12);
    if (auto const engine = out.run.options.extract("engine")) out.run.engine = engine.mapped();

    // Virtual devices of one process share its threads: what each is given, at most one thread a core.
    int const cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    int const here = out.problem.world_size / out.meeting.boxes;
    int const each = out.run.threads > 0 ? out.run.threads : std::max(1, cores / here);
    out.run.threads = std::max(each, std::min(each * here, cores));
    if (out.problem.self_pairs && out.problem.loss != loss_t::one_set_sigmoid_k)
        throw usage_error_t("--self-pairs is for one_set_sigmoid alone; leave it out");
    return out;
}

}  // namespace scaling_contrasts::bench
