/* test_files.c: fs, digest, name, and the headers of npy and IDX by themselves. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arrays.h"
#include "common/base/digest.h"
#include "common/base/fs.h"
#include "common/base/name.h"
#include "common/formats/idx.h"
#include "common/formats/npy.h"
#include "common/modelstore/redis_program.h"
#include "test.h"

TEST(folders_are_made_and_removed)
{
    err e = ERR_INIT;
    char path[FS_PATH_BYTES], file[FS_PATH_BYTES], link[FS_PATH_BYTES], kept[FS_PATH_BYTES];
    CHECK_OK(fs_path(path, &e, "%s/a/b/c", test_tmp()), e);
    CHECK_OK(fs_path(file, &e, "%s/file", path), e);
    CHECK_OK(fs_path(link, &e, "%s/link", path), e);
    CHECK_OK(fs_path(kept, &e, "%s/kept", test_tmp()), e);
    CHECK_OK(fs_mkdirs(path, 0700, &e), e);
    CHECK_OK(fs_mkdirs(path, 0700, &e), e);
    CHECK_OK(fs_mkdirs(kept, 0700, &e), e);
    CHECK_OK(fs_write_file(file, "x", 1, 0600, &e), e);
    CHECK_INT(symlink(kept, link), 0);
    CHECK_ERR(fs_mkdirs(file, 0700, &e), e, ERR_IO, "file: Not a directory");
    CHECK_OK(fs_path(path, &e, "%s/a", test_tmp()), e);
    CHECK_OK(fs_remove_tree(path, &e), e);
    CHECK(!fs_exists(path) && fs_exists(kept)); /* what a link points to stays */
    CHECK_OK(fs_remove_tree(path, &e), e);
    char longer[2000];
    memset(longer, 'p', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK_ERR(fs_mkdirs(longer, 0700, &e), e, ERR_LIMIT, "longer than");
}

TEST(files_are_replaced_whole)
{
    err e = ERR_INIT;
    char path[FS_PATH_BYTES], missing[FS_PATH_BYTES];
    struct stat st;
    buf b;
    CHECK_OK(fs_path(path, &e, "%s/file", test_tmp()), e);
    CHECK_OK(fs_path(missing, &e, "%s/no/file", test_tmp()), e);
    CHECK_OK(fs_write_file(path, "old", 3, 0640, &e), e);
    CHECK_OK(fs_write_file(path, "newer", 5, 0640, &e), e);
    CHECK_INT(stat(path, &st), 0);
    CHECK_INT(st.st_mode & 0777, 0640);
    buf_init(&b, 5);
    CHECK_OK(fs_read_file(path, &b, &e), e);
    CHECK_STR(b.bytes, "newer");
    buf_free(&b);
    buf_init(&b, 4);
    CHECK_ERR(fs_read_file(path, &b, &e), e, ERR_LIMIT, "file is larger than 4 bytes");
    buf_free(&b);
    CHECK_ERR(fs_write_file(missing, "x", 1, 0600, &e), e, ERR_NOT_FOUND, "no/file");
    CHECK_ERR(fs_read_file(missing, &b, &e), e, ERR_NOT_FOUND, "no/file");
    /* Nothing but the file is left in the folder. */
    char command[600];
    snprintf(command, sizeof command, "test \"$(ls '%s')\" = file", test_tmp());
    CHECK_INT(system(command), 0);
}

TEST(scratch_files_have_no_name)
{
    err e = ERR_INIT;
    int fd;
    char byte = 0;
    CHECK_OK(fs_scratch_file(test_tmp(), &fd, &e), e);
    CHECK_OK(fs_pwrite_all(fd, "x", 1, 10, "scratch", &e), e);
    CHECK_OK(fs_pread_all(fd, &byte, 1, 10, "scratch", &e), e);
    CHECK_INT(byte, 'x');
    CHECK_ERR(fs_pread_all(fd, &byte, 1, 11, "scratch", &e), e, ERR_CORRUPT,
              "scratch ends at byte 11");
    CHECK_OK(fs_remove_tree(test_tmp(), &e), e); /* rmdir would refuse a folder with files */
    close(fd);
}

