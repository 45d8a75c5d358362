/* builder.c: see builder.h. Checks the sources, runs the compiler in its sandbox
 * (common/base/process.c), parses its messages (builder_text.c) and checks the object
 * (builder_object.c). */
#include "builder.h"

#include <errno.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "builder_text.h"
#include "common/base/buf.h"
#include "common/base/cleanup.h"
#include "common/base/clock.h"
#include "common/base/fs.h"
#include "common/base/process.h"

/* No -march: an object must load on every machine of the platform, and give the same bits there.
 * -fmax-errors: for each unknown name the compiler looks for a similar name, which takes minutes
 * for thousands of names. */
#define FLAGS                                                                                      \
    "-std=gnu11 -O2 -g1 -fPIC -shared -fvisibility=hidden -ffp-contract=off "                      \
    "-frandom-seed=kubeml -Wall -Werror=implicit-function-declaration "                            \
    "-Werror=incompatible-pointer-types -Werror=int-conversion -Werror=return-type "               \
    "-fmax-errors=100 -Wl,-S -Wl,-z,defs -Wl,--warn-unresolved-symbols -Wl,-z,now "                \
    "-Wl,-z,noexecstack -Wl,--build-id=none"

/* $0 is a name, "$@" are the .c files; $FLAGS is many words, and the folders may have blanks. The
 * object goes to stdout, so that the sandbox needs no writable folder of the host. With -isystem
 * the compiler reports an error in a macro's argument at the user's line, not in kubeml.h. */
static const char script[] =
    "if [ -n \"$PROCESSES\" ] && (ulimit -p $PROCESSES) 2>&-; then ulimit -p $PROCESSES; fi\n"
    "\"$CC\" $FLAGS -isystem \"$SDK\" -ffile-prefix-map=\"$PWD\"=. -o \"$TMPDIR\"/object.so \"$@\" -lm "
    ">&2 && "
    "exec cat \"$TMPDIR\"/object.so";

/* ---- checks of the sources ------------------------------------------------------------------- */

static bool name_ok(const char *name)
{
    size_t len = strnlen(name, BUILDER_NAME_BYTES);
    if (len < 3 || len >= BUILDER_NAME_BYTES || name[0] == '.' || name[0] == '-')
        return false;
    for (size_t i = 0; i < len; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", name[i]))
            return false;
    return strcmp(name + len - 2, ".c") == 0 || strcmp(name + len - 2, ".h") == 0;
}

static bool is_c(const char *name)
{
    return name[strlen(name) - 1] == 'c';
}

int builder_check(const builder_source *files, size_t n, err *e)
{
    if (n == 0 || n > BUILDER_FILES_MAX)
        return err_set(e, n ? ERR_LIMIT : ERR_INVALID,
                       "%zu source files, between 1 and %d are allowed", n, BUILDER_FILES_MAX);
    size_t total = 0, c_files = 0;
    for (size_t i = 0; i < n; i++) {
        if (!name_ok(files[i].name))
            return err_set(e, ERR_INVALID,
                           "file name \"%.64s\" is not a plain name of a .c or .h file (letters, "
                           "digits, '_', '-', '.'; at most %d)",
                           files[i].name, BUILDER_NAME_BYTES - 1);
        for (size_t j = 0; j < i; j++)
            if (strcmp(files[i].name, files[j].name) == 0)
                return err_set(e, ERR_INVALID, "file name %s is given twice", files[i].name);
        if (files[i].len > BUILDER_SOURCE_BYTES_MAX - total)
            return err_set(e, ERR_LIMIT, "the sources are larger than %d bytes together",
                           BUILDER_SOURCE_BYTES_MAX);
        total += files[i].len;
        c_files += is_c(files[i].name);
    }
    return c_files ? 0 : err_set(e, ERR_INVALID, "there is no .c file among the sources");
}

/* ---- the programs it needs ------------------------------------------------------------------- */

static const char *find_compiler(const builder_config *c)
{
    static const char *const places[] = {"/usr/bin/gcc", "/usr/bin/cc", "/usr/bin/clang"};
    if (c->compiler)
        return access(c->compiler, X_OK) == 0 ? c->compiler : NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    return NULL;
}

static int find_bwrap(const builder_config *c, char out[FS_PATH_BYTES], err *e)
{
    if (fs_find_program(c->bwrap ? c->bwrap : "bwrap", out))
        return 0;
    return err_set(
        e, ERR_UNSUPPORTED,
        "no compile sandbox: bubblewrap (the program bwrap) is not installed; install the "
        "package bubblewrap");
}

static char *const plain_env[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", NULL};

static int compiler_version(const char *compiler, buf *out, err *e)
{
    char *argv[] = {(char *)compiler, "--version", NULL};
    process_run r = {.argv = argv, .envp = plain_env, .deadline_ms = clock_deadline_ms(10000)};
    buf text;
    buf_init(&text, 4096);
    int rc = process_run_program(&r, out, &text, e);
    buf_free(&text);
    if (rc != 0)
        return err_wrap(e, "compiler");
    if (WIFSIGNALED(r.status)) /* by the kernel for want of memory, or at the deadline */
        return err_set(e, ERR_UNAVAILABLE, "%s --version was killed; tried again it may succeed",
                       compiler);
    if (!WIFEXITED(r.status) || WEXITSTATUS(r.status) != 0 || out->len == 0)
        return err_set(e, ERR_UNSUPPORTED, "%s --version fails", compiler);
    return 0;
}

/* ---- the SDK --------------------------------------------------------------------------------- */

int builder_abi(const char *include_dir)
{
    char path[FS_PATH_BYTES], line[512];
    int abi = 0;
    if (fs_path(path, NULL, "%s/kubeml.h", include_dir))
        return 0;
    cleanup_fclose FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "#define KUBEML_ABI %d", &abi) == 1 ||
            sscanf(line, "#define KML_ABI %d", &abi) == 1)
            break;
    return abi;
}

