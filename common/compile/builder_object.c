/* builder_object.c: reads an ELF object's dynamic symbols. The object is compiled from a user's
 * sources, so every offset is checked before use. See common/base/process.h. */
#include <elf.h>
#include <stdint.h>
#include <string.h>

#include "common/base/process.h"

typedef struct object {
    const unsigned char *bytes;
    size_t len;
    const Elf64_Shdr *sections;
    size_t section_count;
    const Elf64_Sym *symbols;
    size_t symbol_count;
    const char *names;
    size_t names_len;
    const uint16_t *versions; /* NULL when there are none */
} object;

static const void *range(const object *o, uint64_t offset, uint64_t len, size_t align)
{
    if (offset > o->len || len > o->len - offset || offset % align != 0)
        return NULL;
    return o->bytes + offset;
}

static int machine_here(void)
{
#if defined(__x86_64__)
    return EM_X86_64;
#elif defined(__aarch64__)
    return EM_AARCH64;
#else
    return EM_NONE;
#endif
}

static int read_sections(object *o, err *e)
{
    const Elf64_Ehdr *h = range(o, 0, sizeof *h, 1);
    if (!h || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 || h->e_ident[EI_CLASS] != ELFCLASS64 ||
        h->e_type != ET_DYN || h->e_machine != machine_here() ||
        h->e_shentsize != sizeof(Elf64_Shdr))
        return err_set(e, ERR_INVALID, "the compiler made no shared object of this machine");
    o->section_count = h->e_shnum;
    o->sections = range(o, h->e_shoff, (uint64_t)h->e_shnum * sizeof(Elf64_Shdr), 8);
    return o->sections ? 0 : err_set(e, ERR_INVALID, "the object's section table is broken");
}

static int read_symbols(object *o, err *e)
{
    for (size_t i = 0; i < o->section_count; i++) {
        const Elf64_Shdr *s = &o->sections[i];
        if (s->sh_type == SHT_GNU_versym)
            o->versions = range(o, s->sh_offset, s->sh_size, 2);
        if (s->sh_type != SHT_DYNSYM)
            continue;
        if (s->sh_link >= o->section_count || s->sh_entsize != sizeof(Elf64_Sym))
            return err_set(e, ERR_INVALID, "the object's symbol table is broken");
        const Elf64_Shdr *t = &o->sections[s->sh_link];
        o->symbols = range(o, s->sh_offset, s->sh_size, 8);
        o->symbol_count = s->sh_size / sizeof(Elf64_Sym);
        o->names = range(o, t->sh_offset, t->sh_size, 1);
        o->names_len = t->sh_size;
    }
    if (!o->symbols || !o->names || o->names_len == 0 || o->names[o->names_len - 1] != '\0')
        return err_set(e, ERR_INVALID, "the object's symbol table is broken");
    for (size_t i = 0; i < o->section_count && o->versions; i++)
        if (o->sections[i].sh_type == SHT_GNU_versym &&
            o->sections[i].sh_size / sizeof(uint16_t) < o->symbol_count)
            o->versions = NULL;
    return 0;
}

int builder_object_check(const unsigned char *bytes, size_t len, const char *symbol, err *e)
{
    object o = {.bytes = bytes, .len = len};
    if (read_sections(&o, e) != 0 || read_symbols(&o, e) != 0)
        return -1;
    bool found = false;
    for (size_t i = 1; i < o.symbol_count; i++) {
        const Elf64_Sym *s = &o.symbols[i];
        if (s->st_name >= o.names_len)
            return err_set(e, ERR_INVALID, "the object's symbol table is broken");
        const char *name = o.names + s->st_name;
        if (s->st_shndx != SHN_UNDEF) {
            found |= strcmp(name, symbol) == 0;
            continue;
        }
        bool versioned = o.versions && (o.versions[i] & 0x7fff) > VER_NDX_GLOBAL;
        if (ELF64_ST_BIND(s->st_info) != STB_WEAK && !versioned && strncmp(name, "kml_", 4) != 0)
            return err_set(e, ERR_INVALID, "undefined reference to '%.100s'", name);
    }
    if (!found)
        return err_set(e, ERR_INVALID,
                       "the code defines no function to train: add KUBEML_FUNCTION(.model = ...); "
                       "after the model (symbol '%s' is missing)", symbol);
    return 0;
}
