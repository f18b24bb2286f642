/* The C interface of flexcomp: runs compiled networks in a memory budget.
 *
 *     flexcomp_session *session;
 *     flexcomp_tensor in = FLEXCOMP_TENSOR(pixels, sizeof pixels), out = FLEXCOMP_TENSOR(scores, sizeof scores);
 *     if (flexcomp_open("network.so", NULL, &session) || flexcomp_run(session, &in, 1, &out, 1))
 *       fprintf(stderr, "%s\n", flexcomp_message());
 *     flexcomp_close(session);
 *
 * Status. Every call that can fail returns a status, and FLEXCOMP_OK is 0. flexcomp_message() says why the last call of this
 * thread failed. A call that fails changes nothing, and writes nothing to its results, unless its text says otherwise.
 *
 * Threads. Any thread may make any call at any time, on one session, too. Calls whose text says "waits" wait for the inference in
 * progress; all others return at once. In a callback of the same session a call that waits returns FLEXCOMP_ERROR_INPUT. No call may
 * be made from a signal handler.
 *
 * Handles. Sessions, pools and requests are numbers with a pointer's type, and numbers are not used again: a call on a handle that
 * is closed or was never open returns FLEXCOMP_ERROR_CLOSED. A forked process can only close handles.
 *
 * Strings are UTF-8 and end with a zero. Those that the library gives live as long as the session.
 *
 * Stability. Programs that were compiled with an earlier header go on working with a later library of the same FLEXCOMP_ABI.
 * Structures begin with their size, so that later versions can append members: set the size to sizeof, and all members that you do
 * not use to zero, as the macros do. New values of enumerations and new functions may come.
 */
#ifndef FLEXCOMP_H_
#define FLEXCOMP_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FLEXCOMP_API __attribute__((visibility("default")))
#else
#define FLEXCOMP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FLEXCOMP_ABI 1
#define FLEXCOMP_VERSION "0.1.0"

/* ---------------------------------------------------------------------------------------------------------------- status */

typedef int32_t flexcomp_status;
enum {
  FLEXCOMP_OK = 0,
  FLEXCOMP_CANCELLED = 1,           /* flexcomp_cancel was called, or a callback asked for the end */
  FLEXCOMP_ERROR_INPUT = 2,         /* an argument is wrong: NULL, an unknown index or flag, a wrong size, type or shape */
  FLEXCOMP_ERROR_ARTIFACT = 3,      /* the library or its weights are missing, damaged, or of another network */
  FLEXCOMP_ERROR_BUDGET = 4,        /* the budget is too small, or larger than the memory of the system */
  FLEXCOMP_ERROR_TARGET = 5,        /* this processor lacks features that the library was compiled for */
  FLEXCOMP_ERROR_STORAGE = 6,       /* weights could not be read, or were changed */
  FLEXCOMP_ERROR_EXECUTION = 7,     /* a kernel, or the system, failed */
  FLEXCOMP_ERROR_OUT_OF_MEMORY = 8, /* the process has no memory besides the budget */
  FLEXCOMP_ERROR_UNSUPPORTED = 9,   /* the library was built by an incompatible version, or this version lacks the requested feature */
  FLEXCOMP_ERROR_CLOSED = 10,       /* the session, pool or request is closed, or was never open */
  FLEXCOMP_REFUSED = 11             /* a pool refuses the request: too many wait, or a deadline would pass or has passed */
};

/* The reason of the last failure in this thread: one line, at most 1,023 bytes. Valid until the thread makes another call; never
 * NULL. Empty: no call of the thread has failed. */
FLEXCOMP_API const char *flexcomp_message(void);

/* "CANCELLED" for FLEXCOMP_CANCELLED, and so on; "UNKNOWN" for numbers that no status has. */
FLEXCOMP_API const char *flexcomp_status_name(flexcomp_status status);

/* FLEXCOMP_VERSION and FLEXCOMP_ABI of the library, which may be later than the header that a program was compiled with. */
FLEXCOMP_API const char *flexcomp_version(void);
FLEXCOMP_API int32_t flexcomp_abi(void);

/* --------------------------------------------------------------------------------------------------------------- opening */

typedef struct flexcomp_session flexcomp_session;

/* Budgets in bytes, and three that are named. */
#define FLEXCOMP_BUDGET_DEFAULT ((uint64_t)0)    /* the smallest that is nearly as fast as any */
#define FLEXCOMP_BUDGET_SMALLEST ((uint64_t)1)   /* the smallest of the library */
#define FLEXCOMP_BUDGET_ALL UINT64_MAX           /* everything stays in memory */