/* ---- the key --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const builder_source *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static void hex(const unsigned char *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static bool digest_sources(EVP_MD_CTX *md, const builder_source *files, size_t n)
{
    const builder_source *order[BUILDER_FILES_MAX];
    for (size_t i = 0; i < n; i++)
        order[i] = &files[i];
    qsort(order, n, sizeof *order, by_name);
    for (size_t i = 0; i < n; i++) {
        char head[BUILDER_NAME_BYTES + 32];
        int len = snprintf(head, sizeof head, "%s %zu\n", order[i]->name, order[i]->len);
        if (!EVP_DigestUpdate(md, head, (size_t)len) ||
            !EVP_DigestUpdate(md, order[i]->text, order[i]->len))
            return false;
    }
    return true;
}

static int make_key(const builder_source *files, size_t n, int abi, const char *version,
                    char key[BUILDER_KEY_BYTES], err *e)
{
    struct utsname machine;
    uname(&machine);
    char head[1024];
    int len =
        snprintf(head, sizeof head, "kubeml-build 1\nabi %d\nmachine %s\nflags %s\ncompiler %.*s\n",
                 abi, machine.machine, FLAGS, (int)strcspn(version, "\n"), version);
    if (len < 0 || (size_t)len >= sizeof head)
        return err_set(e, ERR_INTERNAL, "the compiler's version line is too long");
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned char digest[EVP_MAX_MD_SIZE];
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) &&
              EVP_DigestUpdate(md, head, (size_t)len) && digest_sources(md, files, n) &&
              EVP_DigestFinal_ex(md, digest, NULL);
    EVP_MD_CTX_free(md);
    if (!ok)
        return err_set(e, ERR_NOMEM, "no memory for the digest");
    hex(digest, 32, key);
    return 0;
}

int builder_key(const builder_source *files, size_t n, const builder_config *c,
                char key[BUILDER_KEY_BYTES], err *e)
{
    if (builder_check(files, n, e) != 0)
        return -1;
    const char *compiler = find_compiler(c);
    if (!compiler)
        return err_set(e, ERR_UNSUPPORTED, "no C compiler (%s): install the package gcc",
                       c->compiler ? c->compiler : "gcc, cc, clang");
    buf version;
    buf_init(&version, 8192);
    int rc = compiler_version(compiler, &version, e);
    if (rc == 0)
        rc = make_key(files, n, c->abi, version.bytes, key, e);
    buf_free(&version);
    return rc;
}

/* ---- the sandbox ----------------------------------------------------------------------------- */

enum { ARGS_MAX = 256, ARG_BYTES_MAX = 64 << 10 };

/* The command line being written: pointers into one block of text. */
typedef struct command {
    char *argv[ARGS_MAX];
    size_t argc, used;
    char *text;
    bool full;
} command;

