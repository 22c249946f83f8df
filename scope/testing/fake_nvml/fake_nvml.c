/* A stand-in for libnvidia-ml.so.1 that answers from a text file, so that the real bindings and everything above them
 * run without a GPU.
 *
 * The file is named by SCOPE_FAKE_NVML and read again whenever it changes. One answer a line:
 *
 *     KEY CODE [VALUE ...]        g0.nvmlDeviceGetPowerUsage 0 350000
 *     g0.field.138.3 0 3 +1000:500@1700000000
 *
 * KEY is device.function[.argument ...] or device.field.ID.SCOPE (then the first value is NVML's value type). A missing
 * key answers NOT_SUPPORTED. "DEVICE.all CODE" answers every call of that device (15: the GPU is lost). CODE "hang"
 * never returns while it stands in the file, "crash" ends the process, and CODE "0:700" answers after 700 ms. A value "+BASE:RATE@T0" or "+BASE:RATE@T0%WRAP" grows with the clock.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_VALUES 8
#define TABLE_SIZE 65536
#define MAX_DEVICES 256
#define SUCCESS 0
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define NOT_FOUND 6
#define TIMEOUT 10
#define VERSION_MISMATCH 25
#define HANG (-1)
#define CRASH (-2)

typedef struct {
  char *key;
  int code;
  int delay_ms;
  int count;
  char *values[MAX_VALUES];
} answer_t;

typedef struct {
  char name[32];
} device_t;

static answer_t *table[TABLE_SIZE];
static struct timespec loaded;
static off_t loaded_size;
static ino_t loaded_inode;
static device_t devices[MAX_DEVICES];
static int device_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long next_event = 1;

static unsigned long hash(const char *text) {
  unsigned long h = 1469598103934665603UL;
  for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211UL;
  return h % TABLE_SIZE;
}

static answer_t *find_loaded(const char *key) {
  for (unsigned long i = hash(key); table[i]; i = (i + 1) % TABLE_SIZE)
    if (!strcmp(table[i]->key, key)) return table[i];
  return NULL;
}

static void forget(void) {
  for (int i = 0; i < TABLE_SIZE; i++)
    if (table[i]) {
      for (int v = 0; v < table[i]->count; v++) free(table[i]->values[v]);
      free(table[i]->key);
      free(table[i]);
      table[i] = NULL;
    }
}

static void add_line(char *line) {
  char *rest = NULL, *key = strtok_r(line, " \t\n", &rest), *code = strtok_r(NULL, " \t\n", &rest);
  if (!key || !code || *key == '#') return;
  answer_t *answer = calloc(1, sizeof *answer);
  answer->key = strdup(key);
  answer->code = !strcmp(code, "hang") ? HANG : !strcmp(code, "crash") ? CRASH : atoi(code);
  const char *delay = strchr(code, ':');
  answer->delay_ms = delay ? atoi(delay + 1) : 0;
  for (char *value; answer->count < MAX_VALUES && (value = strtok_r(NULL, " \t\n", &rest));) {
    for (char *c = value; *c; c++)

      if (*c == '~') *c = ' '; /* a space inside a name */
    answer->values[answer->count++] = strdup(value);
  }
  unsigned long i = hash(key);
  while (table[i]) i = (i + 1) % TABLE_SIZE;
  table[i] = answer;
}

static void load(void) {
  static struct timespec checked;
  const char *path = getenv("SCOPE_FAKE_NVML");
  struct timespec now;
  struct stat status;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (checked.tv_sec && (now.tv_sec - checked.tv_sec) * 1000000000L + now.tv_nsec - checked.tv_nsec < 1000000L) return;
  checked = now;
  if (!path || stat(path, &status)) return;
  if (status.st_mtim.tv_sec == loaded.tv_sec && status.st_mtim.tv_nsec == loaded.tv_nsec &&
      status.st_size == loaded_size && status.st_ino == loaded_inode)
    return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  loaded = status.st_mtim;
  loaded_size = status.st_size;
  loaded_inode = status.st_ino;
  forget();
  char line[1024];
  while (fgets(line, sizeof line, file)) add_line(line);
  fclose(file);
}