/* Flags of flexcomp_options, which may be added. */
enum {
  FLEXCOMP_VERIFY = 1,          /* check every byte of the weights at opening, and again with every read */
  FLEXCOMP_PAGE_CACHE = 2,      /* read through the page cache of the system, and not past the cache */
  FLEXCOMP_NO_AFFINITY = 4,     /* leave threads to the system, also where cores differ */
  FLEXCOMP_NO_WORK_STEALING = 8, /* threads that wait for weights do not help to load them */
  FLEXCOMP_TRACE = 16           /* note when kernels and loads run, for FLEXCOMP_TEXT_TRACE */
};

/* Sources of weights that are in no file of their own. The bytes must not change while a session uses them. */
typedef int32_t flexcomp_source_kind;
enum {
  FLEXCOMP_DESCRIPTOR = 1, /* `nbytes` from `offset` on in the file that is open as `descriptor`, which may be closed when flexcomp_open
                              returns. An offset that 4,096 divides allows reads past the page cache */
  FLEXCOMP_MEMORY = 2,     /* `nbytes` at `data`, which must live as long as the session, and do not count as its memory */
  FLEXCOMP_READER = 3      /* from a function, which decrypts, decompresses or unpacks */
};

/* Writes the bytes of the weights file from `offset` on to `buffer`. Returns the number of bytes: `nbytes`, or fewer, and is called
 * again for the rest. 0 or a negated errno value fails the read; -ECANCELED cancels the inference. `offset` and `nbytes` are multiples
 * of 4,096, except at the end of the file and after fewer bytes; `nbytes` is at most a megabyte.
 *
 * A session calls the reader from one thread at a time: that of flexcomp_open, that of an inference, or a thread of its own, also
 * between inferences. The reader must return, without an exception or longjmp, and must not wait for a thread that waits for the
 * session. On this session the reader may call flexcomp_cancel only, which fails the read; other calls return FLEXCOMP_ERROR_INPUT.
 *
 * If a read fails, opening returns FLEXCOMP_ERROR_ARTIFACT, and the inference that needs the bytes FLEXCOMP_ERROR_STORAGE; if a read is
 * cancelled, both return FLEXCOMP_CANCELLED. FLEXCOMP_VERIFY notices wrong bytes; nothing notices bytes written beyond `nbytes`. */
typedef int64_t (*flexcomp_reader)(void *context, uint64_t offset, void *buffer, uint64_t nbytes);

typedef struct flexcomp_source {
  size_t size;               /* sizeof(flexcomp_source) */
  flexcomp_source_kind kind;
  int32_t descriptor;
  uint64_t offset;
  uint64_t nbytes;           /* the exact size of the weights file */
  const void *data;
  flexcomp_reader read;
  void *context;             /* for `read` */
} flexcomp_source;

#define FLEXCOMP_FROM_DESCRIPTOR(descriptor, offset, nbytes) \
  {sizeof(flexcomp_source), FLEXCOMP_DESCRIPTOR, (descriptor), (uint64_t)(offset), (uint64_t)(nbytes), NULL, NULL, NULL}
#define FLEXCOMP_FROM_MEMORY(data, nbytes) {sizeof(flexcomp_source), FLEXCOMP_MEMORY, -1, 0, (uint64_t)(nbytes), (data), NULL, NULL}
#define FLEXCOMP_FROM_READER(read, context, nbytes) \
  {sizeof(flexcomp_source), FLEXCOMP_READER, -1, 0, (uint64_t)(nbytes), NULL, (read), (context)}

typedef struct flexcomp_options {
  size_t size;             /* sizeof(flexcomp_options) */
  const char *weights;     /* the weights file; NULL: the library's path, with ".weights" instead of ".so" */
  uint64_t budget;         /* bytes, or a FLEXCOMP_BUDGET_…; the session uses the largest plan within */
  uint32_t flags;          /* FLEXCOMP_VERIFY … */
  int32_t threads;         /* compute threads; 0: as many as the library was built for, at most one for each core */
  const char *compute_cpus; /* cores for compute threads, such as "4-7"; NULL: the big cores where cores differ, else any */
  const char *loader_cpus; /* cores for the thread that loads weights; NULL: a little one where cores differ, else any */
  double read_bandwidth;   /* imitates storage of so many bytes per second; 0: no limit */
  const flexcomp_source *source; /* another source of weights, with `weights` NULL; the structure is copied */
} flexcomp_options;

