/* The file in which lt.cu keeps what it found by trying: written, read back, taken from nobody else, of no harm
 * whatever is in its place, and whole when two processes write it. */
#include "kernels/cuda/gemm/lt_state.h"
#include "tests/simt/check.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace simt_device;
namespace fs = std::filesystem;

namespace {

fs::path root, place; /* a new folder for each case, and where the file is in it */

void new_place()
{
    static int n;
    fs::path cache = root / std::to_string(n++);
    place = cache / "tandem" / "cublaslt-simt-130000";
    fs::create_directories(place.parent_path());
    setenv("XDG_CACHE_HOME", cache.c_str(), 1);
}

std::string contents(const fs::path &p)
{
    std::ifstream in(p, std::ios::binary);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
}

void write(const fs::path &p, const std::string &text)
{
    std::ofstream(p, std::ios::binary) << text;
}

gpu_dev *open_device()
{
    char why[160] = "";
    struct dev_config c = {};
    c.memory_bytes = 64 << 20;
    struct dev *d = simt_open(0, &c, why);
    if (!d) fprintf(stderr, "simt: %s\n", why), exit(1);
    return gpu_of(d);
}

void shut(gpu_dev *d)
{
    d->head.ops->close(&d->head);
}

/* A product (M, 4) of ones over K 8; false: it came out wrong, or the device failed. */
bool product(gpu_dev *d, int M)
{
    enum { N = 4, K = 8 };
    float ones[64 * K], got[64 * N];
    for (float &f : ones) f = 1;
    float *a = static_cast<float *>(gpu_alloc(&d->head, sizeof ones));
    float *b = static_cast<float *>(gpu_alloc(&d->head, sizeof ones));
    float *c = static_cast<float *>(gpu_alloc(&d->head, sizeof got));
    gpu_upload(&d->head, a, ones, sizeof ones);
    gpu_upload(&d->head, b, ones, sizeof ones);
    lt_args args = {DT_F32, M, N, K, a, K, false, b, K, true, c, N, 1, 0, 0, nullptr};
    bool ok = lt_multiply(d, "product", &args);
    gpu_download(&d->head, got, c, sizeof got);
    for (int i = 0; i < M * N; i++) ok = ok && got[i] == (float)K;
    gpu_free(&d->head, a), gpu_free(&d->head, b), gpu_free(&d->head, c);
    return ok && !d->head.error.op;
}

bool product_on_new_device(int M)
{
    gpu_dev *d = open_device();
    bool ok = product(d, M);
    shut(d);
    return ok;
}

/* Its lines, the first one not counted; -1: it is not whole. */
int lines_of(const std::string &text)
{
    std::string first = "cublaslt-simt-130000\n";
    if (text.compare(0, first.size(), first) || text.back() != '\n') return -1;
    int n = -1;
    for (char c : text) n += c == '\n';
    return n;
}

lt_class class_of(int M)
{
    lt_args args = {DT_F32, M, 4, 8, nullptr, 8, false, nullptr, 8, true, nullptr, 4, 1, 0, 0, nullptr};
    lt_key k = lt_key_of(&args);
    return lt_class_of(&k);
}

/* a line of the file with its sum */
std::string line_of(const lt_class &c, const cublasLtMatmulAlgo_t &algo)
{
    int all[sizeof c / sizeof(int) + sizeof algo / sizeof(int)];
    char word[32];
    std::string s;
    memcpy(all, &c, sizeof c);
    memcpy(all + sizeof c / sizeof(int), &algo, sizeof algo);
    for (size_t i = 0; i < sizeof c / sizeof(int); i++) s += std::to_string(all[i]) + " ";
    for (uint64_t w : algo.data) snprintf(word, sizeof word, "%" PRIx64 " ", w), s += word;
    snprintf(word, sizeof word, "%" PRIx32 "\n", lt_hash(all, sizeof all / sizeof *all));
    return s + word;
}

void test_written_and_read()
{
    new_place();
    CHECK(product_on_new_device(5), "a first product");
    std::string first = contents(place);
    CHECK(lines_of(first) == 1, "the file after one product: %s", first.c_str());
    write(place, first); /* the same: who writes it anew makes another file of it */
    auto before = fs::last_write_time(place);
    struct stat one, two;
    stat(place.c_str(), &one);
    CHECK(product_on_new_device(5), "the same product by what was found");
    stat(place.c_str(), &two);
    CHECK(one.st_ino == two.st_ino && before == fs::last_write_time(place), "what was found was tried again");
    CHECK(product_on_new_device(40), "a product of another class");
    CHECK(lines_of(contents(place)) == 2, "what earlier runs found stays: %s", contents(place).c_str());
    /* the file decides: the second algorithm, which nobody would have measured as such */
    cublasLtMatmulAlgo_t second = {{2, 4, 4}};
    write(place, "cublaslt-simt-130000\n" + line_of(class_of(5), second));
    gpu_dev *d = open_device();
    CHECK(product(d, 5), "by the file's algorithm");
    for (const lt_plan &p : lt_state_of(d)->plans)
        CHECK(!p.used || (p.settled && p.algo.data[0] == 2), "the file's algorithm is not taken");
    shut(d);
}

void test_of_others()
{
    new_place();
    CHECK(product_on_new_device(5), "a first product");
    std::string mine = contents(place);
    for (const char *name : {"cublaslt-other-130000", "cublaslt-simt-130001"}) {
        fs::rename(place, place.parent_path() / name);
        CHECK(product_on_new_device(40), "beside %s", name);
        CHECK(lines_of(contents(place)) == 1, "%s was read: %s", name, contents(place).c_str());
        write(place, name + mine.substr(mine.find('\n'))); /* in our place, as another's */
        CHECK(product_on_new_device(40), "over what was %s", name);
        CHECK(lines_of(contents(place)) == 1, "what was %s was read: %s", name, contents(place).c_str());
        write(place, mine);
    }
}

void test_broken()
{
    new_place();
    CHECK(product_on_new_device(5) && product_on_new_device(40), "two products");
    std::string whole = contents(place), first = whole.substr(0, whole.find('\n') + 1);
    for (size_t n = 0; n < whole.size(); n += 9) {
        write(place, whole.substr(0, n));
        CHECK(product_on_new_device(5), "cut to %zu bytes", n);
        CHECK(lines_of(contents(place)) >= 1, "not written anew: %s", contents(place).c_str());
    }
    for (size_t i = 0; i < whole.size(); i += 5) {
        std::string bad = whole;
        bad[i] = (char)(bad[i] ^ (1 << i % 7));
        write(place, bad);
        CHECK(product_on_new_device(5) && product_on_new_device(40), "byte %zu changed", i);
    }
    cublasLtMatmulAlgo_t none = {{~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull}}, greedy = {{4, 16, 3}};
    std::string much;
    lt_class c = class_of(5);
    for (int i = 0; i < 5000; i++) c.K = 1000 + i, much += line_of(c, greedy);
    const std::string hostile[] = {
        first + line_of(class_of(5), none),
        first + line_of(class_of(5), greedy),
        first + std::string(1 << 20, '9') + "\n",
        first + "99999999999999999999 -99999999999999999999 1 1 1 1 1 1 1 1 1\n",
        first + std::string(4096, '\0'),
        std::string(1 << 16, '\n'),
        first + std::string(1 << 16, '\n'),
        first + much, /* the table is full */
        "%n%n%s",
    };
    for (const std::string &text : hostile) {
        write(place, text);
        CHECK(product_on_new_device(5), "over %zu hostile bytes: %.60s", text.size(), text.c_str());
    }
}

void test_in_its_place()
{
    new_place(); /* a folder */
    fs::create_directory(place);
    CHECK(product_on_new_device(5), "a folder in its place");
    new_place(); /* a pipe */
    CHECK(mkfifo(place.c_str(), 0600) == 0 && product_on_new_device(5), "a pipe in its place");
    CHECK(lines_of(contents(place)) == 1, "the pipe stays");
    new_place(); /* a link to what is somebody else's */
    fs::path other = place.parent_path() / "other";
    write(other, "nobody's\n");
    fs::create_symlink(other, place);
    CHECK(product_on_new_device(5) && lines_of(contents(place)) == 1, "a link in its place");
    CHECK(contents(other) == "nobody's\n", "written through a link");
    new_place(); /* a link to nowhere */
    fs::create_symlink(place.parent_path() / "absent" / "x", place);
    CHECK(product_on_new_device(5) && lines_of(contents(place)) == 1, "a link to nowhere in its place");
    new_place(); /* a file where the folder should be */
    fs::remove(place.parent_path());
    write(place.parent_path(), "a file");
    CHECK(product_on_new_device(5), "a file in the folder's place");
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    CHECK(product_on_new_device(5), "nowhere to write");
    setenv("XDG_CACHE_HOME", (root.string() + std::string(300, 'x')).c_str(), 1);
    CHECK(product_on_new_device(5), "a name that is too long");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", (root / "home").c_str(), 1);
    fs::create_directory(root / "home");
    CHECK(product_on_new_device(5), "at home");
    CHECK(lines_of(contents(root / "home/.cache/tandem/cublaslt-simt-130000")) == 1, "nothing at home");
    for (const char *made : {"home/.cache", "home/.cache/tandem", "home/.cache/tandem/cublaslt-simt-130000"})
        CHECK((fs::status(root / made).permissions() & (fs::perms::group_all | fs::perms::others_all)) ==
                  fs::perms::none,
              "%s is for others too", made);
    unsetenv("HOME");
    CHECK(product_on_new_device(5), "neither cache nor home");
}

/* A file that the classes of other models fill: what this process asks for is first in it afterwards, and the last
 * lines that it has no use for have made room. */
void test_full()
{
    const int shapes[] = {6, 7, 8, 10, 12, 14, 16, 20}; /* of a class each */
    enum { MORE = sizeof shapes / sizeof *shapes, MINE = LT_CLASSES - 2 };
    cublasLtMatmulAlgo_t second = {{2, 4, 4}};
    std::string text = "cublaslt-simt-130000\n", lines[LT_CLASSES];
    struct stat before, after;
    new_place();
    for (int i = 0; i < LT_CLASSES; i++) {
        lt_class c = class_of(5);
        if (i != MINE) c.K = 1000 + i;
        text += lines[i] = line_of(c, second);
    }
    write(place, text);
    gpu_dev *d = open_device();
    CHECK(product(d, 5) && contents(place) == text, "written, though nothing was found");
    for (int M : shapes) CHECK(product(d, M), "%d rows beside a full file", M);
    stat(place.c_str(), &before);
    for (lt_plan &p : lt_state_of(d)->plans) p.settled = p.chosen = false; /* as those of other shapes would be */
    for (int M : shapes) CHECK(product(d, M), "%d rows again", M);
    stat(place.c_str(), &after);
    CHECK(before.st_ino == after.st_ino, "tried again");
    shut(d);
    std::string full = contents(place);
    CHECK(lines_of(full) == LT_CLASSES, "%d lines", lines_of(full));
    CHECK(full.find(lines[MINE]) < full.find(lines[0]), "what was asked for does not come first");
    for (int i = 0; i < LT_CLASSES; i++)
        CHECK((full.find(lines[i]) != full.npos) == (i == MINE || i < MINE + 1 - MORE), "line %d", i);
    d = open_device();
    for (int M : shapes) CHECK(product(d, M), "%d rows in the next process", M);
    shut(d);
    CHECK(contents(place) == full, "not kept for the next process");
}

/* Each of them finds classes of its own, and what is there is whole at any time. */
void test_two_writers()
{
    enum { WRITERS = 3, PRODUCTS = 8 };
    new_place();
    pid_t pid[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        if ((pid[w] = fork())) continue;
        bool ok = true;
        gpu_dev *d = open_device();
        for (int i = 0; i < PRODUCTS; i++) ok = ok && product(d, 1 + (w + i * WRITERS) * 2);
        shut(d);
        _exit(ok ? 0 : 1);
    }
    int left = WRITERS, status = 0;
    while (left) {
        if (fs::exists(place)) CHECK(lines_of(contents(place)) > 0, "a part of a file: %s", contents(place).c_str());
        if (waitpid(-1, &status, WNOHANG) <= 0) continue;
        left--;
        CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "a writer failed");
    }
    for (int w = 0; w < WRITERS; w++) (void)pid[w];
    int files = 0;
    for (const auto &e : fs::directory_iterator(place.parent_path())) files += !e.path().empty();
    CHECK(files == 1, "%d files are left", files);
    CHECK(product_on_new_device(5), "after them");
}