static answer_t *find(const char *device, const char *format, ...) {
  char key[192];
  int used = snprintf(key, sizeof key, "%s.", device);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(key + used, sizeof key - (size_t)used, format, arguments);
  va_end(arguments);
  for (;;) {
    pthread_mutex_lock(&lock);
    load();
    char all[64];
    snprintf(all, sizeof all, "%s.all", device);
    answer_t *answer = find_loaded(all);
    if (!answer) answer = find_loaded(key);
    pthread_mutex_unlock(&lock);
    if (answer && answer->delay_ms) usleep((useconds_t)answer->delay_ms * 1000);
    if (answer && answer->code == CRASH) raise(SIGSEGV);
    if (!answer || answer->code != HANG) return answer;
    usleep(20000);
  }
}

static double number(const answer_t *answer, int i) {
  if (i >= answer->count) return 0;
  const char *text = answer->values[i];
  if (*text != '+') return strtod(text, NULL);
  return 0;
}

static unsigned long long integer(const answer_t *answer, int i) {
  if (i >= answer->count) return 0;
  char *text = answer->values[i];
  if (*text != '+') return *text == '-' ? (unsigned long long)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
  char *end;
  unsigned long long base = strtoull(text + 1, &end, 10), wrap = 0;
  double rate = *end == ':' ? strtod(end + 1, &end) : 0, start = *end == '@' ? strtod(end + 1, &end) : 0;
  if (*end == '%') wrap = strtoull(end + 1, NULL, 10);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  double grown = rate * ((double)now.tv_sec + (double)now.tv_nsec * 1e-9 - start);
  unsigned long long value = base + (unsigned long long)(grown > 0 ? grown : 0);
  return wrap ? value % wrap : value;
}

static int copy(const answer_t *answer, int i, char *to, unsigned size) {
  if (i >= answer->count) return NOT_SUPPORTED;
  if (strlen(answer->values[i]) >= size) return INSUFFICIENT_SIZE;
  strcpy(to, answer->values[i]);
  return SUCCESS;
}

static void *device_named(const char *name) {
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < device_count && strcmp(devices[i].name, name)) i++;
  if (i == device_count && device_count < MAX_DEVICES) snprintf(devices[device_count++].name, 32, "%s", name);
  pthread_mutex_unlock(&lock);
  return &devices[i];
}

static const char *name_of(void *device) { return device ? ((device_t *)device)->name : "sys"; }

#define ANSWER(device, ...)                              \
  answer_t *answer = find(name_of(device), __VA_ARGS__); \
  if (!answer) return NOT_SUPPORTED;                     \
  if (answer->code) return answer->code

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  answer_t *answer = find("sys", "nvmlInit");
  return answer ? answer->code : SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code ? "scripted error" : "success"; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
  ANSWER(NULL, "nvmlSystemGetDriverVersion");
  return copy(answer, 0, to, size);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  ANSWER(NULL, "nvmlDeviceGetCount");
  *count = (unsigned)integer(answer, 0);
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  char name[32];
  snprintf(name, sizeof name, "g%u", index);
  *device = device_named(name);
  answer_t *all = find(name, "nvmlDeviceGetHandleByIndex");
  return all ? all->code : SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
  ANSWER(device, "nvmlDeviceGetUUID");
  return copy(answer, 0, to, size);
}

int nvmlDeviceGetName(void *device, char *to, unsigned size) {
  ANSWER(device, "nvmlDeviceGetName");
  return copy(answer, 0, to, size);
}

int nvmlDeviceGetSerial(void *device, char *to, unsigned size) {
  ANSWER(device, "nvmlDeviceGetSerial");
  return copy(answer, 0, to, size);
}

typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} pci_info_t;

