/* shm.c: see shm.h. */
#include "shm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "common/base/cleanup.h"

#define PREFIX "kubeml-"
/* The largest page of any machine (arm64 has 4, 16 or 64 KiB): each mapping begins at a page. */
enum { PAGE = 64 << 10, RANDOM_DIGITS = 32, STATE_TRIES_MAX = 1 << 20 };
static const char magic[8] = "KMLSEG2"; /* the digit is the version of the format */

/* The first page. The state is guarded by `sequence`: odd while it is written. */
typedef struct header {
    char magic[8];
    uint64_t floats, counters, layout_digest, slots;
    _Atomic uint64_t sequence;
    _Atomic int64_t version, epoch, round;
    _Atomic uint64_t checksum;
} header;

struct shm {
    char path[SHM_PATH_BYTES];
    const char *name; /* within path */
    int fd;
    bool merger;
    header *head; /* header page and both references, one mapping */
    size_t head_bytes, stride;
    block_shape shape;
    uint64_t layout_digest;
    int slots;
    struct mapped {
        void *at;
        bool writable;
    } * slot; /* (slots) */
};

static size_t page_up(size_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

static off_t slot_offset(const shm *s, int slot)
{
    return (off_t)(s->head_bytes + (size_t)slot * s->stride);
}

/* ---- names ---------------------------------------------------------------------------------- */

static bool plain(const char *text)
{
    if (!text[0])
        return false;
    for (const char *c = text; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
              *c == '-' || *c == '_'))
            return false;
    return true;
}

static bool is_segment_of(const char *name, const char *job)
{
    size_t prefix = strlen(PREFIX), len = strlen(name);
    if (strncmp(name, PREFIX, prefix) != 0 || len < prefix + 1 + 1 + RANDOM_DIGITS ||
        len >= SHM_NAME_BYTES)
        return false;
    size_t job_len = len - prefix - 1 - RANDOM_DIGITS;
    return name[prefix + job_len] == '-' &&
           (!job || (strlen(job) == job_len && strncmp(name + prefix, job, job_len) == 0));
}

static int make_path(shm *s, const char *folder, const char *name, err *e)
{
    const char *in = folder && folder[0] ? folder : SHM_FOLDER;
    int n = snprintf(s->path, sizeof s->path, "%s/%s", in, name);
    if (n < 0 || (size_t)n >= sizeof s->path)
        return err_set(e, ERR_LIMIT, "segment folder %s: path too long", in);
    s->name = s->path + strlen(in) + 1;
    return 0;
}

static int new_name(const char *job, char out[SHM_NAME_BYTES], err *e)
{
    unsigned char random[RANDOM_DIGITS / 2];
    if (!plain(job) || strlen(job) > 64)
        return err_set(e, ERR_INVALID, "\"%.64s\" cannot name a segment", job);
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_set_errno(e, errno, "getrandom");
    int n = snprintf(out, SHM_NAME_BYTES, "%s%s-", PREFIX, job);
    for (size_t i = 0; i < sizeof random; i++)
        n += snprintf(out + n, 3, "%02x", random[i]);
    return 0;
}

/* Calls `found` for every segment of the job (NULL: of all). Returns how many. */
static int each(const char *folder, const char *job, void (*found)(int dir, const char *, void *),
                void *user)
{
    DIR *d = opendir(folder && folder[0] ? folder : SHM_FOLDER);
    if (!d)
        return 0;
    int n = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        if (!is_segment_of(entry->d_name, job))
            continue;
        n++;
        found(dirfd(d), entry->d_name, user);
    }
    closedir(d);
    return n;
}

static void remove_one(int dir, const char *name, void *user)
{
    (void)user;
    unlinkat(dir, name, 0);
}

int shm_sweep(const char *folder, const char *job)
{
    return each(folder, job, remove_one, NULL);
}

typedef struct job_walk {
    void (*found)(const char *job, void *user);
    void *user;
} job_walk;

static void tell_job(int dir, const char *name, void *user)
{
    const job_walk *w = user;
    char job[SHM_NAME_BYTES];
    size_t len = strlen(name) - strlen(PREFIX) - 1 - RANDOM_DIGITS; /* as is_segment_of checked */
    (void)dir;
    memcpy(job, name + strlen(PREFIX), len);
    job[len] = '\0';
    w->found(job, w->user);
}

void shm_each_job(const char *folder, void (*found)(const char *job, void *user), void *user)
{
    job_walk w = {found, user};
    each(folder, NULL, tell_job, &w);
}

