// Segment: memory that processes of one host share. It is freed with the last process that has mapped it.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace dovetail::shm {

// An anonymous file (memfd), which other processes of the same user open through /proc: nothing remains after a crash.
// A named file (shm_open), for processes that cannot read each other's /proc, is visible in /dev/shm until `hide`. If
// its maker is killed before, the next process of the user that makes memory removes it.
class Segment {
  public:
    enum class Kind { anonymous, named };

    // Makes zeroed memory. Throws std::runtime_error if there is none of this kind, or too little.
    static Segment make(std::size_t num_bytes, Kind kind = Kind::anonymous);
    // Maps memory that a process of this user made and has not hidden yet. Throws std::runtime_error.
    static Segment open(const std::string& name);

    Segment() = default;  // without memory
    Segment(Segment&& other) noexcept { swap(other); }
    Segment& operator=(Segment&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Segment();

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    int file() const {
        return file_;
    }  // of a named one, open as long as the Segment, because locks end with it; else -1
    const std::string& name() const { return name_; }  // for `open`; only in its maker, before `hide`; else empty
    void hide();                                       // no process can open it any more; those that have it keep it

  private:
    Segment(int file, std::string name, std::size_t num_bytes);
    void swap(Segment& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(file_, other.file_);
        std::swap(maker_, other.maker_);
        std::swap(name_, other.name_);
    }

    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    int file_ = -1, maker_ = -1;  // maker: of an anonymous one, until `hide`
    std::string name_;
};

}  // namespace dovetail::shm
