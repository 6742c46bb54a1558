// Symmetric memory: the same number of bytes on every GPU, each mapped into all of them, and, where the switch adds,
// one more address that stands for all at once. One process drives all GPUs, so nothing is exported.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "scaling_contrasts/domain/fabric.cuh"

namespace scaling_contrasts::domain {

/// The multicast half: an object over all GPUs, bound to their memory, mapped at one address. Compiles, never run on
/// hardware.
class multicast_t {
  public:
    multicast_t(gpu::driver_t const& driver, std::vector<int> const& ordinals, std::size_t bytes)
        : driver_(driver), ordinals_(ordinals), bytes_(bytes) {
        CUmulticastObjectProp const properties = describe(ordinals, bytes);
        gpu::check_driver(driver_.multicast_create(&object_, &properties), "creating a multicast object", driver_);
    }
    multicast_t(multicast_t const&) = delete;
    multicast_t& operator=(multicast_t const&) = delete;
    ~multicast_t() {
        if (mapped_) driver_.unmap(address_, bytes_);
        for (std::size_t i = 0; i < bound_; ++i) driver_.multicast_unbind(object_, ordinals_[i], 0, bytes_);
        driver_.release(object_);
        if (address_) driver_.free_address(address_, bytes_);
    }
    static CUmulticastObjectProp describe(std::vector<int> const& ordinals, std::size_t bytes) {
        CUmulticastObjectProp properties = {};
        properties.numDevices = static_cast<unsigned>(ordinals.size());
        properties.size = bytes;
        return properties;
    }
    /// `memory`: of each GPU.
    void bind(std::vector<CUmemGenericAllocationHandle> const& memory) {
        for (int const ordinal : ordinals_)  // binding waits until all have been added
            gpu::check_driver(driver_.multicast_add_device(object_, ordinal), "adding a GPU to a multicast object",
                              driver_);
        for (; bound_ < memory.size(); ++bound_)
            gpu::check_driver(driver_.multicast_bind(object_, 0, memory[bound_], 0, bytes_, 0),
                              "binding memory to a multicast object", driver_);
    }
    void map(std::size_t granularity, std::vector<CUmemAccessDesc> const& access) {
        gpu::check_driver(driver_.reserve(&address_, bytes_, granularity, 0, 0), "reserving addresses", driver_);
        gpu::check_driver(driver_.map(address_, bytes_, 0, object_, 0), "mapping a multicast object", driver_);
        mapped_ = true;
        gpu::check_driver(driver_.set_access(address_, bytes_, access.data(), access.size()),
                          "opening a multicast object", driver_);
    }
    CUdeviceptr address() const { return address_; }

  private:
    gpu::driver_t const& driver_;
    std::vector<int> ordinals_;
    std::size_t bytes_, bound_ = 0;
    CUmemGenericAllocationHandle object_ = 0;
    CUdeviceptr address_ = 0;
    bool mapped_ = false;
};

class symmetric_t {
  public:
    /// `ordinals`: the GPU of each rank; several ranks may share one (then there is no multicast).
    symmetric_t(gpu::driver_t const& driver, std::vector<int> const& ordinals, std::size_t bytes, fabric_t fabric,
                environment_t const& variable)
        : driver_(driver) {
        for (int const ordinal : ordinals)
            if (std::find(gpus_.begin(), gpus_.end(), ordinal) == gpus_.end()) gpus_.push_back(ordinal);
        bool const shared = gpus_.size() < ordinals.size();
        if (shared && fabric == fabric_t::multicast_k)
            throw failure_t(status_t::unsupported_k, "fabric multicast: ranks share a GPU; use --fabric peer");
        bool const multicast = !shared && wants_multicast(fabric, gpus_, variable, driver_);
        std::size_t const unit = granularity(bytes, multicast);
        bytes_ = (bytes + unit - 1) / unit * unit;
        try {
            if (multicast) attempt(fabric, [&] { multicast_ = std::make_unique<multicast_t>(driver_, gpus_, bytes_); });
            for (int const ordinal : ordinals) {
                CUmemAllocationProp const properties = describe(ordinal);
                CUmemGenericAllocationHandle handle = 0;
                check(driver_.create(&handle, bytes_, &properties, 0), "allocating symmetric memory");
                handles_.push_back(handle);
            }
            if (multicast_)
                attempt(fabric, [&] {
                    multicast_->bind(handles_);
                    multicast_->map(unit, access());
                });
            for (auto const handle : handles_) map(handle, unit);
        } catch (...) {
            release();
            throw;
        }
    }
    symmetric_t(symmetric_t const&) = delete;
    symmetric_t& operator=(symmetric_t const&) = delete;
    ~symmetric_t() { release(); }

