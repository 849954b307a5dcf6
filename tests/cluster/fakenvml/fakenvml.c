/* A libnvidia-ml.so.1 for tests: answers nvidia-ml-py from a scenario file instead of a driver.
 *
 * Build:  gcc -shared -fPIC -O1 -Wall -Wextra -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fakenvml.c -lpthread
 * Use:    LD_LIBRARY_PATH=<folder> FAKE_NVML_SCENARIO=<file.json> python ...
 *
 * The file is read again whenever it changes (write a new one and rename it over), so that a test
 * moves memory, processes, MIG instances and faults while the caller runs. Only what the device
 * plugin calls is here; everything else is absent, which nvidia-ml-py reports as FunctionNotFound.
 *
 * {"driver": "580.95.05", "epoch": 1, "error": "", "delay_ms": {"nvmlDeviceGetName": 5000, "*": 0},
 *  "gpus": [{"uuid": "GPU-..", "name": "..", "memory_mib": 81920, "reserved_mib": 512, "minor": 0,
 *            "bus": "00000000:07:00.0", "numa": 0, "error": "", "used_mib": 0, "utilization": [0, 0],
 *            "gpm": [40.0, 25.0],
 *            "processes": [{"pid": 1, "mib": 10, "sm": 5, "gi": 1, "name": "python", "cgroup": "/.."}], "links": [1],
 *            "ecc_double": 0, "remap_pending": 0, "remap_failure": 0, "recovery": 0, "limits": 0,
 *            "mig": {"mode": 1, "instances": [{"id": 1, "uuid": "MIG-..", "profile": "3g", "start": 4}]}}],
 *  "events": [{"seq": 1, "gpu": 0, "xid": 79, "gi": 1}]}
 *
 * `gpm` are the SMs at work and the memory bandwidth used, in percent; a card without it has no GPM.
 * `limits` per cgroup: 0 none (before r615), 1 kept by the driver, 2 by the kernel, 3 not for us.
 * `error` names an NVML code ("GPU_IS_LOST") that all calls, or all calls on that GPU, return.
 * A raised `epoch` is a driver restart: calls fail until the caller initialises again.
 * An event is delivered once to a set made before it appeared; a set skips those it was born with.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef unsigned int u32;
typedef unsigned long long u64;
#define API __attribute__((visibility("default")))
#define MIB (1024ULL * 1024ULL)
#define NONE 0xFFFFFFFFu
#define UNLIMITED 0xFFFFFFFFFFFFFFFFULL
enum { GPUS = 32, PROCESSES = 64, INSTANCES = 8, EVENTS = 256, LIMITS = 256 };
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, MEMORY = 20, VERSION = 25 };

/* ------------------------------------------------------------------ JSON */
struct json { char kind; char *key, *text; double number; struct json *child, *next; };
static char *in;
static void space(void) { while (*in && strchr(" \t\r\n,:", *in)) in++; }
static char *string(void) {
  char *start = ++in;
  while (*in && *in != '"') in++;
  char *end = in;
  if (*in) in++;
  return strndup(start, (size_t)(end - start)); /* no escapes: names and identifiers only */
}
static struct json *value(void) {
  struct json *node = calloc(1, sizeof *node), **tail = &node->child;
  space();
  node->kind = *in;
  if (*in == '"') { node->text = string(); return node; }
  if (*in == '{' || *in == '[') {
    char close = *in++ == '{' ? '}' : ']';
    for (space(); *in && *in != close; space()) {
      char *key = close == '}' ? string() : NULL;
      *tail = value();
      (*tail)->key = key;
      tail = &(*tail)->next;
    }
    if (*in) in++;
    return node;
  }
  if (!strncmp(in, "true", 4)) { node->number = 1; in += 4; return node; }
  if (!strncmp(in, "false", 5)) { in += 5; return node; }
  if (!strncmp(in, "null", 4)) { in += 4; return node; }
  char *end;
  node->number = strtod(in, &end);
  in = end > in ? end : in + 1;
  return node;
}
static void drop(struct json *node) {
  while (node) {
    struct json *next = node->next;
    drop(node->child);
    free(node->key); free(node->text); free(node);
    node = next;
  }
}
static struct json *get(const struct json *node, const char *key) {
  for (struct json *c = node ? node->child : NULL; c; c = c->next) if (c->key && !strcmp(c->key, key)) return c;
  return NULL;
}
static double num(const struct json *node, const char *key, double otherwise) {
  struct json *found = get(node, key);
  return found ? found->number : otherwise;
}
static void text(char *into, size_t size, const struct json *node, const char *key, const char *otherwise) {
  struct json *found = get(node, key);
  snprintf(into, size, "%s", found && found->text ? found->text : otherwise);
}

