/* test_builder.c: good sources, broken ones, and hostile ones that must end within the limits. */
#include <fcntl.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json_read.h"
#include "common/base/process.h"
#include "common/compile/builder.h"
#include "common/compile/builder_remote.h"
#include "common/compile/builder_text.h"
#include "test.h"

/* A header that stands in for the SDK's: the builder knows none of its contents. */
static const char header[] =
    "extern int kml_relu(int);\n"
    "#define kml_layer(x) kml_relu((x))\n"
    "#define KUBEML_FUNCTION(m) __attribute__((visibility(\"default\"))) \\\n"
    "    int (*const kubeml_function)(int) = m\n";
static const char good[] = "#include <kubeml.h>\n"
                           "#include <math.h>\n"
                           "static int model(int x) { return kml_relu(x + (int)sqrt(x)); }\n"
                           "KUBEML_FUNCTION(model);\n";

static builder_config config(builder_sandbox sandbox)
{
    static char folder[256];
    char path[300];
    snprintf(folder, sizeof folder, "%s/sdk", test_tmp());
    mkdir(folder, 0755);
    snprintf(path, sizeof path, "%s/kubeml.h", folder);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(header, f) >= 0 && fclose(f) == 0);
    return (builder_config){.include_dir = folder, .sandbox = sandbox, .abi = 1,
                            .tmp_dir = test_tmp()};
}

static builder_source source(const char *name, const char *text)
{
    return (builder_source){name, text, strlen(text)};
}

static int compile(const char *text, const builder_limits *l, builder_result *out, err *e)
{
    builder_config c = config(BUILDER_SANDBOX_BWRAP);
    builder_source s = source("lenet.c", text);
    int rc = builder_compile(&s, 1, l, &c, out, e);
    if (rc != 0 && e->code == ERR_UNSUPPORTED && strstr(e->message, "cannot be set up here"))
        test_skip(e->message);
    return rc;
}

/* Expects an error of that code, with that part, and before the limits plus a second for the
 * rest. */
static void refuse_within(builder_limits l, const char *text, err_code code, const char *part)
{
    builder_result r;
    err e = ERR_INIT;
    CHECK_ERR(compile(text, &l, &r, &e), e, code, part);
    CHECK(!r.object);
    CHECK(r.text && strlen(r.text) <= BUILDER_TEXT_BYTES_MAX + 1024);
    /* A limit that ends one of its programs is no mistake of the compiler's. */
    CHECK(!strstr(r.text, "internal compiler error") && !strstr(r.text, "bug report") &&
          !strstr(r.text, "See <"));
    builder_result_free(&r);
}

static void refuse(const char *text, err_code code, const char *part)
{
    refuse_within((builder_limits){.wall_ms = 6000, .cpu_s = 2, .memory_bytes = 256 << 20}, text,
                  code, part);
}

/* What is no matter of the source's text: the files' names, or the machine. */
static void refuse_files(const builder_source *s, size_t count, const builder_config *c,
                         err_code code, const char *part)
{
    builder_result r;
    err e = ERR_INIT;
    CHECK_ERR(builder_compile(s, count, NULL, c, &r, &e), e, code, part);
    builder_result_free(&r);
}

TEST(a_good_source_gives_an_object)
{
    builder_result r;
    err e = ERR_INIT;
    CHECK_OK(compile(good, NULL, &r, &e), e);
    CHECK(r.object_bytes > 1000 && memcmp(r.object, "\177ELF", 4) == 0);
    CHECK_INT(r.error_count, 0);
    CHECK_INT(strlen(r.key), 64);
    CHECK_STR(r.text, "");
    builder_config c = config(BUILDER_SANDBOX_BWRAP);
    builder_source s = source("lenet.c", good);
    char key[BUILDER_KEY_BYTES];
    CHECK_OK(builder_key(&s, 1, &c, key, &e), e);
    CHECK_STR(key, r.key);
    builder_result_free(&r);
}

TEST(the_same_sources_give_the_same_bytes)
{
    builder_result a, b;
    err e = ERR_INIT;
    CHECK_OK(compile(good, NULL, &a, &e), e);
    CHECK_OK(compile(good, NULL, &b, &e), e);
    CHECK_INT(a.object_bytes, b.object_bytes);
    CHECK(memcmp(a.object, b.object, a.object_bytes) == 0);
    builder_result_free(&a);
    builder_result_free(&b);
}

