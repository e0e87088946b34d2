/* Stands in for a libfabric that is too old: every symbol that is looked up, and version 1.9. */
#include <stdint.h>

uint32_t fi_version(void) { return 1u << 16 | 9; }
int fi_getinfo(void) { return -1; }
void fi_freeinfo(void) {}
void *fi_dupinfo(void) { return 0; }
int fi_fabric(void) { return -1; }
const char *fi_strerror(void) { return "old"; }
char *fi_tostr(void) { return 0; }
char *fi_tostr_r(void) { return 0; }