/* ------------------------------------------------------------------ scenario */
static const struct { const char *name; int code; } CODES[] = {
  {"UNINITIALIZED", 1}, {"NOT_SUPPORTED", 3}, {"NO_PERMISSION", 4}, {"NOT_FOUND", 6}, {"DRIVER_NOT_LOADED", 9}, {"TIMEOUT", 10},
  {"GPU_IS_LOST", 15}, {"RESET_REQUIRED", 16}, {"LIB_RM_VERSION_MISMATCH", 18}, {"UNKNOWN", 999}};
static int code(const char *name) {
  for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++) if (!strcmp(CODES[i].name, name)) return CODES[i].code;
  return *name ? 999 : OK;
}

/* Instance profiles of the 80 GB cards with 7 compute and 8 memory slices; starts as a bit set. */
static const struct profile { const char *name; u32 index, id, compute, size, starts, eighths; } PROFILES[] = {
  {"1g", 0, 19, 1, 1, 0x7F, 1}, {"2g", 1, 14, 2, 2, 0x15, 2}, {"3g", 2, 9, 3, 4, 0x11, 4},
  {"4g", 3, 5, 4, 4, 0x01, 4}, {"7g", 4, 0, 7, 8, 0x01, 8}, {"1g2", 9, 15, 1, 2, 0x55, 2}};
enum { NPROFILES = sizeof PROFILES / sizeof *PROFILES };
static const struct profile *by_id(u32 id) {
  for (int i = 0; i < NPROFILES; i++) if (PROFILES[i].id == id) return &PROFILES[i];
  return NULL;
}

struct process { u32 pid, sm, gi; u64 bytes; char name[64], cgroup[512]; };
struct instance { u32 id, start; const struct profile *profile; char uuid[96]; };
struct gpu {
  char uuid[96], name[96], bus[32];
  u64 total, reserved, used, ecc_double;
  u32 minor, busy, busy_memory, links, mig, remap_pending, remap_failure, recovery, limits, nprocesses, ninstances;
  int error, numa, gpm;
  double sm, dram;
  struct process processes[PROCESSES];
  struct instance instances[INSTANCES];
};
struct event { u32 seq, gpu, xid, gi; };
static struct {
  char driver[80];
  u32 epoch, ngpus, nevents;
  int error;
  struct gpu gpus[GPUS];
  struct event events[EVENTS];
  struct json *delays;
} now;
static struct limit { long gpu; u64 soft, hard; char scope[512]; } limits[LIMITS];
static u32 nlimits;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static u32 initialised; /* epoch under which the caller initialised; 0 is not at all */
static int users;       /* initialisations less shutdowns, which the real library counts, too */
static char handles[GPUS], mig_handles[GPUS][INSTANCES], gi_handles[GPUS][INSTANCES];

