// Plans: the calls of operators that a group makes without Python: their shapes are known, their plans serial.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace dovetail::torch_group {

// What distinguishes calls: as the keys of src/dovetail/torch/linear/kernels.py, written as numbers.
class Key {
  public:
    enum Word : std::int64_t {
        none = -1,
        all_reduce = 1,
        reduce_scatter,
        all_gather,
        gradients,
        scattered_gradients,
        sum,
        avg
    };

    // Of Python's key. Throws if it has a word that is not served here.
    static Key of(const py::tuple& words) {
        Key key;
        for (const auto word : words) key.append(word);
        return key;
    }
    Key& add(std::int64_t number) { return numbers_.push_back(number), *this; }
    Key& add(const at::Tensor& tensor) {
        if (!tensor.defined()) return add(none);
        add(tensor.dim());
        numbers_.insert(numbers_.end(), tensor.sizes().begin(), tensor.sizes().end());
        return add(static_cast<std::int64_t>(tensor.scalar_type()));
    }
    Key& add(const std::vector<at::Tensor>& tensors) {
        for (const auto& each : tensors) add(each);
        return *this;
    }
    bool operator==(const Key&) const = default;

    struct Hash {
        std::size_t operator()(const Key& key) const {
            std::size_t mixed = 0;
            for (const auto each : key.numbers_)
                mixed = (mixed ^ static_cast<std::size_t>(each)) * 0x9e3779b97f4a7c15u + (mixed >> 29);
            return mixed;
        }
    };

  private:
    void append(py::handle word) {
        static const std::unordered_map<std::string, Word> words = {{"all_reduce", all_reduce},
                                                                    {"reduce_scatter", reduce_scatter},
                                                                    {"all_gather", all_gather},
                                                                    {"gradients", gradients},
                                                                    {"scattered_gradients", scattered_gradients},
                                                                    {"sum", sum},
                                                                    {"avg", avg}};
        if (word.is_none()) {
            add(none);
        } else if (py::isinstance<py::str>(word)) {
            add(words.at(word.cast<std::string>()));
        } else if (py::isinstance<py::tuple>(word)) {
            const auto each = word.cast<py::tuple>();
            const bool is_size = each.empty() || py::isinstance<py::int_>(each[0]);
            if (is_size) add(static_cast<std::int64_t>(each.size()));
            for (const auto inner : each) append(inner);
        } else if (THPDtype_Check(word.ptr())) {
            add(static_cast<std::int64_t>(reinterpret_cast<THPDtype*>(word.ptr())->scalar_type));
        } else {
            add(word.cast<std::int64_t>());
        }
    }
    std::vector<std::int64_t> numbers_;
};

// `number`: equal on all ranks whose calls fit. `title`: the shapes in words. Then what was seen of such calls.
struct Plan {
    const std::int64_t number;
    const std::string title;
    std::atomic<long long> calls{0}, nanoseconds{0};
};

// Any thread may use it.
class Plans {
  public:
    std::shared_ptr<Plan> know(const Key& key, std::int64_t number, const std::string& title) {
        auto plan = std::make_shared<Plan>(number, title);
        const std::lock_guard held(lock_);
        return plans_[key] = plan;
    }
    void forget(const Key& key) {
        const std::lock_guard held(lock_);
        plans_.erase(key);
    }
    std::shared_ptr<Plan> find(const Key& key) {
        const std::lock_guard held(lock_);
        const auto found = plans_.find(key);
        return found == plans_.end() ? nullptr : found->second;
    }

  private:
    std::mutex lock_;
    std::unordered_map<Key, std::shared_ptr<Plan>, Key::Hash> plans_;
};

}  // namespace dovetail::torch_group
