/* Answers SIOCETHTOOL for devices that a script names, before the kernel is asked: no machine of ours has their driver.
 *
 * Loaded first (LD_PRELOAD) into the exporter. SCOPE_FAKE_ETHTOOL names the script, read at each call; one line each:
 *
 *     DEVICE COUNTER VALUE        eth0 rx_prio3_pause_duration +0:500000@1700000000
 *     DEVICE ! ERRNO              every call about the device fails
 *
 * A value "+BASE:RATE@T0" grows with the clock. The index of every device of the script is 4242.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIOCETHTOOL 0x8946
#define GSTRINGS 0x1b
#define GSTATS 0x1d
#define GSSET_INFO 0x37
#define MAX_COUNTERS 256
#define NAME_BYTES 32

static char names[MAX_COUNTERS][NAME_BYTES];
static uint64_t values[MAX_COUNTERS];

static uint64_t read_value(const char *text) {
  if (*text != '+') return strtoull(text, NULL, 10);
  char *end;
  uint64_t base = strtoull(text + 1, &end, 10);
  double rate = *end == ':' ? strtod(end + 1, &end) : 0, start = *end == '@' ? strtod(end + 1, &end) : 0;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  double grown = rate * ((double)now.tv_sec + (double)now.tv_nsec * 1e-9 - start);
  return base + (uint64_t)(grown > 0 ? grown : 0);
}

/* Fill the tables with a device's counters; -1 for a device that the script does not name, -2 for one that fails. */
static int load(const char *device) {
  const char *path = getenv("SCOPE_FAKE_ETHTOOL");
  FILE *file = path ? fopen(path, "re") : NULL;
  int count = -1;
  char line[256], of[64], name[64], value[64];
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "%63s %63s %63s", of, name, value) != 3 || strcmp(of, device)) continue;
    if (*name == '!') {
      errno = atoi(value);
      count = -2;
      break;
    }
    if (count < 0) count = 0;
    snprintf(names[count], NAME_BYTES, "%.31s", name);
    values[count++] = read_value(value);
  }
  if (file) fclose(file);
  return count;
}

unsigned if_nametoindex(const char *name) {
  if (load(name) != -1) return 4242;
  unsigned (*real)(const char *) = dlsym(RTLD_NEXT, "if_nametoindex");
  return real(name);
}

int ioctl(int descriptor, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  struct ifreq *asked = argument;
  int count = request == SIOCETHTOOL ? load(asked->ifr_name) : -1;
  if (count == -2) return -1;
  if (count == -1) {
    int (*real)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
    return real(descriptor, request, argument);
  }
  uint32_t *data = (uint32_t *)asked->ifr_data;
  if (data[0] == GSSET_INFO) {
    data[4] = (uint32_t)count; /* command, reserved, mask of 8 bytes, sizes */
  } else if (data[0] == GSTRINGS) {
    for (int i = 0; i < count; i++) memcpy((char *)(data + 3) + i * NAME_BYTES, names[i], NAME_BYTES);
  } else if (data[0] == GSTATS) {
    data[1] = (uint32_t)count;
    for (int i = 0; i < count; i++) memcpy((char *)(data + 2) + i * 8, &values[i], 8);
  }
  return 0;
}