#define FLEXCOMP_OPTIONS_INIT {sizeof(flexcomp_options), NULL, FLEXCOMP_BUDGET_DEFAULT, 0, 0, NULL, NULL, 0, NULL}

/* Opens the compiled network in the shared library `library`, a path that ends in ".so". `options` may be NULL: the defaults. The
 * code of a library stays in the process after the session is closed. A failure sets `*session` to NULL. */
FLEXCOMP_API flexcomp_status flexcomp_open(const char *library, const flexcomp_options *options, flexcomp_session **session);

/* A compiled network whose code is linked with the program: `flexcomp build … -o NAME.o` makes an object file, and
 * FLEXCOMP_NETWORK(NAME); declares flexcomp_network_NAME, with "_" for characters that names in C do not have. */
typedef struct flexcomp_network flexcomp_network;
#define FLEXCOMP_NETWORK(name) extern const flexcomp_network flexcomp_network_##name

/* Opens a linked network, as flexcomp_open opens a library. `options` must name the weights, or have a source of them. */
FLEXCOMP_API flexcomp_status flexcomp_open_linked(const flexcomp_network *network, const flexcomp_options *options,
                                                  flexcomp_session **session);

/* Returns memory, threads and files of the session. Waits; call flexcomp_cancel first for a quick end. NULL returns FLEXCOMP_OK. */
FLEXCOMP_API flexcomp_status flexcomp_close(flexcomp_session *session);

typedef struct flexcomp_session_info {
  size_t size;              /* sizeof(flexcomp_session_info); set it before the call */
  uint64_t smallest;        /* FLEXCOMP_BUDGET_SMALLEST in bytes: enough for every shape, as the next two */
  uint64_t usual;           /* FLEXCOMP_BUDGET_DEFAULT in bytes */
  uint64_t all;             /* the smallest budget with which everything stays in memory */
  const char *layer;        /* that sets the smallest budget; "": not known */
  const char *needs;        /* what the layer needs, in bytes: "1234 of weights, 56 of scratch"; "": not known */
  const char *compute_cpus; /* cores of the compute threads, such as "4-7"; "": any */
  const char *loader_cpus;  /* cores of the thread that loads weights; "": any */
  int32_t threads;          /* compute threads */
  int32_t reserved;         /* 0 */
} flexcomp_session_info;

/* FLEXCOMP_ERROR_UNSUPPORTED: the session is a member of a pool, which chooses budget and cores. */
FLEXCOMP_API flexcomp_status flexcomp_describe_session(flexcomp_session *session, flexcomp_session_info *info);

/* --------------------------------------------------------------------------------------------------- inputs, outputs, states */

typedef int32_t flexcomp_dtype;
enum {
  FLEXCOMP_ANY = 0, /* in a flexcomp_tensor: not stated */
  FLEXCOMP_FLOAT32 = 1,
  FLEXCOMP_FLOAT16 = 2,
  FLEXCOMP_BFLOAT16 = 3,
  FLEXCOMP_FLOAT64 = 4,
  FLEXCOMP_BOOL = 5, /* a byte, 0 or 1 */
  FLEXCOMP_INT8 = 6,
  FLEXCOMP_UINT8 = 7,
  FLEXCOMP_INT16 = 8,
  FLEXCOMP_UINT16 = 9,
  FLEXCOMP_INT32 = 10,
  FLEXCOMP_UINT32 = 11,
  FLEXCOMP_INT64 = 12,
  FLEXCOMP_UINT64 = 13
};

/* Kinds of tensors of a network. A state is an output that becomes an input of the next inference; states stay in the session, and
 * do not count as inputs. */
typedef int32_t flexcomp_kind;
enum {
  FLEXCOMP_INPUT = 0,
  FLEXCOMP_OUTPUT = 1,
  FLEXCOMP_STATE = 2
};

typedef struct flexcomp_tensor_info {
  size_t size;          /* sizeof(flexcomp_tensor_info); set it before the call */
  const char *name;
  const int64_t *shape; /* `rank` extents, in the requested shape */
  int32_t rank;
  flexcomp_dtype dtype;
  uint64_t nbytes;
  uint32_t open_axes;   /* bit i is 1: along axis i an inference takes any extent from 1 to that of the largest shape */
  uint32_t reserved;    /* 0 */
  const char *const *axis_names; /* `rank` names, NULL for axes that are not open: axes of one name have one extent in an inference. An
                                    output's may be a formula, "(n + 1) / 2": flexcomp_output_shape tells the extent. NULL: no axis is
                                    open */
} flexcomp_tensor_info;