static void read_gpu(struct gpu *gpu, const struct json *node, u32 index) {
  char name[32], bus[32];
  snprintf(bus, sizeof bus, "00000000:%02X:00.0", index + 1);
  text(gpu->uuid, sizeof gpu->uuid, node, "uuid", "GPU-?");
  text(gpu->name, sizeof gpu->name, node, "name", "NVIDIA A100-SXM4-80GB");
  text(gpu->bus, sizeof gpu->bus, node, "bus", bus);
  text(name, sizeof name, node, "error", "");
  gpu->error = code(name);
  gpu->total = (u64)num(node, "memory_mib", 81920) * MIB;
  gpu->reserved = (u64)num(node, "reserved_mib", 512) * MIB;
  gpu->used = (u64)num(node, "used_mib", 0) * MIB;
  gpu->minor = (u32)num(node, "minor", index);
  gpu->numa = (int)num(node, "numa", -1);
  gpu->ecc_double = (u64)num(node, "ecc_double", 0);
  gpu->remap_pending = (u32)num(node, "remap_pending", 0);
  gpu->remap_failure = (u32)num(node, "remap_failure", 0);
  gpu->recovery = (u32)num(node, "recovery", 0);
  gpu->limits = (u32)num(node, "limits", 0);
  struct json *list = get(node, "utilization");
  if (list && list->child) {
    gpu->busy = (u32)list->child->number;
    if (list->child->next) gpu->busy_memory = (u32)list->child->next->number;
  }
  if ((list = get(node, "gpm")) && list->child && list->child->next) {
    gpu->gpm = 1;
    gpu->sm = list->child->number;
    gpu->dram = list->child->next->number;
  }
  if ((list = get(node, "links")))
    for (struct json *c = list->child; c; c = c->next) gpu->links |= 1u << (u32)c->number;
  if ((list = get(node, "processes")))
    for (struct json *c = list->child; c && gpu->nprocesses < PROCESSES; c = c->next) {
      struct process *p = &gpu->processes[gpu->nprocesses++];
      p->pid = (u32)num(c, "pid", 1);
      p->sm = (u32)num(c, "sm", 0);
      p->gi = (u32)num(c, "gi", NONE);
      p->bytes = (u64)num(c, "mib", 0) * MIB;
      text(p->name, sizeof p->name, c, "name", "");
      text(p->cgroup, sizeof p->cgroup, c, "cgroup", "");
      gpu->used += p->bytes;
    }
  struct json *mig = get(node, "mig");
  gpu->mig = mig ? (u32)num(mig, "mode", 1) : 0;
  if (mig && (list = get(mig, "instances")))
    for (struct json *c = list->child; c && gpu->ninstances < INSTANCES; c = c->next) {
      struct instance *i = &gpu->instances[gpu->ninstances++];
      i->id = (u32)num(c, "id", gpu->ninstances);
      i->start = (u32)num(c, "start", 0);
      text(i->uuid, sizeof i->uuid, c, "uuid", "MIG-?");
      text(name, sizeof name, c, "profile", "1g");
      i->profile = &PROFILES[0];
      for (int k = 0; k < NPROFILES; k++) if (!strcmp(PROFILES[k].name, name)) i->profile = &PROFILES[k];
    }
}