TEST(several_files_in_any_order_have_one_key)
{
    builder_config c = config(BUILDER_SANDBOX_BWRAP);
    builder_source files[] = {
        source("main.c", "#include <kubeml.h>\n#include \"net.h\"\nKUBEML_FUNCTION(model);\n"),
        source("net.h", "int model(int x);\n"),
        source("net.c", "#include \"net.h\"\nint model(int x) { return x; }\n"),
    };
    builder_source turned[] = {files[2], files[0], files[1]};
    char key[BUILDER_KEY_BYTES], other[BUILDER_KEY_BYTES];
    err e = ERR_INIT;
    CHECK_OK(builder_key(files, 3, &c, key, &e), e);
    CHECK_OK(builder_key(turned, 3, &c, other, &e), e);
    CHECK_STR(key, other);
    c.abi = 2;
    CHECK_OK(builder_key(files, 3, &c, other, &e), e);
    CHECK(strcmp(key, other) != 0);
    c.abi = 1;
    builder_result r;
    CHECK_OK(builder_compile(files, 3, NULL, &c, &r, &e), e);
    CHECK_STR(r.key, key);
    builder_result_free(&r);
}

/* A compiler that only tells with which words it was called. */
static void fake_compiler(const char *version, char path[300])
{
    snprintf(path, 300, "%s/%s", test_tmp(), version);
    FILE *f = fopen(path, "w");
    CHECK(f && fprintf(f,
                       "#!/bin/sh\n[ \"$1\" = --version ] && exec echo %s\necho \"$@\" >&2\nexit 1\n",
                       version) > 0);
    CHECK(fclose(f) == 0 && chmod(path, 0755) == 0);
}

/* A compiler of which one program is killed, as one is whose machine has no memory left. */
static void killed_compiler(const char *compiler, const char *victim, char path[300])
{
    char folder[256], part[300];
    snprintf(folder, sizeof folder, "%s/killed-%s", test_tmp(), victim);
    mkdir(folder, 0755);
    snprintf(part, sizeof part, "%s/%s", folder, victim);
    FILE *f = fopen(part, "w");
    CHECK(f && fputs("#!/bin/sh\nkill -KILL $$\n", f) >= 0);
    CHECK(fclose(f) == 0 && chmod(part, 0755) == 0);
    snprintf(path, 300, "%s/%s-without-%s", test_tmp(), compiler, victim);
    f = fopen(path, "w");
    CHECK(f && fprintf(f, "#!/bin/sh\nexec %s -B %s \"$@\"\n", compiler, folder) > 0);
    CHECK(fclose(f) == 0 && chmod(path, 0755) == 0);
}