void test_recording()
{
    new_place();
    gpu_dev *d = open_device();
    float *x = static_cast<float *>(gpu_alloc(&d->head, 4096));
    lt_args args = {DT_F32, 5, 4, 8, x, 8, false, x + 256, 8, true, x + 512, 4, 1, 0, 0, nullptr};
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "recording");
    CHECK(lt_multiply(d, "recorded", &args), "a product that is recorded");
    CHECK(cudaStreamEndCapture(d->stream, &graph) == cudaSuccess && graph, "what was recorded");
    if (graph) cudaGraphDestroy(graph);
    CHECK(!fs::exists(place), "tried while it was recorded");
    CHECK(lt_multiply(d, "tried", &args) && fs::exists(place), "not tried afterwards");
    gpu_free(&d->head, x);
    shut(d);
}

/* What reserve shows is tried there, those that add to C too, and no step tries it again. */
void test_reserve(const char *refuses)
{
    struct shown {
        gpu_dev *d;
        lt_args a[4];
    } all;
    new_place();
    setenv("SIMT_LT_REFUSES", refuses, 1);
    gpu_dev *d = all.d = open_device();
    float *x = static_cast<float *>(gpu_alloc(&d->head, 1 << 16));
    all.a[0] = {DT_F32, 5, 4, 8, x, 8, false, x + 256, 8, true, x + 512, 4, 1, 0, 0, nullptr};
    all.a[1] = all.a[2] = all.a[3] = all.a[0];
    all.a[1].beta = 1;
    all.a[2].M = 40, all.a[2].bias = x + 4096;
    all.a[3].a = x + 1, all.a[3].c = x + 515; /* worse alignment */
    auto show = [](void *p) {
        shown *s = static_cast<shown *>(p);
        for (const lt_args &a : s->a) lt_multiply(s->d, "shown", &a);
    };
    size_t used = d->used;
    CHECK(d->head.ops->reserve(&d->head, show, &all) == 0, "reserve: %s", d->head.error.msg);
    CHECK(d->used == used, "reserve keeps %zu bytes", d->used - used);
    CHECK(lines_of(contents(place)) == 4, "reserve tried: %s", contents(place).c_str());
    struct stat before, after;
    stat(place.c_str(), &before);
    for (int i = 0; i < 3; i++) d->head.ops->replay(&d->head, 1, show, &all);
    CHECK(d->head.ops->finish(&d->head) == 0, "steps after reserve: %s", d->head.error.msg);
    stat(place.c_str(), &after);
    CHECK(before.st_ino == after.st_ino, "a step tried");
    for (const lt_plan &p : lt_state_of(d)->plans) CHECK(!p.used || p.settled, "a step that is not settled");
    CHECK(d->head.ops->reserve(&d->head, show, &all) == 0, "reserve again: %s", d->head.error.msg);
    stat(place.c_str(), &after);
    CHECK(before.st_ino == after.st_ino, "tried again");
    d->head.ops->hold(&d->head); /* as serve does after its start: then memory comes of what is held, and goes back */
    size_t largest = d->largest, blocks = d->n_blocks;
    used = d->used;
    for (lt_args &a : all.a) a.K = 24, a.lda = a.ldb = 24;
    CHECK(d->head.ops->reserve(&d->head, show, &all) == 0, "reserve in what is held: %s", d->head.error.msg);
    CHECK(lines_of(contents(place)) == 8, "tried in what is held: %s", contents(place).c_str());
    CHECK(d->used == used && d->largest == largest && d->n_blocks == blocks, "memory of what is held is kept");
    gpu_free(&d->head, x);
    shut(d);
}