int nvmlDeviceGetPciInfo_v3(void *device, pci_info_t *info) {
  ANSWER(device, "nvmlDeviceGetPciInfo");
  memset(info, 0, sizeof *info);
  return copy(answer, 0, info->bus_id, sizeof info->bus_id);
}

typedef struct {
  unsigned field, scope;
  long long timestamp_us, latency_us;
  unsigned type, code;
  union {
    double d;
    unsigned ui;
    unsigned long long ull;
    long long sll;
    int si;
    unsigned short us;
  } value;
} field_value_t;

int nvmlDeviceGetFieldValues(void *device, int count, field_value_t *values) {
  answer_t *whole = find(name_of(device), "nvmlDeviceGetFieldValues");
  if (whole && whole->code) return whole->code;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  for (int i = 0; i < count; i++) {
    answer_t *answer = find(name_of(device), "field.%u.%u", values[i].field, values[i].scope);
    values[i].timestamp_us = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    values[i].latency_us = 1;
    /* What an unchecked reader would take for a value. */
    values[i].value.ull = 0xDEADBEEFDEADBEEFULL;
    values[i].code = answer ? (unsigned)answer->code : NOT_SUPPORTED;
    if (!answer || answer->code) continue;
    values[i].type = (unsigned)integer(answer, 0);
    switch (values[i].type) {
      case 0: values[i].value.d = number(answer, 1); break;
      case 1: values[i].value.ui = (unsigned)integer(answer, 1); break;
      case 4: values[i].value.sll = (long long)integer(answer, 1); break;
      case 5: values[i].value.si = (int)integer(answer, 1); break;
      case 6: values[i].value.us = (unsigned short)integer(answer, 1); break;
      default: values[i].value.ull = integer(answer, 1);
    }
  }
  return SUCCESS;
}

#define UNSIGNED_CALL(function)                    \
  int function(void *device, unsigned *to) {       \
    ANSWER(device, #function);                     \
    *to = (unsigned)integer(answer, 0);            \
    return SUCCESS;                                \
  }

UNSIGNED_CALL(nvmlDeviceGetPowerUsage)
UNSIGNED_CALL(nvmlDeviceGetEnforcedPowerLimit)
UNSIGNED_CALL(nvmlDeviceGetCurrPcieLinkGeneration)
UNSIGNED_CALL(nvmlDeviceGetMaxPcieLinkGeneration)
UNSIGNED_CALL(nvmlDeviceGetCurrPcieLinkWidth)
UNSIGNED_CALL(nvmlDeviceGetMaxPcieLinkWidth)
UNSIGNED_CALL(nvmlDeviceGetMaxMigDeviceCount)
UNSIGNED_CALL(nvmlDeviceGetGpuInstanceId)
UNSIGNED_CALL(nvmlDeviceGetComputeInstanceId)

int nvmlDeviceGetUtilizationRates(void *device, unsigned *to) {
  ANSWER(device, "nvmlDeviceGetUtilizationRates");
  to[0] = (unsigned)integer(answer, 0);
  to[1] = (unsigned)integer(answer, 1);
  return SUCCESS;
}

#define VIDEO_CALL(function)                                    \
  int function(void *device, unsigned *busy, unsigned *period) { \
    ANSWER(device, #function);                                   \
    *busy = (unsigned)integer(answer, 0);                        \
    *period = (unsigned)integer(answer, 1);                      \
    return SUCCESS;                                              \
  }

VIDEO_CALL(nvmlDeviceGetEncoderUtilization)
VIDEO_CALL(nvmlDeviceGetDecoderUtilization)

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *to) {
  ANSWER(device, "nvmlDeviceGetMemoryInfo");
  for (int i = 0; i < 3; i++) to[i] = integer(answer, i); /* total, free, used */
  return SUCCESS;
}

typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} memory_v2_t;

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *to) {
  ANSWER(device, "nvmlDeviceGetMemoryInfo_v2");
  to->total = integer(answer, 0);
  to->free = integer(answer, 1);
  to->used = integer(answer, 2);
  to->reserved = integer(answer, 3);
  return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *to) {
  ANSWER(device, "nvmlDeviceGetClockInfo.%u", kind);
  *to = (unsigned)integer(answer, 0);
  return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *to) {
  ANSWER(device, "nvmlDeviceGetTemperature.%u", sensor);
  *to = (unsigned)integer(answer, 0);
  return SUCCESS;
}