/* No limit of ours was met, and the code has no part in it. */
TEST(a_compiler_that_is_killed_refuses_nothing)
{
    static const struct {
        const char *compiler, *victim;
    } cases[] = {{"gcc", "cc1"}, {"gcc", "ld"}, {"clang", "ld"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        builder_config c = config(BUILDER_SANDBOX_NONE);
        builder_source s = source("lenet.c", good);
        builder_result r;
        char path[300];
        err e = ERR_INIT;
        killed_compiler(cases[i].compiler, cases[i].victim, path);
        c.compiler = path;
        CHECK_ERR(builder_compile(&s, 1, NULL, &c, &r, &e), e, ERR_NOMEM,
                  "the compiler was killed");
        CHECK(!r.object && !strstr(r.text, "bug report"));
        builder_result_free(&r);
    }
}

/* The key is a digest of all that makes the object what it is: sources, ABI, compiler, instruction
 * set, and the very flags that the compiler is called with. */
TEST(the_key_is_of_all_that_makes_the_object)
{
    builder_config c = config(BUILDER_SANDBOX_NONE);
    builder_source s = source("lenet.c", good);
    builder_result r;
    char path[300], text[4096], key[BUILDER_KEY_BYTES], want[BUILDER_KEY_BYTES];
    unsigned char digest[32];
    struct utsname machine;
    err e = ERR_INIT;
    fake_compiler("cc-1", path);
    c.compiler = path;
    CHECK_ERR(builder_compile(&s, 1, NULL, &c, &r, &e), e, ERR_INVALID, "the compiler failed");
    CHECK(strncmp(r.text, "-std=", 5) == 0 && strstr(r.text, " -isystem"));
    CHECK(uname(&machine) == 0);
    int len = snprintf(
        text, sizeof text,
        "kubeml-build 1\nabi 1\nmachine %s\nflags %.*s\ncompiler cc-1\nlenet.c %zu\n%s",
        machine.machine, (int)(strstr(r.text, " -isystem") - r.text), r.text, strlen(good), good);
    CHECK(len > 0 && (size_t)len < sizeof text);
    CHECK(EVP_Digest(text, (size_t)len, digest, NULL, EVP_sha256(), NULL));
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(want + 2 * i, 3, "%02x", digest[i]);
    CHECK_STR(r.key, want);
    CHECK_OK(builder_key(&s, 1, &c, key, &e), e);
    CHECK_STR(key, want);
    fake_compiler("cc-2", path);
    CHECK_OK(builder_key(&s, 1, &c, key, &e), e);
    CHECK(strcmp(key, want) != 0);
    builder_result_free(&r);
}

TEST(a_compiler_that_is_killed_before_it_says_its_version_refuses_nothing)
{
    builder_config c = config(BUILDER_SANDBOX_NONE);
    builder_source s = source("lenet.c", good);
    builder_result r;
    char path[300];
    err e = ERR_INIT;
    snprintf(path, sizeof path, "%s/killed", test_tmp());
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("#!/bin/sh\nkill -KILL $$\n", f) >= 0);
    CHECK(fclose(f) == 0 && chmod(path, 0755) == 0);
    c.compiler = path;
    CHECK_ERR(builder_compile(&s, 1, NULL, &c, &r, &e), e, ERR_UNAVAILABLE, "was killed");
    builder_result_free(&r);
}

TEST(an_error_has_file_line_and_column)
{
    builder_result r;
    err e = ERR_INIT;
    CHECK_ERR(compile("#include <kubeml.h>\n\nint f(void)\n{\n    return y;\n}\n", NULL, &r, &e), e,
              ERR_INVALID, "lenet.c:5:12: error: 'y' undeclared");
    CHECK(r.diagnostic_count >= 1 && r.error_count == 1);
    CHECK_STR(r.diagnostics[0].file, "lenet.c");
    CHECK_INT(r.diagnostics[0].line, 5);
    CHECK_INT(r.diagnostics[0].column, 12);
    CHECK_STR(r.diagnostics[0].severity, "error");
    CHECK_CONTAINS(r.text, "return y;");
    builder_result_free(&r);
}

/* And not in kubeml.h, whose macros the layers are. */
TEST(a_wrong_argument_is_an_error_of_the_users_line)
{
    builder_result r;
    err e = ERR_INIT;
    CHECK_ERR(compile("#include <kubeml.h>\nstruct two { int a, b; } two;\n"
                      "static int model(int x)\n{\n    return x + kml_layer(two);\n}\n"
                      "KUBEML_FUNCTION(model);\n",
                      NULL, &r, &e),
              e, ERR_INVALID, "error: incompatible type for argument 1 of 'kml_relu'");
    CHECK_STR(r.diagnostics[0].file, "lenet.c");
    CHECK_INT(r.diagnostics[0].line, 5);
    builder_result_free(&r);
}

TEST(a_warning_is_told_and_does_not_fail)
{
    builder_result r;
    err e = ERR_INIT;
    CHECK_OK(compile("#include <kubeml.h>\nstatic int model(int x) { int z; return x; }\n"
                     "KUBEML_FUNCTION(model);\n", NULL, &r, &e), e);
    CHECK_INT(r.error_count, 0);
    CHECK_INT(r.diagnostic_count, 1);
    CHECK_STR(r.diagnostics[0].severity, "warning");
    CHECK_INT(r.diagnostics[0].line, 2);
    builder_result_free(&r);
}

TEST(a_model_that_returns_nothing_is_an_error)
{
    refuse("#include <kubeml.h>\nstatic int model(int x)\n{\n    kml_relu(x);\n}\n"
           "KUBEML_FUNCTION(model);\n",
           ERR_INVALID, "lenet.c:5:1: error: no return statement in function returning non-void");
    refuse("#include <kubeml.h>\nstatic int model(int x)\n{\n    if (x)\n        return x;\n}\n"
           "KUBEML_FUNCTION(model);\n",
           ERR_INVALID, "lenet.c:6:1: error: control reaches end of non-void function");
}

