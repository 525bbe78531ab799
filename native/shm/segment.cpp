// Segment: see segment.hpp.
#include "shm/segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace dovetail::shm {

namespace {

constexpr const char *place = "/dev/shm", *prefix = "/dovetail-", *digits = "0123456789abcdef";

[[noreturn]] void refuse(const std::string& what, int code = errno) {
    throw std::runtime_error(what + ": " + std::strerror(code));
}

// A file that is closed unless it is kept.
struct File {
    explicit File(int opened) : number(opened) {}
    File(File&& other) noexcept : number(other.keep()) {}
    ~File() {
        if (number >= 0) close(number);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int keep() { return std::exchange(number, -1); }
    int number;
};

// The pid and 128 random bits: the name is not in use, and cannot be guessed.
std::string random_name() {
    std::array<unsigned char, 16> bits{};
    if (getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bits.size())) refuse("getrandom");
    std::string name = prefix + std::to_string(getpid()) + '-';
    for (const unsigned char each : bits)
        for (const int digit : {each >> 4, each & 15}) name += digits[digit];
    return name;
}

// The pid of the process that made the file of this name in /dev/shm; 0: no file of Dovetail.
int maker_of(const char* name) {
    int pid = 0, end = 0;
    if (std::sscanf(name, "dovetail-%d-%n", &pid, &end) != 1 || end == 0) return 0;
    return std::strspn(name + end, digits) == 32 && std::strlen(name + end) == 32 ? pid : 0;
}

// Removes files in /dev/shm of processes of this user that have ended. The maker of such a file has it locked, in
// whatever PID namespace it runs. Files of this process are not opened: closing one would release its other locks.
void sweep() {
    const std::unique_ptr<DIR, int (*)(DIR*)> all(opendir(place), closedir);
    while (const dirent* each = all ? readdir(all.get()) : nullptr) {
        const int maker = maker_of(each->d_name), folder = dirfd(all.get());
        struct stat found{};
        if (!maker || maker == getpid() || fstatat(folder, each->d_name, &found, AT_SYMLINK_NOFOLLOW)) continue;
        if (found.st_uid != geteuid() || !S_ISREG(found.st_mode)) continue;
        const File file(openat(folder, each->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        if (file.number >= 0 && !flock(file.number, LOCK_EX | LOCK_NB)) unlinkat(folder, each->d_name, 0);
    }
}

// A new file in /dev/shm, locked. Tries again if another process has removed the file before it was locked.
File make_named(std::string& name) {
    while (true) {
        File file(shm_open(name.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600));
        struct stat found{};
        if (file.number < 0) refuse("shm_open");
        if (fchmod(file.number, 0600) || flock(file.number, LOCK_EX) || fstat(file.number, &found)) {
            shm_unlink(name.c_str());
            refuse("flock");
        }
        if (found.st_nlink) return file;
        name = random_name();
    }
}

// What the kernel calls an open file, by its path in /proc: the random name of an anonymous one.
std::string title(const std::string& path) {
    std::array<char, 128> text{};
    const auto size = readlink(path.c_str(), text.data(), text.size() - 1);
    if (size < 0) refuse(path);
    return {text.data(), static_cast<std::size_t>(size)};
}

// In another PID namespace the path may lead to a file of this very process, which to close would open its locks: so
// it is asked before it is opened, too.
int open_anonymous(const std::string& path, const std::string& expected) {
    const bool is_it = title(path) == expected;
    File file(is_it ? ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1);
    if (is_it && file.number < 0) refuse(path);
    if (!is_it || title("/proc/self/fd/" + std::to_string(file.number)) != expected)
        refuse(path, ESTALE);  // by now that is another process or file
    return file.keep();
}

}  // namespace

Segment::Segment(int file, std::string name, std::size_t num_bytes) : size_(num_bytes), name_(std::move(name)) {
    void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) refuse("mmap");
    data_ = static_cast<std::byte*>(memory);
}

Segment Segment::make(std::size_t num_bytes, Kind kind) {
    [[maybe_unused]] static const bool swept = (sweep(), true);  // once in a process
    std::string name = random_name();
    const auto size = static_cast<off_t>(num_bytes);
    if (kind == Kind::named) {
        File file = make_named(name);
        try {  // if /dev/shm is full, this fails, instead of SIGBUS later
            if (const int code = posix_fallocate(file.number, 0, size)) refuse("posix_fallocate", code);
            Segment made(file.number, name, num_bytes);
            made.file_ = file.keep();
            return made;
        } catch (...) {
            shm_unlink(name.c_str());
            throw;
        }
    }
    File file(memfd_create(name.c_str() + 1, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (file.number < 0) refuse("memfd_create");
    if (fchmod(file.number, 0600) || ftruncate(file.number, size)) refuse("memfd");
    if (fcntl(file.number, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) refuse("F_ADD_SEALS");
    const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file.number);
    Segment made(file.number, path + "/memfd:" + (name.c_str() + 1), num_bytes);
    made.maker_ = file.keep();
    return made;
}

Segment Segment::open(const std::string& name) {
    const auto memfd = name.find("/memfd:");
    const bool named = memfd == std::string::npos;
    File file(named ? shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0)
                    : open_anonymous(name.substr(0, memfd), name.substr(memfd) + " (deleted)"));
    if (file.number < 0) refuse("shm_open");
    struct stat found{};
    if (fstat(file.number, &found)) refuse("fstat");
    if (found.st_uid != geteuid() || !S_ISREG(found.st_mode)) refuse("memory of another user", EPERM);
    Segment opened(file.number, "", static_cast<std::size_t>(found.st_size));
    if (named) opened.file_ = file.keep();
    return opened;
}

Segment::~Segment() {
    hide();
    if (file_ >= 0) close(file_);
    if (data_) munmap(data_, size_);
}

void Segment::hide() {
    if (maker_ >= 0)
        close(std::exchange(maker_, -1));
    else if (!name_.empty())
        shm_unlink(name_.c_str());
    name_.clear();
}

}  // namespace dovetail::shm