int nvmlDeviceGetMarginTemperature(void *device, int *to) {
  ANSWER(device, "nvmlDeviceGetMarginTemperature");
  to[1] = (int)integer(answer, 0); /* to[0] is the version */
  return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *to) {
  ANSWER(device, "nvmlDeviceGetCurrentClocksEventReasons");
  *to = integer(answer, 0);
  return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
  ANSWER(device, "nvmlDeviceGetMigMode");
  *current = *pending = (unsigned)integer(answer, 0);
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance) {
  char name[64];
  snprintf(name, sizeof name, "%s.m%u", name_of(device), index);
  answer_t *answer = find(name, "nvmlDeviceGetUUID");
  if (!answer) return NOT_FOUND;
  *instance = device_named(name);
  return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(void *device, unsigned *to) {
  ANSWER(device, "nvmlDeviceGetAttributes_v2");
  /* multiprocessorCount, 4 engine counts, ofa, gpuInstanceSliceCount, computeInstanceSliceCount, memorySizeMB */
  to[5] = (unsigned)integer(answer, 0);
  to[6] = (unsigned)integer(answer, 0);
  to[7] = (unsigned)integer(answer, 1);
  return SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(void *device, unsigned kind, unsigned scope, unsigned place, unsigned long long *to) {
  ANSWER(device, "nvmlDeviceGetMemoryErrorCounter.%u.%u.%u", kind, scope, place);
  *to = integer(answer, 0);
  return SUCCESS;
}

typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} process_t;

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *to) {
  /* INSUFFICIENT_SIZE comes with how many there are, which may be anything. */
  answer_t *many = find(name_of(device), "nvmlDeviceGetComputeRunningProcesses");
  if (many && many->code == INSUFFICIENT_SIZE) *count = (unsigned)integer(many, 0);
  ANSWER(device, "nvmlDeviceGetComputeRunningProcesses");
  unsigned room = *count;
  *count = (unsigned)answer->count;
  if (room < *count) return INSUFFICIENT_SIZE;
  for (int i = 0; i < answer->count; i++) {
    memset(&to[i], 0, sizeof to[i]);
    to[i].pid = (unsigned)integer(answer, i);
  }
  return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *to) {
  ANSWER(device, "nvmlDeviceGetNvLinkState.%u", link);
  *to = (unsigned)integer(answer, 0);
  return SUCCESS;
}

int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, unsigned counter, unsigned long long *to) {
  ANSWER(device, "nvmlDeviceGetNvLinkErrorCounter.%u.%u", link, counter);
  *to = integer(answer, 0);
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_info_t *info) {
  ANSWER(device, "nvmlDeviceGetNvLinkRemotePciInfo.%u", link);
  memset(info, 0, sizeof *info);
  return copy(answer, 0, info->bus_id, sizeof info->bus_id);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *to) {
  ANSWER(device, "nvmlDeviceGetNvLinkRemoteDeviceType.%u", link);
  *to = (unsigned)integer(answer, 0);
  return SUCCESS;
}

typedef struct {
  unsigned version;
  unsigned char cluster[16];
  unsigned status, clique, state, health; /* form 2 ends here */
  unsigned char summary;
} fabric_t;