/* The compiler would drop it with a warning. */
TEST(a_value_too_many_is_an_error)
{
    refuse("#include <kubeml.h>\nstatic const int at[2] = {1, 2,\n    3};\n"
           "static int model(int x) { return at[x]; }\nKUBEML_FUNCTION(model);\n",
           ERR_INVALID, "lenet.c:3:5: error: excess elements in array initializer");
}

TEST(a_missing_kubeml_function_is_explained)
{
    refuse("int model(int x) { return x; }\n", ERR_INVALID, "add KUBEML_FUNCTION(");
}

TEST(an_undefined_function_is_named_with_its_place)
{
    refuse(
        "#include <kubeml.h>\nint foo(int);\nint model(int x)\n{\n    return kml_relu(foo(x));\n}\n"
        "KUBEML_FUNCTION(model);\n",
        ERR_INVALID, "lenet.c:5: error: undefined reference to 'foo'");
    refuse("#include <kubeml.h>\nint model(int x)\n{\n    return kml_rellu(x);\n}\n"
           "KUBEML_FUNCTION(model);\n",
           ERR_INVALID, "lenet.c:4:12: error: implicit declaration of function 'kml_rellu'");
}

/* Where binutils puts the place changed with its versions. */
TEST(every_linkers_words_are_read)
{
    static const char *const said[] = {
        "/usr/bin/ld: ./lenet.c:5: warning: undefined reference to `foo'\n",
        ("/usr/bin/ld: /tmp/c.o: in function `model':\n"
         "./lenet.c:5:(.text+0x5): warning: undefined reference to `foo'\n"),
        "./lenet.c:5:(.text+0x5): undefined reference to `foo'\n",
    };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        builder_result r = {0};
        err e = ERR_INIT;
        CHECK_OK(builder_text_read(said[i], strlen(said[i]), &r, &e), e);
        CHECK_INT(r.diagnostic_count, 1);
        CHECK_STR(r.diagnostics[0].file, "lenet.c");
        CHECK_INT(r.diagnostics[0].line, 5);
        CHECK_STR(r.diagnostics[0].message, "undefined reference to 'foo'");
        builder_result_free(&r);
    }
}

/* In any encoding, and cut within a character: at each of its bytes. */
TEST(a_compilers_words_are_text)
{
    for (int at = 0; at < 4; at++) {
        err e = ERR_INIT;
        char said[2000];
        snprintf(said, sizeof said, "a.c:1:2: error: #error \"gro\xdf!\"\na.c:3:2: error: %.*s", at,
                 "xxx");
        for (int i = 0; i < 100; i++)
            snprintf(said + strlen(said), sizeof said - strlen(said), "🐢");
        builder_result r = {0};
        CHECK_OK(builder_text_read(said, strlen(said) - 1, &r, &e), e);
        CHECK_INT(r.diagnostic_count, 2);
        CHECK_STR(r.diagnostics[0].message, "#error \"gro?!\"");
        cleanup_json json_t *told = builder_said_json(&r);
        CHECK_INT(json_array_size(json_object_get(told, "diagnostics")), 2);
        CHECK_CONTAINS(json_string_value(json_object_get(told, "compiler_output")), "🐢");
        builder_result_free(&r);
    }
}

TEST(names_and_sizes_are_checked)
{
    builder_config c = config(BUILDER_SANDBOX_BWRAP);
    static const char *const bad[] = {"../x.c", "/etc/x.c", "x.s", "-o.c", ".c", "a b.c", "x.c\n.c",
                                      "$(id).c", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        builder_source s = source(bad[i], good);
        refuse_files(&s, 1, &c, ERR_INVALID, "file name");
    }
    builder_source twice[] = {source("a.c", good), source("a.c", good)};
    refuse_files(twice, 2, &c, ERR_INVALID, "a.c is given twice");
    builder_source head = source("a.h", good);
    refuse_files(&head, 1, &c, ERR_INVALID, "no .c file");
    refuse_files(NULL, 0, &c, ERR_INVALID, "0 source files");
    builder_source large = {"a.c", good, BUILDER_SOURCE_BYTES_MAX + 1};
    refuse_files(&large, 1, &c, ERR_LIMIT, "larger than");
}

