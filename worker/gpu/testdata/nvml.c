/* A stand-in for libnvidia-ml with the few functions that Troupe calls, so that the
   real cgo path is tested without a GPU. NVML_TEST says how it behaves:
     two      two devices (also without the variable)
     zero     no device
     absent   nvmlInit says that no driver is loaded
     lost     the second device has fallen off
     liar     the first device uses more memory than it has
     hang     reading memory takes 3 s
     used     process NVML_TEST_PID uses 30 GiB of the second device, and one that has no
              possible pid, and one that claims more memory than there is
   With -DOLD it lacks nvmlDeviceGetMemoryInfo, with -DQUIET the list of processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_LOADED = 9, LOST = 15 };

struct memory { unsigned long long total, free, used; };

static int mode(const char *name) {
  const char *m = getenv("NVML_TEST");
  return m != NULL && strcmp(m, name) == 0;
}

static char devices[2];

int nvmlInit_v2(void) { return mode("absent") ? NOT_LOADED : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int r) { return r == OK ? "ok" : "bad"; }

int nvmlDeviceGetCount_v2(unsigned *n) {
  *n = mode("zero") ? 0 : 2;
  return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) {
  if (i > 1) return INVALID;
  if (i == 1 && mode("lost")) return LOST;
  *d = &devices[i];
  return OK;
}

static int put(char *to, unsigned room, const char *format, int i) {
  return snprintf(to, room, format, i) < (int)room ? OK : INVALID;
}

int nvmlDeviceGetUUID(void *d, char *to, unsigned room) {
  return put(to, room, "GPU-00000000-0000-0000-0000-00000000000%d", (int)((char *)d - devices));
}

int nvmlDeviceGetName(void *d, char *to, unsigned room) {
  return put(to, room, "Test GPU %d", (int)((char *)d - devices));
}

#ifndef OLD
int nvmlDeviceGetMemoryInfo(void *d, struct memory *m) {
  if (mode("hang")) sleep(3);
  m->total = 80ULL << 30;
  m->used = (1ULL + (char *)d - devices) << 30;
  if (mode("used") && d == (void *)(devices + 1)) m->used = 31ULL << 30;
  if (mode("liar") && d == (void *)devices) m->used = 2 * m->total;
  m->free = m->total - m->used;
  return OK;
}
#endif

#ifndef QUIET
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *list) {
  unsigned have = mode("used") && d == (void *)(devices + 1) ? 3 : 0, room = *n;
  *n = have;
  if (have == 0) return OK;
  if (room < have || list == NULL) return 7; /* the size is too small */
  list[0] = (struct process){(unsigned)atoi(getenv("NVML_TEST_PID")), 30ULL << 30, ~0u, ~0u};
  list[1] = (struct process){0, 1ULL << 30, ~0u, ~0u};
  list[2] = (struct process){1, 1ULL << 60, ~0u, ~0u};
  return OK;
}
#endif