/* With the lock held: take over the file if it is another one than before. */
static void refresh(void) {
  static struct stat seen;
  struct stat found;
  const char *path = getenv("FAKE_NVML_SCENARIO");
  if (!path || stat(path, &found)) return;
  if (found.st_ino == seen.st_ino && found.st_size == seen.st_size &&
      found.st_mtim.tv_sec == seen.st_mtim.tv_sec && found.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  char *content = calloc(1, (size_t)found.st_size + 1), name[64];
  size_t length = fread(content, 1, (size_t)found.st_size, file);
  fclose(file);
  content[length] = 0;
  in = content;
  struct json *root = value();
  drop(now.delays);
  memset(&now, 0, sizeof now);
  text(now.driver, sizeof now.driver, root, "driver", "580.95.05");
  text(name, sizeof name, root, "error", "");
  now.error = code(name);
  now.epoch = (u32)num(root, "epoch", 1);
  static u32 epoch;
  if (epoch != now.epoch) nlimits = 0;
  epoch = now.epoch;
  struct json *list = get(root, "gpus");
  for (struct json *c = list ? list->child : NULL; c && now.ngpus < GPUS; c = c->next, now.ngpus++) read_gpu(&now.gpus[now.ngpus], c, now.ngpus);
  list = get(root, "events");
  for (struct json *c = list ? list->child : NULL; c && now.nevents < EVENTS; c = c->next)
    now.events[now.nevents++] = (struct event){(u32)num(c, "seq", 1), (u32)num(c, "gpu", 0), (u32)num(c, "xid", 79), (u32)num(c, "gi", NONE)};
  if ((list = get(root, "delay_ms"))) {
    now.delays = calloc(1, sizeof *now.delays);
    now.delays->child = list->child;
    list->child = NULL;
  }
  drop(root);
  free(content);
  seen = found;
}

static void nap(void) { nanosleep(&(struct timespec){0, 10000000}, NULL); }

/* Wait as the scenario says, or until it says otherwise; returns with the lock held. */
static int enter(const char *function) {
  for (u64 waited = 0;; waited += 10) {
    pthread_mutex_lock(&lock);
    refresh();
    if (waited >= (u64)num(now.delays, function, num(now.delays, "*", 0))) break;
    pthread_mutex_unlock(&lock);
    nap();
  }
  if (now.error) return now.error;
  return initialised == now.epoch ? OK : UNINITIALIZED;
}
static int leave(int result) { pthread_mutex_unlock(&lock); return result; }

static struct gpu *find(const void *handle) {
  long index = (const char *)handle - handles;
  if (index >= 0 && index < (long)now.ngpus) return &now.gpus[index];
  return NULL;
}
static struct instance *find_mig(const void *handle, const char *base, struct gpu **parent) {
  long index = (const char *)handle - base;
  if (index < 0 || index >= GPUS * INSTANCES) return NULL;
  *parent = &now.gpus[index / INSTANCES];
  if (index / INSTANCES >= (long)now.ngpus || index % INSTANCES >= (long)(*parent)->ninstances) return NULL;
  return &(*parent)->instances[index % INSTANCES];
}
#define ENTER() do { int result_ = enter(__func__); if (result_) return leave(result_); } while (0)
#define GPU(handle) ENTER(); struct gpu *gpu = find(handle); \
  if (!gpu) return leave(INVALID); \
  if (gpu->error) return leave(gpu->error)
/* A MIG device answers for itself in `instance`, and its parent stands in `gpu`. */
#define DEVICE(handle) ENTER(); struct gpu *gpu = find(handle); struct instance *instance = NULL; \
  if (!gpu && !(instance = find_mig(handle, &mig_handles[0][0], &gpu))) return leave(INVALID); \
  if (gpu->error) return leave(gpu->error)

/* ------------------------------------------------------------------ library */
API int nvmlInitWithFlags(u32 flags) {
  (void)flags;
  int result = enter(__func__);
  if (result != UNINITIALIZED && result != OK) return leave(result);
  if (!getenv("FAKE_NVML_SCENARIO")) return leave(9);
  users = initialised == now.epoch ? users + 1 : 1;
  initialised = now.epoch;
  return leave(OK);
}
API int nvmlShutdown(void) {
  int result = enter(__func__);
  if (--users <= 0) initialised = 0;
  return leave(result);
}
API const char *nvmlErrorString(int result) {
  for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++) if (CODES[i].code == result) return CODES[i].name;
  return result ? "other error" : "success";
}
API int nvmlSystemGetDriverVersion(char *into, u32 size) { ENTER(); snprintf(into, size, "%s", now.driver); return leave(OK); }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER(); *version = 13000; return leave(OK); }
API int nvmlSystemGetProcessName(u32 pid, char *into, u32 size) {
  ENTER();
  for (u32 g = 0; g < now.ngpus; g++)
    for (u32 p = 0; p < now.gpus[g].nprocesses; p++)
      if (now.gpus[g].processes[p].pid == pid && *now.gpus[g].processes[p].name) {
        snprintf(into, size, "%s", now.gpus[g].processes[p].name);
        return leave(OK);
      }
  return leave(NOT_FOUND);
}
API int nvmlDeviceGetCount_v2(u32 *count) { ENTER(); *count = now.ngpus; return leave(OK); }
API int nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
  ENTER();
  if (index >= now.ngpus) return leave(INVALID);
  *handle = &handles[index];
  return leave(now.gpus[index].error);
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  ENTER();
  for (u32 i = 0; i < now.ngpus; i++)
    if (!strcmp(now.gpus[i].uuid, uuid)) { *handle = &handles[i]; return leave(now.gpus[i].error); }
  return leave(NOT_FOUND);
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
  ENTER();
  for (u32 i = 0; i < now.ngpus; i++)
    if (!strcmp(now.gpus[i].bus, bus)) { *handle = &handles[i]; return leave(now.gpus[i].error); }
  return leave(NOT_FOUND);
}

