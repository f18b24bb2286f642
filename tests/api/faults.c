/* A session's life, or a pool's, again and again in forked processes, with another call of the C library failing in each:
 * faults LIBRARY session|pool STEP, where STEP is 1, or larger to let one in so many fail.
 *
 * Prints the statuses and how often each came. Exits with 1, and says which call it was, where a process ended otherwise, a failure
 * had no message, or a session that was open did not run any more. */
#include <flexcomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of tests/faults/interposer.h, which is C++. */
typedef struct FaultedCall {
  const char *name;
  int variants;
} FaultedCall;
void fault_arm(uint64_t n, int variant, volatile FaultedCall *call);
void fault_disarm(void);
uint64_t fault_count(void);

enum {
  STATUSES = 16,
  UNSAID = 100,
  UNUSABLE = 101
};

static int live(const char *library) {
  flexcomp_session *session;
  flexcomp_options options = FLEXCOMP_OPTIONS_INIT;
  flexcomp_status failed, status;
  options.budget = FLEXCOMP_BUDGET_SMALLEST;
  if ((failed = flexcomp_open(library, &options, &session))) return session == NULL && *flexcomp_message() ? failed : UNSAID;
  if ((status = flexcomp_run_in_place(session, NULL, NULL, NULL))) failed = status;
  if ((status = flexcomp_set_budget(session, FLEXCOMP_BUDGET_ALL))) failed = status;
  if ((status = flexcomp_run_in_place(session, NULL, NULL, NULL))) failed = status;
  if (failed && !*flexcomp_message()) return UNSAID;
  fault_disarm();
  if (flexcomp_run_in_place(session, NULL, NULL, NULL) || flexcomp_close(session)) return UNUSABLE;
  return failed;
}

static int live_in_pool(const char *library) {
  const flexcomp_pool_options options = FLEXCOMP_POOL_OPTIONS_INIT(UINT64_C(1) << 28);
  flexcomp_pool_stats stats = {.size = sizeof stats};
  flexcomp_pool *pool;
  flexcomp_session *member;
  flexcomp_request *request;
  static float pixels[1 * 3 * 32 * 32];
  const flexcomp_tensor in = FLEXCOMP_TENSOR(pixels, sizeof pixels);
  flexcomp_status failed, status;
  if ((failed = flexcomp_pool_open(&options, &pool))) return pool == NULL && *flexcomp_message() ? failed : UNSAID;
  if ((failed = flexcomp_pool_add(pool, "network", library, NULL, &member))) {
    if (member != NULL || !*flexcomp_message()) return UNSAID;
    fault_disarm();
    if (flexcomp_pool_add(pool, "network", library, NULL, &member)) return UNUSABLE;
  }
  if ((status = flexcomp_run(member, &in, 1, NULL, 0))) failed = status;
  if ((status = flexcomp_submit(member, &in, 1, NULL, 0, NULL, &request)) || (status = flexcomp_wait(request))) failed = status;
  if ((status = flexcomp_pool_get_stats(pool, &stats))) failed = status;
  if (!status && (status = flexcomp_pool_set_budget(pool, stats.least))) failed = status;
  if ((status = flexcomp_run(member, &in, 1, NULL, 0))) failed = status;
  if (failed && !*flexcomp_message()) return UNSAID;
  fault_disarm();
  if (flexcomp_run(member, &in, 1, NULL, 0) || flexcomp_close(member) || flexcomp_pool_close(pool)) return UNUSABLE;
  return failed;
}

typedef int Life(const char *library);

static int live_forked(Life *live, const char *library, uint64_t n) {
  volatile FaultedCall call = {NULL, 0};
  int status;
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    fault_arm(n, 0, &call);
    _exit(live(library));
  }
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int main(int argc, char **argv) {
  int counts[STATUSES] = {0}, wrong = 0;
  uint64_t calls;
  Life *const life = argc == 4 && strcmp(argv[2], "pool") == 0 ? live_in_pool : live;
  const int step = argc == 4 ? atoi(argv[3]) : 0;
  if (step < 1 || life(argv[1])) return 2; /* what is made once is there */
  fault_arm(0, 0, NULL);
  life(argv[1]);
  calls = fault_count();
  fault_disarm();
  for (uint64_t n = 1; n <= calls; n += (unsigned)step) {
    const int status = live_forked(life, argv[1], n);
    if (status >= 0 && status < STATUSES) {
      ++counts[status];
    } else {
      ++wrong;
      printf("call %llu of %llu: %d\n", (unsigned long long)n, (unsigned long long)calls, status);
    }
  }
  for (int status = 0; status < STATUSES; ++status)
    if (counts[status] > 0) printf("%s %d\n", flexcomp_status_name(status), counts[status]);
  return wrong != 0;
}