/* The number of shapes of a network. Shapes have numbers from 0 on; 0 is the largest. An inference uses the shape that its inputs
 * state. Numbers, names and types of tensors are equal in all shapes. A library that was built with `pad` takes inputs of any extents
 * along their open axes: the next shape that holds them runs, inputs are padded, and outputs cut. */
FLEXCOMP_API flexcomp_status flexcomp_shape_count(flexcomp_session *session, uint32_t *count);

/* The number of tensors of a kind; the description of a tensor in a shape; the index of the tensor with a name. */
FLEXCOMP_API flexcomp_status flexcomp_tensor_count(flexcomp_session *session, flexcomp_kind kind, uint32_t *count);
FLEXCOMP_API flexcomp_status flexcomp_describe_tensor(flexcomp_session *session, flexcomp_kind kind, uint32_t index, uint32_t shape,
                                                      flexcomp_tensor_info *info);
FLEXCOMP_API flexcomp_status flexcomp_find_tensor(flexcomp_session *session, flexcomp_kind kind, const char *name, uint32_t *index);

/* --------------------------------------------------------------------------------------------------------------- running */

/* Memory of the caller: elements in C order, at any address. */
typedef struct flexcomp_tensor {
  size_t size;          /* sizeof(flexcomp_tensor), the same in all elements of an array */
  void *data;
  uint64_t nbytes;      /* the exact size of the network's tensor, of these extents */
  const int64_t *shape; /* NULL: not stated; else that of the network's tensor. Required of inputs in which shapes differ, and of inputs
                           that are to be padded */
  int32_t rank;         /* of `shape` */
  flexcomp_dtype dtype; /* FLEXCOMP_ANY: not stated; else that of the network's tensor */
} flexcomp_tensor;

#define FLEXCOMP_TENSOR(data, nbytes) {sizeof(flexcomp_tensor), (data), (nbytes), NULL, 0, FLEXCOMP_ANY}

/* One inference. Waits. All inputs are copied from the caller's memory at the beginning, and the outputs to the caller's memory at
 * the end, in the order of their indices. Fewer outputs than the network has, or outputs with NULL as `data`, are not copied. After
 * a failure the contents of outputs are undefined, the states are as before, and the next inference works. */
FLEXCOMP_API flexcomp_status flexcomp_run(flexcomp_session *session, const flexcomp_tensor *inputs, uint32_t input_count,
                                          const flexcomp_tensor *outputs, uint32_t output_count);

/* The `rank` extents of an output of the inference that takes these inputs, whose memory is not read and may be NULL. */
FLEXCOMP_API flexcomp_status flexcomp_output_shape(flexcomp_session *session, const flexcomp_tensor *inputs, uint32_t input_count,
                                                   uint32_t output, int64_t *extents, int32_t rank);

/* Gets all inputs or all outputs, which lie in the session's own memory during the call. FLEXCOMP_OK goes on; any other status ends
 * the inference with this status. The callback must return, without an exception or longjmp. */
typedef flexcomp_status (*flexcomp_callback)(void *context, const flexcomp_tensor *tensors, uint32_t count);

/* One inference without copies, all within the budget: first `fill` writes the inputs, at the end `drain` reads the outputs. Waits.
 * Either may be NULL. `fill` is called again when the inference begins anew because the budget shrank. `drain` is called when the new
 * states are in place; its status does not change them. Tensors are those of the shape in use, and nothing is padded. */
FLEXCOMP_API flexcomp_status flexcomp_run_in_place(flexcomp_session *session, flexcomp_callback fill, flexcomp_callback drain,
                                                   void *context);

/* The shape that an inference with these inputs uses. Their memory is not read and may be NULL. */
FLEXCOMP_API flexcomp_status flexcomp_find_shape(flexcomp_session *session, const flexcomp_tensor *inputs, uint32_t input_count,
                                                 uint32_t *shape);

/* Has flexcomp_run_in_place and flexcomp_warm use a shape, until flexcomp_run uses another. At first shape 0 is in use. Waits. */
FLEXCOMP_API flexcomp_status flexcomp_use_shape(flexcomp_session *session, uint32_t shape);

/* Ends the inference in progress, or flexcomp_warm: that call returns FLEXCOMP_CANCELLED after the running kernel, unless it is
 * complete. The next call waits for the reads in flight. Outputs and states are as after a failure. Calls that wait their turn go on.
 * Callbacks may call this. Returns FLEXCOMP_OK if nothing is in progress. */