/* Of the two ways to multiply many rows with int8 weights reserve finds the faster one, and the file decides; the bits
 * are the same. */
void test_race()
{
    enum { M = 64, N = 66, K = 16 };
    new_place();
    static int8_t values[N * K];
    static float scales[N], rows[M * K], y[3][M * N];
    for (int i = 0; i < N * K; i++) values[i] = (int8_t)(i * 37 % 255 - 127);
    for (int i = 0; i < N; i++) scales[i] = 1.0f / (float)(i + 1);
    for (int i = 0; i < M * K; i++) rows[i] = (float)(i * 29 % 101) / 7 - 6;
    struct weight_src src = {};
    src.t = DT_I8, src.rows = N, src.cols = K, src.data = values, src.scale = scales;
    struct step {
        struct dev *d;
        struct linear_args a;
    };
    auto take = [](void *p) {
        step *s = static_cast<step *>(p);
        op_linear(s->d, s->a);
    };
    lt_race shape = {M, N, K, 0, nullptr};
    for (int i = 0; i < 3; i++) {
        cublasLtMatmulAlgo_t way = {{(uint64_t)i}};
        if (i < 2) write(place, "cublaslt-simt-130000\n" + line_of(lt_race_class(&shape), way));
        if (i == 2) fs::remove(place);
        gpu_dev *d = open_device();
        step s = {&d->head, {}};
        s.a.w = d->head.ops->weight_pack(&d->head, &src, 1);
        float *dx = static_cast<float *>(gpu_alloc(&d->head, sizeof rows)), *dy;
        dy = static_cast<float *>(gpu_alloc(&d->head, sizeof y[0]));
        gpu_upload(&d->head, dx, rows, sizeof rows);
        s.a.x = mat_f32(dx, M, K), s.a.y = mat_f32(dy, M, N);
        if (i == 2) {
            CHECK(d->head.ops->reserve(&d->head, take, &s) == 0, "reserve: %s", d->head.error.msg);
            CHECK(lines_of(contents(place)) == 2, "a race and its product: %s", contents(place).c_str());
            lt_class c = lt_race_class(&shape);
            lt_found *f = lt_class_find(lt_state_of(d), &c);
            CHECK(f && f->algo.data[0] <= 1, "the race has no winner");
        }
        take(&s);
        gpu_download(&d->head, y[i], dy, sizeof y[0]);
        CHECK(!d->head.error.op, "way %d: %s", i, d->head.error.msg);
        int plans = 0;
        for (const lt_plan &p : lt_state_of(d)->plans) plans += p.used;
        CHECK(i == 2 || plans == i, "way %d has %d of the library's plans", i, plans);
        CHECK(!memcmp(y[i], y[0], sizeof y[0]), "way %d has other bits", i);
        d->head.ops->weight_free(&d->head, const_cast<struct weight *>(s.a.w));
        gpu_free(&d->head, dx), gpu_free(&d->head, dy);
        shut(d);
    }
}

} // namespace

int main()
{
    std::string name = (fs::temp_directory_path() / "tandem-lt-XXXXXX").string();
    if (!mkdtemp(name.data())) return perror(name.c_str()), EXIT_FAILURE;
    root = name;
    setenv("SIMT_LT_TRIES", "1", 1);
    test_written_and_read();
    test_of_others();
    test_broken();
    test_in_its_place();
    test_full();
    test_two_writers();
    test_recording();
    test_reserve("");
    test_reserve("bias"); /* tried without it then */
    unsetenv("SIMT_LT_REFUSES");
    test_race();
    fs::remove_all(root);
    return checked();
}