int nvmlDeviceGetGpuFabricInfoV(void *device, fabric_t *to) {
  /* The newest form that the driver has, then state, status, clique, health mask, summary, last byte of the cluster. */
  ANSWER(device, "nvmlDeviceGetGpuFabricInfoV");
  unsigned form = to->version >> 24, size = to->version & 0xFFFFFF;
  if (form > integer(answer, 0) || size != (form == 2 ? offsetof(fabric_t, summary) : sizeof(fabric_t)))
    return VERSION_MISMATCH;
  memset(to->cluster, 0, sizeof to->cluster);
  to->cluster[15] = (unsigned char)integer(answer, 6);
  to->state = (unsigned)integer(answer, 1);
  to->status = (unsigned)integer(answer, 2);
  to->clique = (unsigned)integer(answer, 3);
  to->health = (unsigned)integer(answer, 4);
  if (form > 2) to->summary = (unsigned char)integer(answer, 5);
  return SUCCESS;
}

typedef struct {
  unsigned version, supported;
} gpm_support_t;

typedef struct {
  char device[32];
  int instance;
} gpm_sample_t;

typedef struct {
  unsigned metric, code;
  double value;
  char *names[3];
} gpm_metric_t;

typedef struct {
  unsigned version, count;
  gpm_sample_t *earlier, *later;
  gpm_metric_t metrics[1];
} gpm_request_t;

int nvmlGpmQueryDeviceSupport(void *device, gpm_support_t *to) {
  ANSWER(device, "nvmlGpmQueryDeviceSupport");
  to->supported = (unsigned)integer(answer, 0);
  return SUCCESS;
}

int nvmlGpmSampleAlloc(gpm_sample_t **sample) {
  *sample = calloc(1, sizeof **sample);
  return SUCCESS;
}

int nvmlGpmSampleFree(gpm_sample_t *sample) {
  free(sample);
  return SUCCESS;
}

int nvmlGpmMigSampleGet(void *device, unsigned instance, gpm_sample_t *sample) {
  snprintf(sample->device, sizeof sample->device, "%s", name_of(device));
  sample->instance = (int)instance;
  answer_t *answer = find(name_of(device), "nvmlGpmSampleGet");
  return answer ? answer->code : SUCCESS;
}

int nvmlGpmSampleGet(void *device, gpm_sample_t *sample) {
  int code = nvmlGpmMigSampleGet(device, 0, sample);
  sample->instance = -1;
  return code;
}

int nvmlGpmMetricsGet(gpm_request_t *request) {
  for (unsigned i = 0; i < request->count; i++) {
    gpm_metric_t *metric = &request->metrics[i];
    answer_t *answer = request->later->instance < 0
                           ? find(request->later->device, "gpm.%u", metric->metric)
                           : find(request->later->device, "gpm.%u.%d", metric->metric, request->later->instance);
    metric->code = answer ? (unsigned)answer->code : NOT_SUPPORTED;
    metric->value = answer && !answer->code ? number(answer, 0) : 1e300;
  }
  return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
  answer_t *answer = find("sys", "nvmlEventSetCreate");
  if (answer && answer->code) return answer->code;
  answer = find("event", "count");
  next_event = answer ? (long)integer(answer, 0) + 1 : 1;
  *set = &next_event;
  return SUCCESS;
}
int nvmlEventSetFree(void *set) {
  (void)set;
  return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) {
  (void)kinds;
  (void)set;
  answer_t *answer = find(name_of(device), "nvmlDeviceRegisterEvents");
  return answer ? answer->code : SUCCESS;
}

typedef struct {
  void *device;
  unsigned long long kind, data;
  unsigned gpu_instance, compute_instance;
} event_t;

int nvmlEventSetWait_v2(void *set, event_t *to, unsigned timeout_ms) {
  (void)set;
  (void)timeout_ms;
  answer_t *answer = find("event", "%ld", next_event);
  if (!answer) return TIMEOUT;
  if (answer->code) return answer->code;
  next_event++;
  to->device = device_named(answer->values[0]);
  to->kind = 8;
  to->data = integer(answer, 1);
  return SUCCESS;
}