__attribute__((format(printf, 2, 3))) static void arg(command *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    size_t room = ARG_BYTES_MAX - c->used;
    int len = vsnprintf(c->text + c->used, room, fmt, args);
    va_end(args);
    if (len < 0 || (size_t)len >= room || c->argc + 2 > ARGS_MAX) {
        c->full = true;
        return;
    }
    c->argv[c->argc++] = c->text + c->used;
    c->argv[c->argc] = NULL;
    c->used += (size_t)len + 1;
}

/* Appends words that are separated by blanks. */
static void args(command *c, const char *words)
{
    while (*words) {
        size_t len = strcspn(words, " ");
        arg(c, "%.*s", (int)len, words);
        words += len + (words[len] == ' ');
    }
}

/* Shows the host's `path` in the sandbox: /bin, /lib and /lib64 are links into /usr on a merged
 * system, and folders on other systems. */
static void mirror(command *c, const char *path)
{
    struct stat s;
    char target[256];
    if (lstat(path, &s) != 0)
        return;
    ssize_t len = S_ISLNK(s.st_mode) ? readlink(path, target, sizeof target - 1) : -1;
    if (len > 0) {
        arg(c, "--symlink"), arg(c, "%.*s", (int)len, target), arg(c, "%s", path);
    } else {
        arg(c, "--ro-bind"), arg(c, "%s", path), arg(c, "%s", path);
    }
}

typedef struct build {
    const builder_source *files;
    size_t n;
    const builder_config *config;
    builder_limits limits;
    const char *compiler;
    command command;
    process_run run;
    char folder[256]; /* for BUILDER_SANDBOX_NONE; else "" */
    buf object, text, version;
} build;

static void sandbox_filesystem(build *b)
{
    static const char *const usr[] = {"/usr/bin", "/usr/lib", "/usr/lib64", "/usr/libexec",
                                      "/usr/include"};
    static const char *const roots[] = {"/bin", "/lib", "/lib64"};
    command *c = &b->command;
    for (size_t i = 0; i < sizeof usr / sizeof *usr; i++)
        arg(c, "--ro-bind-try"), arg(c, "%s", usr[i]), arg(c, "%s", usr[i]);
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++)
        mirror(c, roots[i]);
    args(c, "--ro-bind-try /etc/alternatives /etc/alternatives --ro-bind");
    arg(c, "%s", b->config->include_dir);
    args(c, "/sdk --size 67108864 --tmpfs /tmp --dir /src");
}

static int sandbox_command(build *b, err *e)
{
    char bwrap[FS_PATH_BYTES];
    command *c = &b->command;
    if (find_bwrap(b->config, bwrap, e) != 0)
        return -1;
    arg(c, "%s", bwrap);
    args(c, "--unshare-all --die-with-parent --uid 65534 --gid 65534 --cap-drop ALL "
            "--hostname builder --clearenv --setenv PATH /usr/bin --setenv LC_ALL C "
            "--setenv TMPDIR /tmp --setenv SDK /sdk --setenv FLAGS");
    arg(c, "%s", FLAGS);
    args(c, "--setenv CC");
    arg(c, "%s", b->compiler);
    args(c, "--setenv PROCESSES");
    arg(c, "%d", b->limits.processes);
    sandbox_filesystem(b);
    for (size_t i = 0; i < b->n; i++) {
        int fd = builder_memory_file(b->files[i].text, b->files[i].len, e);
        if (fd < 0)
            return -1;
        b->run.keep[b->run.keep_count++] = fd;
        arg(c, "--ro-bind-data"), arg(c, "%d", fd), arg(c, "/src/%s", b->files[i].name);
    }
    args(c, "--remount-ro / --chdir /src -- /bin/sh -c");
    b->run.envp = plain_env;
    return 0;
}

static int write_file(const char *folder, const builder_source *f, err *e)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", folder, f->name) >= (int)sizeof path)
        return err_set(e, ERR_LIMIT, "the temporary folder's name is too long");
    FILE *out = fopen(path, "wxe");
    if (!out)
        return err_set_errno(e, errno, "%s", path);
    size_t wrote = fwrite(f->text, 1, f->len, out);
    if (fclose(out) != 0 || wrote != f->len)
        return err_set_errno(e, errno, "writing %s", path);
    return 0;
}

/* Makes the command without a sandbox: the sources are in a temporary folder, and only the
 * surrounding container, if any, confines the compiler. */