FLEXCOMP_API flexcomp_status flexcomp_cancel(flexcomp_session *session);

/* Loads the weights that stay in memory between inferences now, and not in the first inference. Waits. */
FLEXCOMP_API flexcomp_status flexcomp_warm(flexcomp_session *session);

/* --------------------------------------------------------------------------------------------------------------- budgets */

typedef struct flexcomp_budget_info {
  size_t size;        /* sizeof(flexcomp_budget_info); set it before the call */
  uint64_t budget;    /* bytes: the smallest budget for this plan */
  uint64_t arena;     /* bytes of memory that weights, activations, scratch, inputs, outputs and states take */
  uint64_t working;   /* bytes of the arena in which inferences work; the rest stays between inferences */
  uint64_t pinned;    /* bytes of weights that stay in memory between inferences */
  uint64_t streamed;  /* bytes of weights that every inference reads */
  double predicted_s; /* latency of an inference, on the machine that the plan was made for */
} flexcomp_budget_info;

/* The number of plans for a shape; the description of a plan. Plans are in ascending order of budgets. */
FLEXCOMP_API flexcomp_status flexcomp_budget_count(flexcomp_session *session, uint32_t shape, uint32_t *count);
FLEXCOMP_API flexcomp_status flexcomp_describe_budget(flexcomp_session *session, uint32_t shape, uint32_t index,
                                                      flexcomp_budget_info *info);

/* Uses the largest plan within `budget`: bytes, or a FLEXCOMP_BUDGET_…. With a smaller budget the inference in progress stops after
 * the running kernel and begins anew; the memory is given back when this returns. A larger budget counts from the next inference on. */
FLEXCOMP_API flexcomp_status flexcomp_set_budget(flexcomp_session *session, uint64_t budget);

/* The index of the plan in use, for the shape that ran last. */
FLEXCOMP_API flexcomp_status flexcomp_current_budget(flexcomp_session *session, uint32_t *index);

/* ---------------------------------------------------------------------------------------------------------------- states */

/* Copy a state for the next inference to the caller's memory, or from there; set all states to zeros, as at opening. All wait. */
FLEXCOMP_API flexcomp_status flexcomp_get_state(flexcomp_session *session, uint32_t index, const flexcomp_tensor *tensor);
FLEXCOMP_API flexcomp_status flexcomp_set_state(flexcomp_session *session, uint32_t index, const flexcomp_tensor *tensor);
FLEXCOMP_API flexcomp_status flexcomp_reset_states(flexcomp_session *session);

/* ---------------------------------------------------------------------------------------------- tokens: decoders of texts */

typedef struct flexcomp_decoder_info {
  size_t size;         /* sizeof(flexcomp_decoder_info); set it before the call */
  uint64_t vocabulary; /* tokens are numbers from 0 to vocabulary - 1 */
  uint64_t capacity;   /* tokens of a text, at most */
  uint64_t longest;    /* tokens that one inference takes, at most */
} flexcomp_decoder_info;

/* FLEXCOMP_ERROR_UNSUPPORTED: the network is no decoder with caches of keys and values as its states. */
FLEXCOMP_API flexcomp_status flexcomp_describe_decoder(flexcomp_session *session, flexcomp_decoder_info *info);

/* Takes `count` tokens of a text after the first `position` ones, which earlier calls took: 0 begins a text, and a smaller position than
 * before takes back the tokens after it. Tokens are cut into inferences of the shapes that the library has. `logits`, `vocabulary`
 * numbers, follow the last token, and `next` is the likeliest of them. Either may be NULL. After a failure the first `position` tokens
 * are as before. Waits. Between the calls for a text the session takes no other inference, and states are not set. */
FLEXCOMP_API flexcomp_status flexcomp_decode(flexcomp_session *session, uint64_t position, const int64_t *tokens, uint32_t count,
                                             float *logits, int64_t *next);

/* ------------------------------------------------------------------------------------------------------------ statistics */

typedef struct flexcomp_stats {
  size_t size;               /* sizeof(flexcomp_stats); set it before the call */
  uint64_t runs;             /* inferences that succeeded since the session was opened */
  uint64_t restarts;         /* inferences begun anew since then, because the budget shrank */
  uint64_t total_bytes_read; /* since then, failed inferences included */
  uint64_t resident;         /* bytes of the arena that are in memory now */
  int32_t threads;           /* compute threads */
  int32_t direct;            /* 1: reads bypass the page cache */
  /* of the last inference that succeeded */
  uint64_t bytes_read;
  uint64_t reads;
  double latency_s; /* with the copies of flexcomp_run, without the callbacks of flexcomp_run_in_place */
  double stall_s;   /* a part of latency_s: kernels waited for weights */
  double read_s;    /* reads were in flight */
  uint64_t prepared_bytes; /* bytes of weights that were made from read ones, in the kernels' form */
  double prepare_s; /* the loading thread made such weights */
  double help_s;    /* a part of stall_s: kernels that waited made such weights */
  uint32_t shape;   /* in use: flexcomp_current_budget tells its plan */
} flexcomp_stats;

