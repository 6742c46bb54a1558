// Writes JSON objects on one line. Numbers round-trip; what is not finite becomes null.
#pragma once
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace scaling_contrasts::bench {

class json_t {
  public:
    json_t& text(std::string const& name, std::string const& value) { return raw(name, quote(value)); }
    json_t& number(std::string const& name, double value) { return raw(name, digits(value)); }
    json_t& integer(std::string const& name, std::int64_t value) { return raw(name, std::to_string(value)); }
    json_t& integer(std::string const& name, std::optional<std::int64_t> value) {
        return raw(name, value ? std::to_string(*value) : "null");
    }
    json_t& raw(std::string const& name, std::string const& value) {
        body_ += (body_.empty() ? "" : ", ") + quote(name) + ": " + value;
        return *this;
    }
    json_t& texts(std::string const& name, std::vector<std::string> const& values) {
        std::string list;
        for (auto const& value : values) list += (list.empty() ? "" : ", ") + quote(value);
        return raw(name, "[" + list + "]");
    }
    json_t& texts(std::string const& name, std::map<std::string, std::string> const& values) {
        json_t object;
        for (auto const& [key, value] : values) object.text(key, value);
        return raw(name, object.line());
    }
    json_t& integers(std::string const& name, std::span<std::int64_t const> values) {
        std::string list;
        for (auto const value : values) list += (list.empty() ? "" : ", ") + std::to_string(value);
        return raw(name, "[" + list + "]");
    }
    std::string line() const { return "{" + body_ + "}"; }

  private:
    static std::string digits(double value) {
        if (!std::isfinite(value)) return "null";
        char text[40];
        auto const end = std::to_chars(text, text + sizeof(text), value).ptr;
        return {text, end};
    }
    static std::string quote(std::string const& value) {
        std::string out = "\"";
        for (char const c : value) {
            if (c == '"' || c == '\\') out += '\\';
            if (c == '\n') out += "\\n";
            else if (static_cast<unsigned char>(c) < 0x20) out += ' ';
            else out += c;
        }
        return out + '"';
    }

    std::string body_;
};

}  // namespace scaling_contrasts::bench