static int open_command(build *b, err *e)
{
    command *c = &b->command;
    const char *tmp = b->config->tmp_dir ? b->config->tmp_dir : getenv("TMPDIR");
    char include[4096];
    if (!realpath(b->config->include_dir, include))
        return err_set_errno(e, errno, "%s", b->config->include_dir);
    if (snprintf(b->folder, sizeof b->folder, "%s/kubeml-build-XXXXXX", tmp ? tmp : "/tmp") >=
        (int)sizeof b->folder)
        return err_set(e, ERR_LIMIT, "the temporary folder's name is too long");
    if (!mkdtemp(b->folder)) {
        err_set_errno(e, errno, "%s", b->folder);
        b->folder[0] = '\0';
        return -1;
    }
    char src[300];
    snprintf(src, sizeof src, "%s/src", b->folder);
    if (mkdir(src, 0700) != 0)
        return err_set_errno(e, errno, "%s", src);
    for (size_t i = 0; i < b->n; i++)
        if (write_file(src, &b->files[i], e) != 0)
            return -1;
    b->run.envp = plain_env;
    args(c, "/usr/bin/env -C");
    arg(c, "%s", src);
    arg(c, "TMPDIR=%s", b->folder), arg(c, "SDK=%s", include), arg(c, "FLAGS=%s", FLAGS);
    arg(c, "CC=%s", b->compiler), arg(c, "PROCESSES=");
    args(c, "/bin/sh -c");
    return 0;
}

static int make_command(build *b, err *e)
{
    if (!(b->command.text = malloc(ARG_BYTES_MAX)))
        return err_set(e, ERR_NOMEM, "no memory for the command");
    int rc =
        b->config->sandbox == BUILDER_SANDBOX_NONE ? open_command(b, e) : sandbox_command(b, e);
    if (rc != 0)
        return -1;
    arg(&b->command, "%s", script);
    arg(&b->command, "builder");
    for (size_t i = 0; i < b->n; i++)
        if (is_c(b->files[i].name))
            arg(&b->command, "%s", b->files[i].name);
    if (b->command.full)
        return err_set(e, ERR_LIMIT, "the compiler's command line is too long");
    b->run.argv = b->command.argv;
    return 0;
}

static void build_free(build *b)
{
    for (size_t i = 0; i < b->run.keep_count; i++)
        close(b->run.keep[i]);
    if (b->folder[0])
        fs_remove_tree(b->folder, NULL);
    free(b->command.text);
    buf_free(&b->object);
    buf_free(&b->text);
    buf_free(&b->version);
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Whether a message of the compiler has these words. Lines that begin with a blank quote the
 * source, and do not count. */
static bool says(const char *text, const char *words)
{
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        if (line[0] != ' ' && memmem(line, len, words, strlen(words)))
            return true;
        line += len + (line[len] == '\n');
    }
    return false;
}

/* Looks in the messages, and in the end of the messages that did not fit. */
static bool said(const build *b, const char *words)
{
    return says(b->text.bytes ? b->text.bytes : "", words) || says(b->run.last, words);
}

static int limit_met(const build *b, err *e)
{
    if (b->run.timed_out)
        return err_set(e, ERR_LIMIT, "compiling took longer than %d s", b->limits.wall_ms / 1000);
    if (b->run.output_over || said(b, "File size limit exceeded") ||
        said(b, "No space left on device") || said(b, "File too large"))
        return err_set(e, ERR_LIMIT, "the compiled code is larger than %d MiB",
                       BUILDER_OBJECT_BYTES_MAX >> 20);
    if (said(b, "CPU time limit exceeded"))
        return err_set(e, ERR_LIMIT, "compiling took more than %d s of processor time",
                       b->limits.cpu_s);
    if (said(b, "out of memory") || said(b, "virtual memory exhausted") ||
        said(b, "annot allocate memory") || said(b, "memory exhausted"))
        return err_set(e, ERR_LIMIT, "compiling needed more than %llu MiB of memory",
                       (unsigned long long)(b->limits.memory_bytes >> 20));
    return 0;
}

/* Whether a process outside killed the compiler: each of our limits prints its own message, also
 * the limit of CPU time, by SIGXCPU before SIGKILL. */
static bool was_killed(const build *b)
{
    return (WIFSIGNALED(b->run.status) && WTERMSIG(b->run.status) == SIGKILL) ||
           (WIFEXITED(b->run.status) && WEXITSTATUS(b->run.status) == 128 + SIGKILL) ||
           said(b, "Killed signal terminated") || said(b, "terminated with signal 9") ||
           said(b, "unable to execute command: Killed");
}