/* ------------------------------------------------------------------ one device */
API int nvmlDeviceGetName(void *handle, char *into, u32 size) {
  DEVICE(handle);
  if (instance) snprintf(into, size, "%s MIG %s.%llugb", gpu->name, instance->profile->name, gpu->total / 8 * instance->profile->eighths / (1024 * MIB));
  else snprintf(into, size, "%s", gpu->name);
  return leave(OK);
}
API int nvmlDeviceGetUUID(void *handle, char *into, u32 size) { DEVICE(handle); snprintf(into, size, "%s", instance ? instance->uuid : gpu->uuid); return leave(OK); }
API int nvmlDeviceGetMinorNumber(void *handle, u32 *minor) { GPU(handle); *minor = gpu->minor; return leave(OK); }
API int nvmlDeviceGetNumaNodeId(void *handle, int *node) { GPU(handle); *node = gpu->numa; return leave(gpu->numa < 0 ? NOT_SUPPORTED : OK); }
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
API int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci) {
  GPU(handle);
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%s", gpu->bus);
  return leave(OK);
}
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
API int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
  DEVICE(handle);
  if (memory->version != (sizeof *memory | 2u << 24)) return leave(VERSION);
  u64 total = instance ? gpu->total / 8 * instance->profile->eighths : gpu->total, used = gpu->used;
  if (instance) {
    used = 0;
    for (u32 i = 0; i < gpu->nprocesses; i++) if (gpu->processes[i].gi == instance->id) used += gpu->processes[i].bytes;
  }
  memory->total = total;
  memory->reserved = instance ? 0 : gpu->reserved;
  memory->used = used;
  memory->free = total - memory->reserved - used;
  return leave(OK);
}
struct utilization { u32 gpu, memory; };
API int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *rates) {
  GPU(handle);
  if (gpu->mig) return leave(NOT_SUPPORTED);
  *rates = (struct utilization){gpu->busy, gpu->busy_memory};
  return leave(OK);
}
struct process_v2 { u32 pid; u64 bytes; u32 gi, ci; };
API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, u32 *count, struct process_v2 *into) {
  DEVICE(handle);
  u32 room = *count, found = 0;
  for (u32 i = 0; i < gpu->nprocesses; i++) {
    struct process *p = &gpu->processes[i];
    if (instance && p->gi != instance->id) continue;
    if (into && found < room) into[found] = (struct process_v2){p->pid, p->bytes, p->gi, p->gi == NONE ? NONE : 0};
    found++;
  }
  *count = found;
  return leave(found > room ? TOO_SMALL : OK);
}
struct sample { u32 pid; u64 time; u32 sm, memory, encoder, decoder; };
API int nvmlDeviceGetProcessUtilization(void *handle, struct sample *into, u32 *count, u64 since) {
  (void)since;
  GPU(handle);
  u32 room = *count;
  *count = gpu->nprocesses;
  if (!gpu->nprocesses) return leave(NOT_FOUND);
  if (!into || room < gpu->nprocesses) return leave(TOO_SMALL);
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  for (u32 i = 0; i < gpu->nprocesses; i++)
    into[i] = (struct sample){gpu->processes[i].pid, (u64)t.tv_sec * 1000000 + (u64)t.tv_nsec / 1000, gpu->processes[i].sm, 0, 0, 0};
  return leave(OK);
}
API int nvmlDeviceGetNvLinkState(void *handle, u32 link, u32 *active) {
  GPU(handle);
  if (link >= 18) return leave(INVALID);
  *active = gpu->links >> link & 1;
  return leave(gpu->links ? OK : NOT_SUPPORTED);
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, u32 link, struct pci *pci) {
  GPU(handle);
  if (link >= now.ngpus || !(gpu->links >> link & 1)) return leave(NOT_SUPPORTED);
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%s", now.gpus[link].bus);
  return leave(OK);
}