/* FIPS 180-2's example. */
static int entries_of(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    CHECK(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* A writer that is killed leaves nothing, neither under the name nor beside it. */
TEST(an_output_that_breaks_off_leaves_nothing)
{
    char path[FS_PATH_BYTES];
    fs_output out;
    err e = ERR_INIT;
    int status, fd = open(test_tmp(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        test_skip("this file system has no nameless files");
    close(fd);
    CHECK_OK(fs_path(path, &e, "%s/model", test_tmp()), e);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (fs_output_open(&out, path, &e) == 0 && fs_output_write(&out, "half", 4, &e) == 0 &&
            fflush(out.file) == 0)
            raise(SIGKILL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK_INT(entries_of(test_tmp()), 0);
    for (int i = 0; i < 2; i++) { /* the second takes the place of the first */
        CHECK_OK(fs_output_open(&out, path, &e), e);
        CHECK_OK(fs_output_write(&out, i ? "new" : "old", 3, &e), e);
        CHECK_OK(fs_output_close(&out, true, &e), e);
        CHECK_INT(entries_of(test_tmp()), 1);
    }
    CHECK_OK(fs_output_open(&out, path, &e), e);
    CHECK_OK(fs_output_close(&out, false, &e), e);
    cleanup_buf buf text;
    buf_init(&text, 100);
    CHECK_OK(fs_read_file(path, &text, &e), e);
    CHECK_STR(text.bytes, "new");
    CHECK_INT(entries_of(test_tmp()), 1);
}

TEST(a_redis_server_is_found_as_exec_finds_it)
{
    err e = ERR_INIT;
    char folder[FS_PATH_BYTES], program[FS_PATH_BYTES], folders[2 * FS_PATH_BYTES];
    CHECK_OK(fs_path(folder, &e, "%s/bin/sub", test_tmp()), e);
    CHECK_OK(fs_mkdirs(folder, 0700, &e), e);
    CHECK_OK(fs_path(program, &e, "%s/bin/redis", test_tmp()), e);
    CHECK_OK(fs_write_file(program, "#!/bin/sh\n", 10, 0600, &e), e);
    snprintf(folders, sizeof folders, "/nonexistent:%s/bin", test_tmp());
    setenv("PATH", folders, 1);
    CHECK_ERR(redis_program_find("redis", &e), e, ERR_NOT_FOUND,
              "redis is not installed here; install the package redis-server");
    CHECK_INT(chmod(program, 0700), 0);
    err_clear(&e);
    CHECK_OK(redis_program_find("redis", &e), e);
    CHECK_OK(redis_program_find(program, &e), e);
    CHECK(redis_program_find("sub", NULL)); /* a folder */
    CHECK(redis_program_find("./redis", NULL));
    CHECK_INT(chdir(test_tmp()), 0);
    CHECK_OK(redis_program_find("bin/redis", &e), e);
    CHECK_INT(chdir("bin"), 0);
    setenv("PATH", "/nonexistent:", 1);
    CHECK_OK(redis_program_find("redis", &e), e);
    setenv("PATH", "", 1);
    CHECK_OK(redis_program_find("redis", &e), e);
    unsetenv("PATH");
    CHECK(redis_program_find("no-such-redis", NULL));
    CHECK_OK(redis_program_find("sh", &e), e);
}

TEST(digest_is_sha256)
{
    err e = ERR_INIT;
    char hex[DIGEST_HEX_BYTES], again[DIGEST_HEX_BYTES];
    const char *want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    CHECK_OK(digest_of("abc", 3, hex, &e), e);
    CHECK_STR(hex, want);
    int fd;
    CHECK_OK(fs_scratch_file(test_tmp(), &fd, &e), e);
    CHECK_OK(fs_write_all(fd, "abc", 3, "scratch", &e), e);
    CHECK_OK(digest_of_fd(fd, again, &e), e);
    CHECK_STR(again, want);
    close(fd);
    CHECK(digest_is_hex(hex) && !digest_is_hex("abc") && !digest_is_hex(NULL));
    hex[3] = 'A';
    CHECK(!digest_is_hex(hex));
}

TEST(names_are_checked)
{
    err e = ERR_INIT;
    char longest[65];
    memset(longest, 'n', 64);
    longest[63] = '\0';
    const char *good[] = {"a", "0", "MNIST", "a.b_c-d", longest};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_OK(name_check("dataset", good[i], &e), e);
    CHECK_ERR(name_check("dataset", NULL, &e), e, ERR_INVALID, "dataset name is empty");
    CHECK_ERR(name_check("function", "-a", &e), e, ERR_INVALID,
              "function name \"-a\" does not begin");
    CHECK_ERR(name_check("function", "a/b", &e), e, ERR_INVALID, "other than");
    memset(longest, 'n', 64);
    longest[64] = '\0';
    CHECK_ERR(name_check("function", longest, &e), e, ERR_INVALID, "64 characters");
}

TEST(npy_headers_come_back)
{
    err e = ERR_INIT;
    array_head head;
    const struct {
        array_dtype dtype;
        int ndim;
        uint64_t shape[ARRAY_DIMS_MAX];
    } heads[] = {
        {ARRAY_F32, 4, {60000, 1, 28, 28}},
        {ARRAY_U8, 1, {7}},
        {ARRAY_I64, 0, {0}},
        {ARRAY_BOOL, 2, {0, 5}},
        {ARRAY_F64, 8, {1, 2, 3, 4, 5, 6, 7, 8}},
    };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        cleanup_buf buf b;
        buf_init(&b, 1000);
        CHECK_OK(npy_header(heads[i].dtype, heads[i].ndim, heads[i].shape, &b, &e), e);
        CHECK_INT(b.len % 64, 0);
        for (size_t len = 0; len < b.len; len++)
            CHECK_INT(npy_parse((const uint8_t *)b.bytes, len, &head, &e), 0);
        CHECK_INT(npy_parse((const uint8_t *)b.bytes, b.len, &head, &e), 1);
        CHECK(head.dtype == heads[i].dtype && head.ndim == heads[i].ndim && !head.swap);
        CHECK(memcmp(head.shape, heads[i].shape, (size_t)head.ndim * 8) == 0);
        CHECK_INT(head.data_offset, b.len);
    }
    /* What numpy 2.1 itself writes for np.zeros((2, 3), "<f4"). */
    static const char numpy[] =
        "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
        "                                                          \n";
    CHECK_INT(npy_parse((const uint8_t *)numpy, sizeof numpy - 1, &head, &e), 1);
    CHECK_INT(head.data_offset, 128);
    CHECK_INT(head.data_bytes, 24);
    char text[ARRAY_TEXT_BYTES];
    CHECK_STR(array_text(&head, text), "float32 (2, 3)");
    /* Versions 2 and 3 have two more bytes for a length that version 1 has no room for. */
    for (int version = 2; version <= 3; version++) {
        char longer[sizeof numpy + 2];
        memcpy(longer, numpy, 8);
        memcpy(longer + 8, "v\0\0", 4);
        memcpy(longer + 12, numpy + 10, sizeof numpy - 10);
        longer[6] = (char)version;
        CHECK_INT(npy_parse((const uint8_t *)longer, sizeof numpy + 1, &head, &e), 1);
        CHECK_INT(head.data_offset, 130);
        CHECK_STR(array_text(&head, text), "float32 (2, 3)");
        for (int byte = 10; byte < 12; byte++) {
            longer[byte] = 1; /* over the limit */
            CHECK_INT(npy_parse((const uint8_t *)longer, sizeof numpy + 1, &head, &e), -1);
            CHECK_INT(e.code, ERR_LIMIT);
            longer[byte] = 0;
        }
    }
}

TEST(idx_headers_are_read)
{
    err e = ERR_INIT;
    array_head head;
    float numbers[6] = {0};
    cleanup_bytes bytes b = make_idx(ARRAY_F32, SHAPE(2, 3), numbers);
    CHECK_INT(idx_parse(b.at, 11, &head, &e), 0);
    CHECK_INT(idx_parse(b.at, b.len, &head, &e), 1);
    CHECK(head.dtype == ARRAY_F32 && head.swap && head.ndim == 2 && head.shape[1] == 3);
    CHECK_INT(head.data_offset + head.data_bytes, b.len);
    b.at[2] = 0x0A;
    CHECK_INT(idx_parse(b.at, b.len, &head, &e), -1);
    CHECK_INT(e.code, ERR_CORRUPT);
    static const struct {
        uint8_t code;
        array_dtype dtype;
        int bytes;
    } types[] = {{0x08, ARRAY_U8, 1},  {0x09, ARRAY_I8, 1},  {0x0B, ARRAY_I16, 2},
                 {0x0C, ARRAY_I32, 4}, {0x0D, ARRAY_F32, 4}, {0x0E, ARRAY_F64, 8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const uint8_t one[] = {0, 0, types[i].code, 1, 0x01, 0x02, 0x03, 0x04};
        CHECK_INT(idx_parse(one, sizeof one, &head, &e), 1);
        CHECK(head.dtype == types[i].dtype && head.swap == (types[i].bytes > 1));
        CHECK_INT(head.shape[0], 0x01020304);
        CHECK_INT(head.data_bytes, 0x01020304LL * types[i].bytes);
    }
    uint8_t deep[4 + 4 * (ARRAY_DIMS_MAX + 1)] = {0, 0, 0x08, 0};
    for (int ndim = 0; ndim <= ARRAY_DIMS_MAX + 1; ndim++) {
        deep[3] = (uint8_t)ndim;
        CHECK(idx_is(deep, sizeof deep) == (ndim >= 1 && ndim <= ARRAY_DIMS_MAX));
    }
}