TEST(no_sandbox_no_compile)
{
    builder_config c = config(BUILDER_SANDBOX_BWRAP);
    c.bwrap = "/nowhere/bwrap";
    builder_source s = source("lenet.c", good);
    refuse_files(&s, 1, &c, ERR_UNSUPPORTED, "install the package bubblewrap");
}

/* As on Ubuntu 24.04, for whoever is not root. */
TEST(what_keeps_the_sandbox_from_its_namespace_is_named)
{
    char path[400];
    snprintf(path, sizeof path, "%s/bwrap", test_tmp());
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n",
                     f) >= 0);
    CHECK_INT(fclose(f), 0);
    CHECK_INT(chmod(path, 0755), 0);
    builder_config c = config(BUILDER_SANDBOX_BWRAP);
    c.bwrap = path;
    builder_source s = source("lenet.c", good);
    refuse_files(&s, 1, &c, ERR_UNSUPPORTED, "setting up uid map: Permission denied");
    refuse_files(&s, 1, &c, ERR_UNSUPPORTED, "AppArmor");
    refuse_files(&s, 1, &c, ERR_UNSUPPORTED, "docs/guides/functions.md");
}

TEST(no_compiler_is_named)
{
    builder_config c = config(BUILDER_SANDBOX_BWRAP);
    c.compiler = "/nowhere/cc";
    builder_source s = source("lenet.c", good);
    refuse_files(&s, 1, &c, ERR_UNSUPPORTED, "/nowhere/cc");
}

/* The container is the sandbox: the same object, and nothing left behind. */
TEST(without_a_sandbox_on_request)
{
    builder_config c = config(BUILDER_SANDBOX_NONE);
    builder_source s = source("lenet.c", good);
    builder_result boxed, open;
    err e = ERR_INIT;
    CHECK_OK(builder_compile(&s, 1, NULL, &c, &open, &e), e);
    CHECK_OK(compile(good, NULL, &boxed, &e), e);
    CHECK_STR(open.key, boxed.key);
    CHECK_INT(open.object_bytes, boxed.object_bytes);
    CHECK(memcmp(open.object, boxed.object, open.object_bytes) == 0);
    builder_result_free(&open);
    builder_result_free(&boxed);
    char command[400];
    snprintf(command, sizeof command, "test -z \"$(ls -d %s/kubeml-build-* 2>/dev/null)\"",
             test_tmp());
    CHECK_INT(system(command), 0);
}

TEST(folders_have_blanks)
{
    builder_config c = config(BUILDER_SANDBOX_NONE);
    builder_source s = source("lenet.c", good);
    builder_result plain, blank;
    char command[1200], tmp[300], sdk[340];
    err e = ERR_INIT;
    CHECK_OK(builder_compile(&s, 1, NULL, &c, &plain, &e), e);
    snprintf(tmp, sizeof tmp, "%s/a * b", test_tmp());
    snprintf(sdk, sizeof sdk, "%s/sdk  of mine", tmp);
    snprintf(command, sizeof command, "mkdir '%s' && cp -r %s '%s'", tmp, c.include_dir, sdk);
    CHECK_INT(system(command), 0);
    c.include_dir = sdk;
    c.tmp_dir = tmp;
    CHECK_OK(builder_compile(&s, 1, NULL, &c, &blank, &e), e);
    CHECK_INT(blank.object_bytes, plain.object_bytes);
    CHECK(memcmp(blank.object, plain.object, plain.object_bytes) == 0);
    builder_result_free(&plain);
    builder_result_free(&blank);
}

/* ---- hostile --------------------------------------------------------------------------------- */

TEST(the_host_cannot_be_read)
{
    static const char *const paths[] = {"/etc/shadow", "/etc/passwd", "/proc/self/environ",
                                        "/dev/zero", "/dev/stdin", "/root/.profile", "/tmp/x"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char text[200], want[200];
        snprintf(text, sizeof text, "#include \"%s\"\n", paths[i]);
        snprintf(want, sizeof want, "lenet.c:1:10: error: %s: No such file", paths[i]);
        refuse(text, ERR_INVALID, want);
    }
    refuse("__asm__(\".incbin \\\"/etc/shadow\\\"\");\n", ERR_INVALID, "/etc/shadow");
}