/* ------------------------------------------------------------------ GPM (Hopper and later) */
/* A figure is what two samples of one GPU differ by; they are refreshed every 100 ms, and two of the
 * same refresh give 0/0. A caller that never frees its samples gets no more of them. */
enum { SAMPLES = 64, SM_UTIL = 2, DRAM_UTIL = 10 };
static const u64 REFRESH_NS = 100000000;
static int samples_out;
struct gpm_sample { struct gpu *gpu; u64 at; double sm, dram; };
struct gpm_support { u32 version, supported; };
struct gpm_metric { u32 id; int result; double value; char *names[3]; };
struct gpm_get { u32 version, count; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };
API int nvmlGpmQueryDeviceSupport(void *handle, struct gpm_support *support) {
  GPU(handle);
  if (support->version != 1) return leave(VERSION);
  support->supported = (u32)(gpu->gpm && !gpu->mig);
  return leave(OK);
}
API int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
  pthread_mutex_lock(&lock);
  if (samples_out >= SAMPLES) return leave(MEMORY);
  samples_out++;
  *sample = calloc(1, sizeof **sample);
  return leave(OK);
}
API int nvmlGpmSampleFree(struct gpm_sample *sample) {
  pthread_mutex_lock(&lock);
  if (sample) samples_out--;
  free(sample);
  return leave(sample ? OK : INVALID);
}
API int nvmlGpmSampleGet(void *handle, struct gpm_sample *sample) {
  GPU(handle);
  if (!gpu->gpm || gpu->mig) return leave(NOT_SUPPORTED);
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  *sample = (struct gpm_sample){gpu, (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec, gpu->sm, gpu->dram};
  return leave(OK);
}
API int nvmlGpmMetricsGet(struct gpm_get *get) {
  ENTER();
  if (get->version != 1) return leave(VERSION);
  if (!get->first || !get->second || !get->first->gpu || get->first->gpu != get->second->gpu) return leave(INVALID);
  int same = get->second->at < get->first->at + REFRESH_NS;
  for (u32 i = 0; i < get->count; i++) {
    struct gpm_metric *m = &get->metrics[i];
    m->result = m->id == SM_UTIL || m->id == DRAM_UTIL ? OK : NOT_SUPPORTED;
    m->value = same ? NAN : m->id == SM_UTIL ? get->second->sm : get->second->dram;
  }
  return leave(OK);
}

/* ------------------------------------------------------------------ health */
API int nvmlDeviceGetTotalEccErrors(void *handle, u32 kind, u32 counter, u64 *count) { (void)counter; GPU(handle); *count = kind == 1 ? gpu->ecc_double : 0; return leave(OK); }
API int nvmlDeviceGetRemappedRows(void *handle, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure) {
  GPU(handle);
  *corrected = *uncorrected = 0;
  *pending = gpu->remap_pending;
  *failure = gpu->remap_failure;
  return leave(OK);
}
struct field { u32 id, scope; long long timestamp, latency; u32 type; int result; union { double d; u64 u; u32 i; } value; };
API int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields) {
  GPU(handle);
  for (int i = 0; i < count; i++) {
    fields[i].type = 1;
    fields[i].value.u = 0;
    fields[i].result = fields[i].id == 230 ? OK : NOT_SUPPORTED;
    if (fields[i].id == 230) fields[i].value.i = gpu->recovery;
  }
  return leave(OK);
}
API int nvmlDeviceGetSupportedEventTypes(void *handle, u64 *types) { GPU(handle); *types = 0x1 | 0x2 | 0x8; return leave(OK); }
struct set { u32 seen, gpus; };
static u32 newest(void) {
  u32 seq = 0;
  for (u32 i = 0; i < now.nevents; i++) if (now.events[i].seq > seq) seq = now.events[i].seq;
  return seq;
}
API int nvmlEventSetCreate(struct set **set) {
  ENTER();
  *set = calloc(1, sizeof **set);
  (*set)->seen = newest();
  return leave(OK);
}
API int nvmlEventSetFree(struct set *set) { free(set); return OK; }
API int nvmlDeviceRegisterEvents(void *handle, u64 types, struct set *set) {
  GPU(handle);
  if (types & ~0xBull) return leave(NOT_SUPPORTED);
  set->gpus |= 1u << (gpu - now.gpus);
  return leave(OK);
}
struct event_data { void *device; u64 type, data; u32 gi, ci; };
API int nvmlEventSetWait_v2(struct set *set, struct event_data *data, u32 timeout_ms) {
  for (u32 waited = 0;; waited += 10) {
    ENTER();
    const struct event *next = NULL;
    for (u32 i = 0; i < now.nevents; i++) {
      const struct event *e = &now.events[i];
      if (e->seq > set->seen && (set->gpus >> e->gpu & 1) && (!next || e->seq < next->seq)) next = e;
    }
    if (next) {
      set->seen = next->seq;
      *data = (struct event_data){&handles[next->gpu], 8, next->xid, next->gi, next->gi == NONE ? NONE : 0};
      return leave(OK);
    }
    if (waited >= timeout_ms) return leave(TIMEOUT);
    leave(OK);
    nap();
  }
}