/* ---- making and opening --------------------------------------------------------------------- */

static int set_geometry(shm *s, block_shape shape, uint64_t slots, err *e)
{
    if (block_shape_check(shape, e))
        return -1;
    if (slots < 1 || slots > SHM_SLOTS_MAX)
        return err_set(e, ERR_LIMIT, "%llu slots in a segment, 1 to %d are allowed",
                       (unsigned long long)slots, SHM_SLOTS_MAX);
    s->shape = shape;
    s->slots = (int)slots;
    s->stride = page_up(block_bytes(shape));
    s->head_bytes = PAGE + 2 * s->stride;
    s->slot = calloc(slots, sizeof *s->slot);
    return s->slot ? 0 : err_set(e, ERR_NOMEM, "no memory for a segment's slots");
}

static int map_head(shm *s, err *e)
{
    int protection = PROT_READ | (s->merger ? PROT_WRITE : 0);
    void *at = mmap(NULL, s->head_bytes, protection, MAP_SHARED, s->fd, 0);
    if (at == MAP_FAILED)
        return err_set_errno(e, errno, "segment %s: mmap", s->path);
    s->head = at;
    return 0;
}

static shm *shm_new(bool merger)
{
    shm *s = calloc(1, sizeof *s);
    if (s) {
        s->fd = -1;
        s->merger = merger;
    }
    return s;
}