/* Adds a hint where AppArmor forbids the sandbox, as on Ubuntu: bubblewrap only names the step that
 * failed, the user namespace's or the network namespace's. */
static const char *cure(const char *text)
{
    return strstr(text, "setting up uid map: Perm") || strstr(text, "loopback: Failed")
               ? " (on Ubuntu by AppArmor: docs/guides/functions.md says how to allow it)"
               : "";
}

static int judge(const build *b, builder_result *out, err *e)
{
    bool ended = WIFEXITED(b->run.status) && WEXITSTATUS(b->run.status) == 0 && !b->run.timed_out &&
                 !b->run.output_over;
    if (!ended && limit_met(b, e) != 0)
        return -1;
    if (!ended && was_killed(b))
        return err_set(e, ERR_NOMEM,
                       "the compiler was killed, as where a machine or pod has no "
                       "memory left; tried again it may succeed");
    if (!ended && strncmp(out->text, "bwrap: ", 7) == 0)
        return err_set(e, ERR_UNSUPPORTED, "the compile sandbox cannot be set up here: %.*s%s",
                       (int)strcspn(out->text, "\n"), out->text, cure(out->text));
    if (builder_text_error(out, e) != 0)
        return -1;
    if (!ended)
        return err_set(e, ERR_INVALID, "the compiler failed: %.160s",
                       out->text[0] ? out->text : "it was killed");
    return builder_object_check((unsigned char *)b->object.bytes, b->object.len, BUILDER_SYMBOL, e);
}

static builder_limits with_defaults(const builder_limits *l)
{
    builder_limits r = l ? *l : (builder_limits){0};
    r.wall_ms = r.wall_ms > 0 ? r.wall_ms : BUILDER_WALL_MS;
    r.cpu_s = r.cpu_s > 0 ? r.cpu_s : BUILDER_CPU_S;
    r.processes = r.processes > 0 ? r.processes : BUILDER_PROCESSES;
    r.memory_bytes = r.memory_bytes ? r.memory_bytes : BUILDER_MEMORY_BYTES;
    return r;
}

static int run_build(build *b, builder_result *out, err *e)
{
    if (builder_check(b->files, b->n, e) != 0)
        return -1;
    if (!(b->compiler = find_compiler(b->config)))
        return err_set(e, ERR_UNSUPPORTED, "no C compiler (%s): install the package gcc",
                       b->config->compiler ? b->config->compiler : "gcc, cc, clang");
    if (compiler_version(b->compiler, &b->version, e) != 0 ||
        make_key(b->files, b->n, b->config->abi, b->version.bytes, out->key, e) != 0 ||
        make_command(b, e) != 0)
        return -1;
    b->run.deadline_ms = clock_deadline_ms(b->limits.wall_ms);
    b->run.cpu_s = b->limits.cpu_s;
    b->run.memory_bytes = b->limits.memory_bytes;
    b->run.file_bytes = BUILDER_OBJECT_BYTES_MAX;
    if (process_run_program(&b->run, &b->object, &b->text, e) != 0 ||
        builder_text_read(b->text.bytes, b->text.len, out, e) != 0 || judge(b, out, e) != 0)
        return -1;
    out->object_bytes = b->object.len;
    out->object = (unsigned char *)steal_ptr(b->object.bytes);
    buf_init(&b->object, 0);
    return 0;
}

int builder_compile(const builder_source *files, size_t n, const builder_limits *limits,
                    const builder_config *c, builder_result *out, err *e)
{
    int64_t began_ns = clock_monotonic_ns();
    *out = (builder_result){0};
    build b = {.files = files, .n = n, .config = c, .limits = with_defaults(limits)};
    buf_init(&b.object, BUILDER_OBJECT_BYTES_MAX);
    buf_init(&b.text, BUILDER_TEXT_BYTES_MAX);
    buf_init(&b.version, 8192);
    int rc = run_build(&b, out, e);
    build_free(&b);
    if (!out->text)
        out->text = calloc(1, 1);
    out->seconds = (double)(clock_monotonic_ns() - began_ns) * 1e-9;
    return rc;
}

void builder_result_free(builder_result *r)
{
    free(r->object);
    free(r->diagnostics);
    free(r->text);
    *r = (builder_result){0};
}