/* ------------------------------------------------------------------ memory limits (driver r615+) */
/* A limit goes with its cgroup. The driver's own store (misc) answers for a cgroup by the nearest
 * limit above it, and is empty after a driver restart; with the kernel's controller (dmem) each
 * cgroup has its own, so that a new one below a limited one begins without. */
enum { MISC = 1, DMEM = 2, DENIED = 3 };
struct set_limits { const char *scope; u64 soft, hard; };
struct get_limits { const char *scope; u64 soft, hard, used; };
static int is_folder(const char *path) {
  struct stat found;
  return path && !stat(path, &found) && S_ISDIR(found.st_mode);
}
static struct limit *limit_of(long gpu, const char *scope) {
  for (u32 i = 0; i < nlimits; i++) {
    if (!is_folder(limits[i].scope)) { limits[i--] = limits[--nlimits]; continue; }
    if (limits[i].gpu == gpu && !strcmp(limits[i].scope, scope)) return &limits[i];
  }
  return NULL;
}
API int nvmlDeviceSetMemoryLimits_v1(void *handle, struct set_limits *wanted) {
  GPU(handle);
  if (!gpu->limits || gpu->mig) return leave(NOT_SUPPORTED);
  if (gpu->limits == DENIED) return leave(NO_PERMISSION);
  if (!is_folder(wanted->scope)) return leave(NOT_FOUND);
  if (wanted->soft > wanted->hard || strlen(wanted->scope) >= sizeof limits->scope) return leave(INVALID);
  long index = gpu - now.gpus;
  struct limit *limit = limit_of(index, wanted->scope);
  if (!limit && nlimits == LIMITS) return leave(MEMORY);
  if (!limit) limit = &limits[nlimits++];
  limit->gpu = index;
  limit->soft = wanted->soft;
  limit->hard = wanted->hard;
  strcpy(limit->scope, wanted->scope);
  return leave(OK);
}
API int nvmlDeviceGetMemoryLimits_v1(void *handle, struct get_limits *into) {
  GPU(handle);
  if (!gpu->limits || gpu->mig) return leave(NOT_SUPPORTED);
  if (!is_folder(into->scope)) return leave(NOT_FOUND);
  char scope[sizeof limits->scope];
  snprintf(scope, sizeof scope, "%s", into->scope);
  struct limit *limit = limit_of(gpu - now.gpus, scope);
  for (char *end; !limit && gpu->limits != DMEM && (end = strrchr(scope, '/')); limit = limit_of(gpu - now.gpus, scope)) *end = 0;
  into->soft = limit ? limit->soft : 0;
  into->hard = limit ? limit->hard : UNLIMITED;
  into->used = 0;
  size_t length = strlen(into->scope);
  for (u32 i = 0; i < gpu->nprocesses; i++)
    if (!strncmp(gpu->processes[i].cgroup, into->scope, length)) into->used += gpu->processes[i].bytes;
  return leave(OK);
}