FLEXCOMP_API flexcomp_status flexcomp_get_stats(flexcomp_session *session, flexcomp_stats *stats);

/* Bytes per second that the storage gives to the session, which reads the weights file by `request` bytes, `nbytes` in all, into the
 * memory of its budget: the next inference reads its weights anew. Waits. */
FLEXCOMP_API flexcomp_status flexcomp_measure_storage(flexcomp_session *session, uint64_t request, uint64_t nbytes, double *bytes_per_s);

/* Texts in JSON, for tools. Later versions may add members of objects. Times are of CLOCK_MONOTONIC. */
typedef int32_t flexcomp_text;
enum {
  FLEXCOMP_TEXT_NETWORK = 0,      /* tensors, budgets and layers, as `flexcomp inspect --json` prints them; not of members of pools */
  FLEXCOMP_TEXT_STATS = 1,        /* plan, cores and statistics of a session; memory, plan and members of a pool */
  FLEXCOMP_TEXT_TRACE = 2,        /* when kernels and loads of the last inference ran. Needs FLEXCOMP_TRACE */
  FLEXCOMP_TEXT_DEVICE_RATES = 3, /* what a GPU costs besides its kernels, which is measured now. Waits. FLEXCOMP_ERROR_INPUT: no GPU */
  FLEXCOMP_TEXT_PLAN = 4          /* how a pool shares its budget */
};

/* Gets a text, which ends with a zero and lives as long as the call. Must return, without an exception or longjmp. */
typedef void (*flexcomp_text_callback)(void *context, const char *text);

/* Gives a text of a session, or of a pool. FLEXCOMP_ERROR_UNSUPPORTED: the session or pool has no such text. */
FLEXCOMP_API flexcomp_status flexcomp_get_text(flexcomp_session *session, flexcomp_text which, flexcomp_text_callback give, void *context);

/* ----------------------------------------------------------------------------- pools: several networks in one budget */

/* Networks of a pool take turns in lanes, and share the budget: the pool chooses their plans so that the sum of rate * urgency *
 * latency is least. A session, the member, stands for each network. Members describe tensors and budgets, run, are cancelled, give
 * statistics and are closed like any session; flexcomp_current_budget tells the plan that the pool chose. All other calls return
 * FLEXCOMP_ERROR_UNSUPPORTED: the pool sets budgets and loads weights. */
typedef struct flexcomp_pool flexcomp_pool;

typedef struct flexcomp_pool_options {
  size_t size;     /* sizeof(flexcomp_pool_options) */
  uint64_t budget; /* bytes for all networks together; no FLEXCOMP_BUDGET_… */
  uint32_t lanes;  /* inferences at a time, each on cores of its own; 0: 1 */
  int32_t threads; /* compute threads of each lane; 0: one for each of its cores */
  uint32_t queue;  /* requests of a member that may wait; 0: 64 */
  uint32_t flags;  /* 0 */
} flexcomp_pool_options;

#define FLEXCOMP_POOL_OPTIONS_INIT(budget) {sizeof(flexcomp_pool_options), (budget), 0, 0, 0, 0}

/* Opens a pool without networks. A failure sets `*pool` to NULL. */
FLEXCOMP_API flexcomp_status flexcomp_pool_open(const flexcomp_pool_options *options, flexcomp_pool **pool);

/* Closes a pool and its members. Waiting requests fail. Waits until inferences in progress end; cancel them first for a quick end.
 * NULL returns FLEXCOMP_OK. */
FLEXCOMP_API flexcomp_status flexcomp_pool_close(flexcomp_pool *pool);

typedef struct flexcomp_member_options {
  size_t size;                     /* sizeof(flexcomp_member_options) */
  const flexcomp_options *session; /* NULL: the defaults. Budget, threads and compute_cpus are the pool's, and stay unset here;
                                      weights are in a file: FLEXCOMP_ERROR_UNSUPPORTED for a `source` */
  double urgency;                  /* the cost of a second of latency, relative to other members; 0: 1 */
  double rate;                     /* requests per second; 0: the pool counts them */
  double deadline_s;               /* seconds, for requests without a deadline of their own; 0: none */
  uint64_t keep;                   /* the most bytes that stay in memory between inferences; 0: as the share of the budget allows */
} flexcomp_member_options;