    std::byte* of(int rank) const { return reinterpret_cast<std::byte*>(addresses_[static_cast<std::size_t>(rank)]); }
    /// The address that stands for all ranks' memory; null where peer pointers are used.
    std::byte* everywhere() const { return multicast_ ? reinterpret_cast<std::byte*>(multicast_->address()) : nullptr; }
    std::size_t bytes() const { return bytes_; }
    /// Why `auto_k` goes on with peer pointers where multicast was tried; empty: it was not, or it works.
    std::string const& refusal() const { return refusal_; }

  private:
    void check(CUresult result, char const* what) const { gpu::check_driver(result, what, driver_); }
    std::vector<CUmemAccessDesc> access() const {
        std::vector<CUmemAccessDesc> access;
        for (int const gpu : gpus_)
            access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, gpu}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
        return access;
    }
    /// Where the driver refuses (a fabric manager that is down, say), `auto_k` goes on with peer pointers.
    template <class make_t>
    void attempt(fabric_t fabric, make_t&& make) {
        try {
            make();
        } catch (failure_t const& problem) {
            if (fabric == fabric_t::multicast_k) throw;
            refusal_ = problem.what();
            multicast_.reset();
        }
    }
    void map(CUmemGenericAllocationHandle handle, std::size_t unit) {
        CUdeviceptr address = 0;
        check(driver_.reserve(&address, bytes_, unit, 0, 0), "reserving addresses");
        addresses_.push_back(address);
        check(driver_.map(address, bytes_, 0, handle, 0), "mapping symmetric memory");
        ++mapped_;
        auto const all = access();
        check(driver_.set_access(address, bytes_, all.data(), all.size()), "opening symmetric memory to all GPUs");
    }
    void release() {
        multicast_.reset();
        for (std::size_t i = 0; i < addresses_.size(); ++i) {
            if (i < mapped_) driver_.unmap(addresses_[i], bytes_);
            driver_.free_address(addresses_[i], bytes_);
        }
        for (auto const handle : handles_) driver_.release(handle);
    }
    static CUmemAllocationProp describe(int ordinal) {
        CUmemAllocationProp properties = {};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
        return properties;
    }
    /// What sizes and addresses must be multiples of.
    std::size_t granularity(std::size_t bytes, bool multicast) const {
        std::size_t unit = 1;
        for (int const gpu : gpus_) {
            CUmemAllocationProp const properties = describe(gpu);
            std::size_t each = 0;
            check(driver_.granularity(&each, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                  "asking for the granularity of memory");
            unit = std::max(unit, each);
        }
        if (!multicast) return unit;
        CUmulticastObjectProp const properties = multicast_t::describe(gpus_, bytes);  // the size must be known
        std::size_t each = 0;
        check(driver_.multicast_granularity(&each, &properties, CU_MULTICAST_GRANULARITY_RECOMMENDED),
              "asking for the granularity of multicast");
        return std::max(unit, each);
    }

    gpu::driver_t const& driver_;
    std::vector<int> gpus_;  // each once
    std::size_t bytes_ = 0, mapped_ = 0;
    std::unique_ptr<multicast_t> multicast_;
    std::string refusal_;
    std::vector<CUmemGenericAllocationHandle> handles_;
    std::vector<CUdeviceptr> addresses_;
};

}  // namespace scaling_contrasts::domain