/* ------------------------------------------------------------------ MIG */
API int nvmlDeviceGetMigMode(void *handle, u32 *current, u32 *pending) { GPU(handle); *current = *pending = gpu->mig; return leave(OK); }
API int nvmlDeviceGetMaxMigDeviceCount(void *handle, u32 *count) { GPU(handle); *count = gpu->mig ? 7 : 0; return leave(OK); }
API int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, u32 index, void **into) {
  GPU(handle);
  if (index >= gpu->ninstances) return leave(NOT_FOUND);
  *into = &mig_handles[gpu - now.gpus][index];
  return leave(OK);
}
API int nvmlDeviceGetGpuInstanceId(void *handle, u32 *id) { DEVICE(handle); if (!instance) return leave(INVALID); *id = instance->id; return leave(OK); }
API int nvmlDeviceGetComputeInstanceId(void *handle, u32 *id) { DEVICE(handle); if (!instance) return leave(INVALID); *id = 0; return leave(OK); }
struct profile_info { u32 id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; u64 memory_mib; };
struct profile_info_v { u32 version, id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; u64 memory_mib; char name[96]; };
API int nvmlDeviceGetGpuInstanceProfileInfoV(void *handle, u32 profile, struct profile_info_v *info) {
  GPU(handle);
  if (!gpu->mig) return leave(NOT_SUPPORTED);
  for (int i = 0; i < NPROFILES; i++) {
    const struct profile *p = &PROFILES[i];
    if (p->index != profile) continue;
    u32 version = info->version;
    memset(info, 0, sizeof *info);
    info->version = version;
    info->id = p->id;
    info->slices = p->compute;
    info->instances = (u32)__builtin_popcount(p->starts);
    info->memory_mib = gpu->total / MIB / 8 * p->eighths;
    snprintf(info->name, sizeof info->name, "MIG %ug.%llugb", p->compute, info->memory_mib / 1024);
    return leave(OK);
  }
  return leave(NOT_SUPPORTED);
}
struct placement { u32 start, size; };
API int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *handle, u32 id, struct placement *into, u32 *count) {
  GPU(handle);
  const struct profile *p = by_id(id);
  if (!gpu->mig || !p) return leave(gpu->mig ? INVALID : NOT_SUPPORTED);
  u32 found = 0;
  for (u32 start = 0; start < 8; start++)
    if (p->starts >> start & 1) {
      if (into) into[found] = (struct placement){start, p->size};
      found++;
    }
  *count = found;
  return leave(OK);
}
/* How many more of a profile fit now: disjoint free starts, and compute slices of the seven. */
API int nvmlDeviceGetGpuInstanceRemainingCapacity(void *handle, u32 id, u32 *count) {
  GPU(handle);
  const struct profile *p = by_id(id);
  if (!gpu->mig || !p) return leave(gpu->mig ? INVALID : NOT_SUPPORTED);
  u32 taken = 0, compute = 7, fit = 0;
  for (u32 i = 0; i < gpu->ninstances; i++) {
    taken |= ((1u << gpu->instances[i].profile->size) - 1) << gpu->instances[i].start;
    compute -= gpu->instances[i].profile->compute;
  }
  for (u32 start = 0; start < 8; start++) {
    u32 mask = ((1u << p->size) - 1) << start;
    if (!(p->starts >> start & 1) || taken & mask || compute < p->compute) continue;
    taken |= mask;
    compute -= p->compute;
    fit++;
  }
  *count = fit;
  return leave(OK);
}
API int nvmlDeviceGetGpuInstances(void *handle, u32 id, void **into, u32 *count) {
  GPU(handle);
  u32 found = 0;
  for (u32 i = 0; i < gpu->ninstances; i++)
    if (gpu->instances[i].profile->id == id) into[found++] = &gi_handles[gpu - now.gpus][i];
  *count = found;
  return leave(OK);
}
struct instance_info { void *device; u32 id, profile; struct placement placement; };
API int nvmlGpuInstanceGetInfo(void *handle, struct instance_info *info) {
  ENTER();
  struct gpu *gpu;
  struct instance *i = find_mig(handle, &gi_handles[0][0], &gpu);
  if (!i) return leave(NOT_FOUND);
  *info = (struct instance_info){&handles[gpu - now.gpus], i->id, i->profile->id, {i->start, i->profile->size}};
  return leave(OK);
}