#define FLEXCOMP_MEMBER_OPTIONS_INIT {sizeof(flexcomp_member_options), NULL, 0, 0, 0, 0}

/* Adds a network to a pool, under a name that no other member has, for messages. `options` may be NULL: the defaults. Members of the
 * same library, weights and session options are held once, unless they keep states. FLEXCOMP_ERROR_BUDGET: the budget is too small for
 * one more member; the message names the smallest budget. A failure sets `*session` to NULL. flexcomp_close removes a member: waiting
 * requests fail with FLEXCOMP_ERROR_INPUT, and a running request completes. */
FLEXCOMP_API flexcomp_status flexcomp_pool_add(flexcomp_pool *pool, const char *name, const char *library,
                                               const flexcomp_member_options *options, flexcomp_session **session);

/* Shares another budget among the members. When this returns, the pool holds no more memory; inferences that gave memory back begin
 * anew. Waits for inferences that cannot give memory back. */
FLEXCOMP_API flexcomp_status flexcomp_pool_set_budget(flexcomp_pool *pool, uint64_t budget);

typedef struct flexcomp_pool_stats {
  size_t size;       /* sizeof(flexcomp_pool_stats); set it before the call */
  uint64_t budget;   /* bytes */
  uint64_t planned;  /* bytes of the budget that the members' plans take together */
  uint64_t claimed;  /* bytes that are held now, or until inferences in progress end */
  uint64_t resident; /* claimed bytes that are in memory */
  uint64_t shared;   /* bytes held for weights that several members have */
  uint64_t least;    /* the smallest budget for these members */
  uint64_t most;     /* the budget with which everything stays in memory */
  uint32_t members;
  uint32_t lanes;
} flexcomp_pool_stats;

FLEXCOMP_API flexcomp_status flexcomp_pool_get_stats(flexcomp_pool *pool, flexcomp_pool_stats *stats);

/* As flexcomp_get_text: FLEXCOMP_TEXT_STATS, FLEXCOMP_TEXT_PLAN. */
FLEXCOMP_API flexcomp_status flexcomp_pool_get_text(flexcomp_pool *pool, flexcomp_text which, flexcomp_text_callback give, void *context);

typedef struct flexcomp_member_stats {
  size_t size;        /* sizeof(flexcomp_member_stats); set it before the call */
  uint64_t requests;  /* all requests since the member was added, those of flexcomp_run included */
  uint64_t completed; /* that ran */
  uint64_t failed;    /* that ran with an error, or waited when the member or the pool was closed */
  uint64_t cancelled; /* by a call */
  uint64_t refused;   /* at once */
  uint64_t dropped;   /* because the deadline passed before their turn */
  uint64_t waiting;   /* now */
  uint64_t running;   /* now */
  uint64_t missed;    /* passed deadlines of completed and dropped requests */
  uint64_t kept;      /* bytes that stay in memory between inferences */
  double wait_s;      /* before the last inference began */
} flexcomp_member_stats;

/* Statistics of a member; flexcomp_get_stats has the times and reads of its inferences. */
FLEXCOMP_API flexcomp_status flexcomp_member_get_stats(flexcomp_session *session, flexcomp_member_stats *stats);

/* A request is an inference of a member whose caller does not wait. */
typedef struct flexcomp_request flexcomp_request;

enum {
  FLEXCOMP_LATE = 1 /* a flag of flexcomp_request_options: run the request also after its deadline */
};

typedef struct flexcomp_request_options {
  size_t size;       /* sizeof(flexcomp_request_options) */
  double deadline_s; /* seconds from now; 0: the member's */
  uint32_t flags;    /* FLEXCOMP_LATE */
  uint32_t reserved; /* 0 */
} flexcomp_request_options;

#define FLEXCOMP_REQUEST_OPTIONS_INIT {sizeof(flexcomp_request_options), 0, 0, 0}

/* Makes a request, with tensors as flexcomp_run takes them. The arrays are read here; the memory of the tensors is read and written
 * until flexcomp_wait returns, or the member or the pool is closed. Earlier deadlines come first; short and urgent ones among the
 * rest. FLEXCOMP_REFUSED: too many requests wait, or this or another request would miss its deadline; the message says when to try
 * again. `options` may be NULL: the defaults. A failure sets `*request` to NULL. flexcomp_run on a member makes a request without
 * options, and waits. */