static int create_file(shm *s, err *e)
{
    s->fd = open(s->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (s->fd < 0)
        return err_set_errno(e, errno, "segment %s", s->path);
    if (ftruncate(s->fd, slot_offset(s, s->slots)) != 0)
        return err_set_errno(e, errno, "segment %s", s->path);
    int rc = posix_fallocate(s->fd, 0, PAGE);
    return rc ? err_set_errno(e, rc, "segment %s", s->path) : 0;
}

static int create_in(shm *s, const char *folder, const char *job, block_shape shape, int slots,
                     err *e)
{
    char name[SHM_NAME_BYTES];
    if (set_geometry(s, shape, slots < 0 ? 0 : (uint64_t)slots, e) || new_name(job, name, e) ||
        make_path(s, folder, name, e))
        return -1;
    shm_sweep(folder, job);
    return create_file(s, e) || map_head(s, e) ? -1 : 0;
}

int shm_create(const char *folder, const char *job, block_shape shape, int slots,
               uint64_t layout_digest, shm **out, err *e)
{
    shm *s = shm_new(true);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for a segment");
    if (create_in(s, folder, job, shape, slots, e)) {
        if (s->fd >= 0)
            unlink(s->path);
        shm_close(s);
        return -1;
    }
    s->layout_digest = layout_digest;
    s->head->floats = shape.floats;
    s->head->counters = shape.counters;
    s->head->layout_digest = layout_digest;
    s->head->slots = (uint64_t)slots;
    shm_state_set(s, (shm_state){.version = -1});
    memcpy(s->head->magic, magic, sizeof magic);
    *out = s;
    return 0;
}

static int read_geometry(shm *s, err *e)
{
    header h;
    struct stat st;
    if (pread(s->fd, &h, sizeof h, 0) != (ssize_t)sizeof h || memcmp(h.magic, magic, 6) != 0)
        return err_set(e, ERR_CORRUPT, "%s is not a segment", s->name);
    if (memcmp(h.magic, magic, sizeof magic) != 0)
        return err_set(e, ERR_CORRUPT, "segment %s was made by another version of these programs",
                       s->name);
    if (set_geometry(s, (block_shape){h.floats, h.counters}, h.slots, e))
        return -1;
    if (fstat(s->fd, &st) != 0 || st.st_size != slot_offset(s, s->slots))
        return err_set(e, ERR_CORRUPT, "segment %s has another size than it was made with",
                       s->name);
    s->layout_digest = h.layout_digest;
    return 0;
}

static int open_in(shm *s, const char *folder, const char *name, err *e)
{
    if (!plain(name) || !is_segment_of(name, NULL))
        return err_set(e, ERR_INVALID, "\"%.64s\" is not a segment's name", name);
    if (make_path(s, folder, name, e))
        return -1;
    /* Members write their slots: the descriptor is writable, but their mapping of the head is not.
     */
    s->fd = open(s->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (s->fd < 0)
        return err_set_errno(e, errno, "segment %s", s->path);
    return read_geometry(s, e) || map_head(s, e) ? -1 : 0;
}

int shm_open_segment(const char *folder, const char *name, bool merger, shm **out, err *e)
{
    shm *s = shm_new(merger);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for a segment");
    if (open_in(s, folder, name, e)) {
        shm_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void shm_close(shm *s)
{
    if (!s)
        return;
    for (int i = 0; s->slot && i < s->slots; i++)
        if (s->slot[i].at)
            munmap(s->slot[i].at, s->stride);
    if (s->head)
        munmap(s->head, s->head_bytes);
    if (s->fd >= 0)
        close(s->fd);
    free(s->slot);
    free(s);
}

const char *shm_name(const shm *s)
{
    return s->name;
}

block_shape shm_shape(const shm *s)
{
    return s->shape;
}

uint64_t shm_layout_digest(const shm *s)
{
    return s->layout_digest;
}

int shm_slots(const shm *s)
{
    return s->slots;
}

/* ---- blocks --------------------------------------------------------------------------------- */

block shm_reference(const shm *s, int64_t version)
{
    char *at = (char *)s->head + PAGE + (version & 1 ? s->stride : 0);
    return block_at(at, s->shape);
}

static int reserve(const shm *s, off_t at, size_t len, err *e)
{
    int rc = posix_fallocate(s->fd, at, (off_t)len);
    return rc ? err_set_errno(e, rc, "segment %s: %zu bytes of shared memory", s->path, len) : 0;
}

int shm_reserve_references(shm *s, err *e)
{
    return reserve(s, PAGE, 2 * s->stride, e);
}

int shm_slot(shm *s, int slot, bool writer, block *out, err *e)
{
    if (slot < 0 || slot >= s->slots)
        return err_set(e, ERR_INVALID, "slot %d of a segment with %d", slot, s->slots);
    struct mapped *m = &s->slot[slot];
    if (m->at && writer && !m->writable) {
        munmap(m->at, s->stride);
        m->at = NULL;
    }
    if (!m->at) {
        if (writer && reserve(s, slot_offset(s, slot), s->stride, e))
            return -1;
        if (!shm_whole(s))
            return err_set(e, ERR_CORRUPT, "segment %s was cut short", s->name);
        int protection = PROT_READ | (writer ? PROT_WRITE : 0);
        void *at = mmap(NULL, s->stride, protection, MAP_SHARED, s->fd, slot_offset(s, slot));
        if (at == MAP_FAILED)
            return err_set_errno(e, errno, "segment %s: mmap of slot %d", s->path, slot);
        m->at = at;
        m->writable = writer;
    }
    *out = block_at(m->at, s->shape);
    return 0;
}

bool shm_whole(const shm *s)
{
    struct stat st;
    return fstat(s->fd, &st) == 0 && st.st_size == slot_offset(s, s->slots);
}

/* ---- the committed state: a sequence lock -------------------------------------------------- */

/* Orders reads and writes of references against those of the state: those before the fence come
 * before those after it. Not every processor does so by itself. ThreadSanitizer knows no fences. */
static void fence(void)
{
#if !defined(__SANITIZE_THREAD__)
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

shm_state shm_state_get(const shm *s)
{
    header *h = s->head;
    fence();
    for (int tries = 0; tries < STATE_TRIES_MAX; tries++) {
        uint64_t before = atomic_load_explicit(&h->sequence, memory_order_acquire);
        shm_state state = {
            .version = atomic_load_explicit(&h->version, memory_order_acquire),
            .epoch = atomic_load_explicit(&h->epoch, memory_order_acquire),
            .round = atomic_load_explicit(&h->round, memory_order_acquire),
            .checksum = atomic_load_explicit(&h->checksum, memory_order_acquire),
        };
        uint64_t after = atomic_load_explicit(&h->sequence, memory_order_relaxed);
        if (before == after && before % 2 == 0)
            return state;
    }
    return (shm_state){.version = -1}; /* the writer died while it wrote: the owner writes again */
}

void shm_state_set(shm *s, shm_state state)
{
    header *h = s->head;
    /* A writer that died here has left the number odd: this makes it even again. */
    uint64_t sequence = atomic_load_explicit(&h->sequence, memory_order_relaxed) & ~UINT64_C(1);
    atomic_store_explicit(&h->sequence, sequence + 1, memory_order_seq_cst);
    atomic_store_explicit(&h->version, state.version, memory_order_release);
    atomic_store_explicit(&h->epoch, state.epoch, memory_order_release);
    atomic_store_explicit(&h->round, state.round, memory_order_release);
    atomic_store_explicit(&h->checksum, state.checksum, memory_order_release);
    atomic_store_explicit(&h->sequence, sequence + 2, memory_order_release);
    fence();
}