/* Twice at every depth: 2^100 includes. */
static const char include_bomb[] = "#if __INCLUDE_LEVEL__ < 100\n"
                                   "#include \"lenet.c\"\n#include \"lenet.c\"\n#endif\n";

TEST(a_file_that_includes_itself)
{
    refuse("#include \"lenet.c\"\n", ERR_INVALID, "include nested depth");
    refuse(include_bomb, ERR_LIMIT, "compiling ");
}

TEST_LIMIT(a_macro_bomb, 40)
{
    char text[4096] = "#define A0 +1+1+1+1+1+1+1+1\n";
    for (int i = 1; i < 12; i++) {
        char line[200];
        snprintf(line, sizeof line, "#define A%d A%d A%d A%d A%d A%d A%d A%d A%d\n", i, i - 1,
                 i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
        strcat(text, line);
    }
    strcat(text, "int x = A11;\n");
    refuse(text, ERR_LIMIT, "compiling ");
}

TEST_LIMIT(gigabytes_of_memory, 40)
{
    refuse("char a[3000000000u] = {1};\nint x[1 << 28] = {[(1 << 28) - 1] = 1};\n", ERR_LIMIT, "");
    /* The compiler's own, with time enough to ask for all of it: 2^40 words. */
    char text[4096] = "#define A0 x x\n";
    for (int i = 1; i < 40; i++)
        sprintf(text + strlen(text), "#define A%d A%d A%d\n", i, i - 1, i - 1);
    strcat(text, "int A39;\n");
    refuse_within((builder_limits){.wall_ms = 30000, .cpu_s = 30, .memory_bytes = 256 << 20}, text,
                  ERR_LIMIT, "compiling needed more than 256 MiB of memory");
}

/* Minutes of compiling, ended by the processor's limit. */
TEST_LIMIT(minutes_of_processor_time, 40)
{
    refuse_within((builder_limits){.wall_ms = 30000, .cpu_s = 1}, include_bomb, ERR_LIMIT,
                  "compiling took more than 1 s of processor time");
}

TEST_LIMIT(an_object_of_gigabytes, 40)
{
    refuse("__asm__(\".data\\n.fill 2000000000, 1, 7\\n\");\n", ERR_LIMIT,
           "the compiled code is larger than 16 MiB");
    refuse("static char a[1ull << 36] = {1};\nchar *p(void) { return a; }\n", ERR_LIMIT,
           "the compiled code is larger than 16 MiB");
}

/* A source of a line made over and over, each time with another number. */
static char *many_lines(const char *line)
{
    size_t len = 0, room = 900000;
    char *text = malloc(room + 100);
    CHECK(text);
    while (len < room)
        len += (size_t)sprintf(text + len, line, len, len);
    return text;
}

TEST_LIMIT(an_error_in_every_line, 40)
{
    char *text = many_lines("int f%zu(void) { return y%zu; }\n");
    refuse(text, ERR_INVALID, "error: ");
    free(text);
}

/* Each static that nobody uses is warned of; what is kept of the words has an end. */
TEST_LIMIT(megabytes_of_messages, 40)
{
    char *text = many_lines("static int v%zu = %zu;\n");
    builder_limits l = {.wall_ms = 30000, .cpu_s = 30, .memory_bytes = 512 << 20};
    builder_result r;
    err e = ERR_INIT;
    CHECK_ERR(compile(text, &l, &r, &e), e, ERR_INVALID, "no function to train");
    CHECK(r.text && strstr(r.text, "warning: "));
    CHECK(strlen(r.text) <= BUILDER_TEXT_BYTES_MAX + 1024);
    builder_result_free(&r);
    free(text);
}

/* The words before it fill all the room there is for them: a warning and where it comes from, for
 * each of some million expansions. */
TEST_LIMIT(a_limit_is_named_after_megabytes_of_messages, 40)
{
    char text[4096] = "#define A0 x += x + (x >> 2) ^ 5;\n";
    for (int i = 1; i < 24; i++)
        sprintf(text + strlen(text), "#define A%d A%d A%d\n", i, i - 1, i - 1);
    strcat(text, "int f(int x) { A23 return x; }\n");
    refuse_within((builder_limits){.wall_ms = 30000, .cpu_s = 2}, text, ERR_LIMIT,
                  "compiling took more than 2 s of processor time");
}

/* Minutes of optimising; the deadline of the wall is what ends it when the processor's does not. */
TEST_LIMIT(the_deadline_kills_the_tree, 40)
{
    refuse_within((builder_limits){.wall_ms = 1000, .cpu_s = 100}, include_bomb, ERR_LIMIT,
                  "longer than 1 s");
    /* Nothing of it runs on: a compiler with our file's name would show in a process list. */
    CHECK_INT(system("test -z \"$(pgrep -P 1 -f 'cc1.*lenet.c')\""), 0);
}

TEST(the_deadline_holds_while_it_writes)
{
    static char *const argv[] = {"/bin/sh", "-c", "while :; do echo x; done >&2", NULL},
                       *const none[] = {NULL};
    process_run r = {.argv = argv, .envp = none, .deadline_ms = clock_deadline_ms(300)};
    buf out, text;
    err e = ERR_INIT;
    buf_init(&out, 64);
    buf_init(&text, 64);
    CHECK_OK(process_run_program(&r, &out, &text, &e), e);
    CHECK(r.timed_out);
    CHECK_INT(text.len, 64);
    buf_free(&out);
    buf_free(&text);
}

/* It holds a pipe, whose end is seen when it is gone. */
TEST(what_a_program_leaves_behind_is_ended)
{
    static char *const argv[] = {"/bin/sh", "-c", "sleep 1000 >&- 2>&- &", NULL},
                       *const path[] = {"PATH=/usr/bin:/bin", NULL};
    int held[2];
    CHECK(pipe2(held, O_CLOEXEC) == 0);
    process_run r = {.argv = argv,
                     .envp = path,
                     .keep = {held[1]},
                     .keep_count = 1,
                     .deadline_ms = clock_deadline_ms(10000)};
    buf out, text;
    err e = ERR_INIT;
    buf_init(&out, 64);
    buf_init(&text, 64);
    CHECK_OK(process_run_program(&r, &out, &text, &e), e);
    CHECK(!r.timed_out);
    CHECK_INT(r.status, 0);
    close(held[1]);
    struct pollfd p = {.fd = held[0], .events = POLLIN};
    CHECK_INT(poll(&p, 1, 5000), 1);
    close(held[0]);
    buf_free(&out);
    buf_free(&text);
}

/* At any moment, also before the sandbox that it starts looks after itself and what it starts. */
TEST(a_program_ends_with_who_runs_it)
{
    int held[2];
    char command[64], byte;
    CHECK(pipe2(held, O_CLOEXEC) == 0);
    snprintf(command, sizeof command, "sleep 1000 & echo x >&%d; exec sleep 1000", held[1]);
    pid_t runner = fork();
    CHECK(runner >= 0);
    if (runner == 0) {
        char *const argv[] = {"/bin/sh", "-c", command, NULL},
                   *const path[] = {"PATH=/usr/bin:/bin", NULL};
        process_run r = {.argv = argv,
                         .envp = path,
                         .keep = {held[1]},
                         .keep_count = 1,
                         .deadline_ms = clock_deadline_ms(30000)};
        buf out, text;
        buf_init(&out, 64);
        buf_init(&text, 64);
        process_run_program(&r, &out, &text, NULL);
        _exit(0);
    }
    close(held[1]);
    CHECK_INT(read(held[0], &byte, 1), 1); /* it runs */
    CHECK_INT(read(held[0], &byte, 1), 1); /* the line's end */
    CHECK_INT(kill(runner, SIGKILL), 0);
    CHECK_INT(waitpid(runner, NULL, 0), runner);
    struct pollfd p = {.fd = held[0], .events = POLLIN};
    CHECK_INT(poll(&p, 1, 10000), 1); /* nobody holds the other end */
    CHECK_INT(read(held[0], &byte, 1), 0);
    close(held[0]);
}

/* The compiler shows the line; what stands in it is not the compiler's. */
TEST(words_of_the_source_are_no_cause)
{
    refuse("#include <stdio.h>\n"
           "void full(void) {\n"
           "    puts(\"No space left on device, File too large, out of memory\")\n"
           "}\n",
           ERR_INVALID, "lenet.c:3");
}