FLEXCOMP_API flexcomp_status flexcomp_submit(flexcomp_session *session, const flexcomp_tensor *inputs, uint32_t input_count,
                                             const flexcomp_tensor *outputs, uint32_t output_count,
                                             const flexcomp_request_options *options, flexcomp_request **request);

/* Waits until the request has ended, and closes the request. Returns the status of its inference, FLEXCOMP_CANCELLED, FLEXCOMP_REFUSED
 * if the deadline passed before its turn, FLEXCOMP_ERROR_INPUT if the member was closed, or FLEXCOMP_ERROR_EXECUTION if the pool was
 * closed. Only one thread may wait for a request; calls of others return FLEXCOMP_ERROR_INPUT. */
FLEXCOMP_API flexcomp_status flexcomp_wait(flexcomp_request *request);

/* Cancels a request: a waiting one at once, a running one as flexcomp_cancel does. Returns at once; flexcomp_wait tells whether the
 * request was cancelled in time. */
FLEXCOMP_API flexcomp_status flexcomp_cancel_request(flexcomp_request *request);

/* ------------------------------------------------------------------------------------- following the system's memory */

/* A follower is a thread that sets the budget of a session or a pool to the memory that the system allows: down at once, to the smallest
 * budget if none fits; up when a larger one has fitted for a while, with 5 % to spare. */
typedef struct flexcomp_follower flexcomp_follower;

typedef int32_t flexcomp_follow_kind;
enum {
  FLEXCOMP_CONTROL_GROUP = 0, /* the limits of a memory control group, version 1 or 2, and of those around it, less other memory there */
  FLEXCOMP_PRESSURE = 1       /* pressure stall information: one budget down while tasks wait for memory, one up while none does */
};

/* Called by the follower's thread. FLEXCOMP_OK: `budget`, in bytes, is used from now on. With any other status `budget`
 * stays, and flexcomp_message() says why. FLEXCOMP_ERROR_BUDGET: less is allowed than the smallest budget, or the system has no memory
 * for a larger one. FLEXCOMP_ERROR_EXECUTION: the system reports no limit; the control group may have been removed. Both are reported
 * once, and the follower goes on. FLEXCOMP_ERROR_CLOSED: the session or pool was closed, and the thread ends. The callback must return,
 * without an exception or longjmp, and may make any call but flexcomp_unfollow of its follower. */
typedef void (*flexcomp_follow_callback)(void *context, flexcomp_status status, uint64_t budget);

typedef struct flexcomp_follow_options {
  size_t size;                      /* sizeof(flexcomp_follow_options) */
  const char *path;                 /* the control group's folder, or the file of the pressure; NULL: of this process */
  double interval_s;                /* seconds between two checks; 0: 0.2 */
  double patience_s;                /* seconds for which a larger budget must have fitted; 0: 2 */
  uint64_t most;                    /* the largest budget to use; the smallest is always allowed; 0: any */
  flexcomp_follow_callback changed; /* may be NULL */
  void *context;                    /* for `changed` */
  flexcomp_follow_kind kind;
  uint32_t reserved; /* 0 */
} flexcomp_follow_options;

#define FLEXCOMP_FOLLOW_OPTIONS_INIT {sizeof(flexcomp_follow_options), NULL, 0, 0, 0, NULL, NULL, FLEXCOMP_CONTROL_GROUP, 0}

/* Begins to follow. FLEXCOMP_ERROR_INPUT: there is no such control group, or the system does not report pressure. A pool's budget moves
 * in steps of a quarter between the smallest and the one with which all stays in memory. `options` may be NULL: the control group of
 * this process. A failure sets `*follower` to NULL. */
FLEXCOMP_API flexcomp_status flexcomp_follow(flexcomp_session *session, const flexcomp_follow_options *options,
                                             flexcomp_follower **follower);
FLEXCOMP_API flexcomp_status flexcomp_pool_follow(flexcomp_pool *pool, const flexcomp_follow_options *options,
                                                  flexcomp_follower **follower);

/* Ends a follower; the budget stays. Waits for the follower's callback, if one runs. Call this also after the session was closed.
 * NULL returns FLEXCOMP_OK. */
FLEXCOMP_API flexcomp_status flexcomp_unfollow(flexcomp_follower *follower);

#ifdef __cplusplus
}
#endif

#endif /* FLEXCOMP_H_ */
